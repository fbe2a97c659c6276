"""What rules need measured: which units of a large weight, and of which tensors a histogram."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hookboard.layers import Layer
from hookboard.measure import every_of
from hookboard.sites import ROLES, Site

MOST_VALUES = 1 << 16
"""Of a weight with more values only every k-th unit is measured, so that the cost does not follow its size."""


def every_unit(shape: Sequence[int]) -> int:
    """The k of a weight of that shape: units 0, k, 2 * k ... are measured. 1 if all are.

    It is a multiple of the k of outputs with as many units, so that each unit whose weights are measured is one whose
    outputs are: rules compare the two.

    >>> every_unit((1000, 200)), every_unit((14_336, 4096)), every_unit((11_008, 4096))
    (4, 896, 690)
    """
    if len(shape) < 2:
        return 1
    of_outputs = every_of(shape[0])
    return of_outputs * max(1, -(-math.prod(shape) // (MOST_VALUES * of_outputs)))


class NeedsHistogram:
    """Tells of which tensors rules need a histogram: bounded activations, and what is in half precision.

    Args:
        layers: every layer that is watched, by name.
    """

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers

    def __call__(self, site: Site, tensor: Tensor) -> bool:
        """Whether this tensor is counted into bins."""
        if tensor.dtype in (torch.float16, torch.bfloat16):
            return not ROLES[site.role].of_parameter
        layer = self._layers.get(site.name)
        return site.role == "output" and layer is not None and layer.kind == "bounded"
