"""What is measured of a tensor beside its row: the dimension of channels (units), every which unit, a histogram."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hookboard.health.layers import Layer
from hookboard.measure import every_of
from hookboard.sites import ROLES, Site

NORMS_OF_THE_LAST = ("LayerNorm", "RMSNorm")
"""Normalization layers whose channels stand in the last dimension; those of all others stand in the second."""

MOST_VALUES = 1 << 16
"""Of a weight with more values only every k-th unit is measured, so that the cost does not follow its size."""


def every_unit(shape: Sequence[int]) -> int:
    """The k of a weight of that shape: units 0, k, 2 * k ... are measured. 1 if all are.

    It is a multiple of the k of outputs with as many units, so that each unit whose weights are measured is one whose
    outputs are: rules compare the two.

    >>> every_unit((1000, 200)), every_unit((14_336, 4096)), every_unit((11_008, 4096))
    (4, 896, 690)
    """
    values, rows = math.prod(shape), every_of(shape[0]) if len(shape) > 1 else 1
    return -(-values // (MOST_VALUES * rows)) * rows if values > MOST_VALUES and len(shape) > 1 else rows


class ChannelDims:
    """Tells the dimension of channels of each tensor; asked in the order of execution, each layer once at least.

    A layer without weights, such as an activation function, has its channels where the layer before it had them when it
    was asked first.

    Args:
        layers: every layer that is watched, by name.

    Example:
        >>> import torch
        >>> dims = ChannelDims({"conv": Layer("conv", "Conv2d", "conv"), "relu": Layer("relu", "ReLU", "rectifier")})
        >>> [dims(Site(name, "output"), torch.zeros(2, 3, 8, 8)) for name in ("conv", "relu")]
        [1, 1]
    """

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers
        self._is_last = False
        self._known: dict[tuple[str, int], tuple[Layer | None, bool]] = {}

    def __call__(self, site: Site, tensor: Tensor) -> int | None:
        """The dimension; None if the tensor has no channels, or they are not wanted."""
        if site.role == "input" and not site.name:
            return _of_batch(tensor)
        if site.role in ("parameter", "parameter_grad"):
            return 0 if tensor.dim() >= 2 else None  # the unit whose weights these are
        if site.role not in ("output", "input") or tensor.dim() < 2:
            return None
        layer, key = self._layers.get(site.name), (site.name, tensor.dim())
        known = self._known.get(key)
        if known is None or known[0] is not layer:  # a model may get another layer of that name
            known = self._known[key] = layer, _stands_last(layer, self._is_last)
        self._is_last = known[1]
        return _dim(layer, tensor, self._is_last)


class DefinedDims:
    """Tells the dimension of channels of each tensor, in whatever order it is asked, of any part of the layers.

    A layer without weights is taken to follow the layer that the model defines before it, a module with layers inside
    to end with the last of them.

    Args:
        layers: all layers of the model by name, in the order in which it defines them.

    Example:
        >>> import torch
        >>> layers = {"fc": Layer("fc", "Linear", "linear"), "gelu": Layer("gelu", "GELU", "smooth")}
        >>> DefinedDims(layers)(Site("gelu", "grad_output"), torch.zeros(2, 7, 16))
        2
    """

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self._layers = layers
        self._stands_last: dict[str, bool] = {}
        is_last = False
        for name, layer in layers.items():
            is_last = _stands_last(layer, is_last)
            parts = name.split(".")
            for depth in range(len(parts) + 1):
                self._stands_last[".".join(parts[:depth])] = is_last

    def __call__(self, site: Site, tensor: Tensor) -> int | None:
        """The dimension; None if the tensor has no channels."""
        if tensor.dim() < 2 or ROLES[site.role].moments_only:
            return None
        if ROLES[site.role].of_parameter:
            return 0
        return _dim(self._layers.get(site.name), tensor, self._stands_last.get(site.name, False))


def _stands_last(layer: Layer | None, before: bool) -> bool:
    """Whether a layer has its channels in the last dimension, by what held before it."""
    if layer is None:
        return before
    if layer.kind in ("linear", "embedding", "recurrent", "attention"):
        return True
    if layer.kind == "norm":
        return layer.type in NORMS_OF_THE_LAST
    return before and layer.kind != "conv"


def _dim(layer: Layer | None, tensor: Tensor, is_last: bool) -> int:
    """The dimension of the channels of a tensor with two dimensions or more."""
    if layer is not None and layer.kind == "conv" and layer.shapes:
        spatial = len(next(iter(layer.shapes.values()))) - 2
        return tensor.dim() - spatial - 1
    return tensor.dim() - 1 if is_last else 1


def _of_batch(tensor: Tensor) -> int | None:
    """The features of a batch: the second dimension of images and tables, the last of sequences."""
    if tensor.dim() < 2 or not tensor.dtype.is_floating_point:
        return None
    return 2 if tensor.dim() == 3 else 1


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
