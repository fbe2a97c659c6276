"""The row: count, mean, deviation and so on of a set of numbers, in a form that merges exactly."""

import math
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

Rows = TypeVar("Rows", Tensor, np.ndarray)

FIELDS = ("count", "mean", "deviation", "abs_mean", "zeros", "nan", "posinf", "neginf", "min", "max")
"""The columns of a row.

count: how many values are finite. All columns but nan, posinf and neginf describe only the finite values.
nan, posinf, neginf: how many values are NaN, +Inf, -Inf.
mean: the mean. abs_mean: the mean of the absolute values.
deviation: the root of the mean squared difference from the mean (the standard deviation with divisor `count`).
zeros: how many values are 0. min, max: the extremes; inf and -inf where count is 0.

A row has means instead of sums, so that no column exceeds the largest value and nothing overflows.
"""

WIDTH = len(FIELDS)

REQUESTABLE = frozenset({"mean", "deviation", "abs_mean", "zeros"})
"""Columns that may be left 0 where no statistic needs them. The others are always filled."""

EMPTY = (0.0,) * 8 + (math.inf, -math.inf)
"""The row of a tensor without elements."""

Row = list[float] | Tensor
"""What measuring one tensor gives: a list of at least WIDTH floats for a tensor on the CPU; otherwise a float64 tensor
on its device, shape (width,)."""

ChannelRows = np.ndarray | Tensor
"""The row of each channel, shape (channels, WIDTH), float64: an array if the tensor was on the CPU, otherwise a tensor
on its device. Of a tensor with very many channels every k-th has a row, see `channel_stride`."""

MAX_CHANNEL_ROW_BYTES = 320 << 10
"""Maximum size of the rows of one site's channels, which are copied to the host and sent to other ranks."""

MAX_CHANNEL_ROWS = MAX_CHANNEL_ROW_BYTES // (8 * WIDTH)
"""Maximum number of channels of a tensor that get a row: 4096. Of more, as in logits, every k-th does."""


class Moments(NamedTuple):
    """The columns of one merged row, on the host. `FIELDS` describes them; those that no statistic needs are NaN.

    Each may also be an array, shape (n,), float64, with one number for each of n sites.
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
        """The number of values that are NaN or infinite."""
        return self.nan + self.posinf + self.neginf

    @property
    def abs_sum(self) -> float:
        """The sum of the absolute values of the finite values."""
        return self.abs_mean * self.count

    @property
    def rms(self) -> float:
        """The root mean square of the finite values; an array if the moments are arrays."""
        # Python's own `hypot` differs in the last bit from that of arrays.
        root = np.hypot(self.mean, self.deviation)
        return root if root.ndim else root.item()  # type: ignore[no-any-return]  # an array for arrays

    @property
    def square_sum(self) -> float:
        """The sum of the squares of the finite values; inf where float64 cannot hold it."""
        return self.rms * self.rms * self.count


def elements_in(rows: Rows) -> Rows:
    """Return how many values each row describes, finite or not: shape (...) for rows of shape (..., WIDTH or more)."""
    elements: Rows = rows[..., 0] + rows[..., 5:8].sum(-1)
    return elements


def unit_of(low: Tensor, high: Tensor) -> Tensor:
    """Return, elementwise, the largest power of two up to `max(|low|, |high|)`; 1 where that is 0 or not finite.

    Dividing by a power of two is exact, so values can be scaled by it before they are squared.
    """
    size = torch.maximum(low.abs(), high.abs())
    # It lies in [0.5, 1), so that `size / (2 * mantissa)` is the power of two.
    mantissa = torch.frexp(size).mantissa
    return torch.where((size > 0) & (size < math.inf), size / (2 * mantissa), 1)


def channel_stride(channels: int) -> int:
    """Return the smallest k such that channels 0, k, 2k, ... are at most `MAX_CHANNEL_ROWS`; only these get a row.

    It depends only on the number of channels, so that all calls, steps, ranks and roles take the same ones. A pattern
    that repeats every k channels, or a divisor of k, appears in such a sample everywhere or nowhere.

    >>> channel_stride(4096), channel_stride(4097), channel_stride(14_336)
    (1, 2, 4)
    """
    return max(1, -(-channels // MAX_CHANNEL_ROWS))


def channel_row_count(channels: int) -> int:
    """Return how many channels get a row, of a tensor with this many: every `channel_stride(channels)`-th.

    >>> channel_row_count(4096), channel_row_count(14_336), channel_row_count(1_000_003)
    (4096, 3584, 4082)
    """
    return -(-channels // channel_stride(channels))


def has_channels(tensor: Tensor, dim: int) -> bool:
    """Return True if the tensor has this dimension and at least one channel along it."""
    return -tensor.dim() <= dim < tensor.dim() and tensor.shape[dim] > 0


def sample_of(tensor: Tensor, dim: int) -> Tensor:
    """Return a view of a tensor with only the channels along `dim` that get a row, see `channel_stride`."""
    return tensor[(slice(None),) * dim + (slice(None, None, channel_stride(tensor.shape[dim])),)]
