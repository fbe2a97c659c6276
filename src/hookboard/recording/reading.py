"""`Reading`: the result for one site after a step."""

from dataclasses import dataclass, field

import numpy as np
import torch

from hookboard.measure import Histogram, Moments
from hookboard.sites import Site, Stage


@dataclass(frozen=True, slots=True)
class Reading:
    """The result for one site after an optimizer step or an evaluation loop.

    Args:
        site: the tensor slot: name, role and index.
        moments: count, mean, extremes and so on of all its tensors in the step, as if they were one tensor.
        statistics: name to value, as they are logged.
        histogram: the histogram of the finite values; None if histograms are off.
        stage: the stage: `train`, `validate`, `test` or `predict`.
        overflowed: whether gradients of the site's optimizer were not finite under a GradScaler, which then skips the
            step. `statistics` then holds the counts, and NaN for all others.
        channels: one merged row for each channel (unit), shape (channels, columns of `hookboard.measure.FIELDS`),
            float64; of more than 4096 channels for every k-th: 0, k, 2 * k ..., with the smallest k that leaves no more
            than 4096. None if channels are not measured, or if the tensors of the step had different numbers of them.
        dtype: the dtype of its first tensor in the step, of a gradient as autograd gave it; None if unknown.
        width: how many channels there are, with or without a row. Left out: as many as there are rows.
    """

    site: Site
    moments: Moments
    statistics: dict[str, float]
    histogram: Histogram | None
    stage: Stage = "train"
    overflowed: bool = False
    channels: np.ndarray | None = field(default=None, repr=False, compare=False)
    dtype: torch.dtype | None = None
    width: int = field(default=0, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.channels is not None and not self.width:
            object.__setattr__(self, "width", len(self.channels))

    @property
    def is_empty(self) -> bool:
        """Whether none of the tensors had an element."""
        return not (self.moments.count or self.moments.nonfinite)
