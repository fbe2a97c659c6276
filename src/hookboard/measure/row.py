"""The row: count, mean, deviation and so on of a set of numbers, in a form that merges exactly."""

import math
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

Rows = TypeVar("Rows", Tensor, np.ndarray)

FIELDS = ("count", "mean", "deviation", "abs_mean", "zeros", "nan", "posinf", "neginf", "min", "max")
"""The columns of a row.

count: how many values are finite. The other columns, except for the next three, describe only these.
nan, posinf, neginf: how many values are NaN, +Inf, -Inf.
mean: the mean. abs_mean: the mean of the absolute values.
deviation: the root of the mean squared difference from the mean (the standard deviation with divisor `count`).
zeros: how many values are 0. min, max: the extremes; inf and -inf where count is 0.

A row has means instead of sums, so that no column exceeds the largest value and nothing overflows.
"""

WIDTH = len(FIELDS)

REQUESTABLE = frozenset({"mean", "deviation", "abs_mean", "zeros"})
"""Columns that are filled only if a statistic needs them. The others are always filled."""

EMPTY = (0.0,) * 8 + (math.inf, -math.inf)
"""The row of no values."""

Row = list[float] | Tensor
"""Floats on the CPU; elsewhere a float64 tensor on the device: the row, or rows of parts, which merge to the row."""


MOST_ROW_BYTES = 320 << 10
"""What the rows of the channels of one site may take on the host, in packets and over ranks."""

MOST_CHANNELS = MOST_ROW_BYTES // (8 * WIDTH)
"""So many channels get a row each: 4096. Of more, such as logits over a vocabulary, every k-th does."""


class Moments(NamedTuple):
    """One merged row on the host. `FIELDS` describes the arguments; those that no statistic needs are NaN.

    Each may also be an array, shape (n,), float64: the moments of n sites at once.
    """

    count: float  # type: ignore[assignment]  # every tuple has a method of this name, which nobody needs here
    mean: float
    deviation: float
    abs_mean: float
    zeros: float
    nan: float
    posinf: float
    neginf: float
    min: float
    max: float

    @property
    def nonfinite(self) -> float:
        """How many values are NaN or infinite."""
        return self.nan + self.posinf + self.neginf

    @property
    def abs_sum(self) -> float:
        """The sum of absolute values."""
        return self.abs_mean * self.count

    @property
    def rms(self) -> float:
        """The root mean square of the finite values; an array if the moments are arrays."""
        # Python's own `hypot` differs in the last bit from that of arrays.
        root = np.hypot(self.mean, self.deviation)
        return root if root.ndim else root.item()  # type: ignore[no-any-return]  # an array for arrays

    @property
    def square_sum(self) -> float:
        """The sum of squares; inf where float64 cannot hold it."""
        return self.rms * self.rms * self.count


def elements_in(rows: Rows) -> Rows:
    """How many values each row describes, finite or not; from shape (..., at least WIDTH) to (...)."""
    elements: Rows = rows[..., 0] + rows[..., 5:8].sum(-1)
    return elements


def unit_of(low: Tensor, high: Tensor) -> Tensor:
    """Return a power of two near the larger magnitude, by which division is exact; 1 where it is 0 or not finite.

    Args:
        low: the smallest value, of any shape, floating point.
        high: the largest value, of the same shape and dtype.
    """
    size = torch.maximum(low.abs(), high.abs())
    mantissa = torch.frexp(size).mantissa
    return torch.where((size > 0) & (size < math.inf), size / (2 * mantissa), 1)


def every_of(channels: int) -> int:
    """Return the k of a tensor with so many channels: channel 0, k, 2 * k ... get a row. 1 if all do.

    It depends on nothing else, so that all calls, steps, ranks and roles take the same channels. What repeats in a
    layer with the period k, or a part of it, shows in a sample as all or nothing.

    >>> every_of(4096), every_of(4097), every_of(14_336)
    (1, 2, 4)
    """
    return max(1, -(-channels // MOST_CHANNELS))


def looked_at(channels: int) -> int:
    """How many of so many channels get a row.

    >>> looked_at(4096), looked_at(14_336), looked_at(1_000_003)
    (4096, 3584, 4082)
    """
    return -(-channels // every_of(channels))


def has_channels(tensor: Tensor, dim: int) -> bool:
    """Return True if the tensor has this dimension and at least one channel along it."""
    return -tensor.dim() <= dim < tensor.dim() and tensor.shape[dim] > 0


def sample_of(tensor: Tensor, dim: int) -> Tensor:
    """Return a view of the channels of a tensor that get a row.

    Args:
        tensor: the tensor.
        dim: the dimension of the channels, not negative.
    """
    return tensor[(slice(None),) * dim + (slice(None, None, every_of(tensor.shape[dim])),)]
