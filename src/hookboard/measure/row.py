"""The row: count, mean, deviation and so on of a set of numbers, in a form that merges exactly."""

import math
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hookboard.base.ranks import Ranks

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

NONFINITE = slice(FIELDS.index("nan"), FIELDS.index("neginf") + 1)
"""The columns that count what is not finite."""

EMPTY = (0.0,) * 8 + (math.inf, -math.inf)
"""The row of a tensor without elements."""

MAX_CHANNEL_ROWS = 1024
"""Maximum number of channels of a tensor that get a row; of more, every k-th does. All ranks send these rows at a look:
32 MB of a model with 8 billion parameters (`benchmarks/ranks.py`)."""


class Moments(NamedTuple):
    """The columns of one merged row, see `FIELDS`, on the host; `abs_mean` is NaN where no statistic needs it.

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
    elements: Rows = rows[..., 0] + rows[..., NONFINITE].sum(-1)
    return elements


def merge(rows: Tensor, others: Tensor) -> Tensor:
    """Merge rows with as many others, one by one: each result describes the values of both. Shape (n, WIDTH), float64.

    The algorithm of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing sample
    variances", 1979).
    """
    count, mean, deviation, abs_mean = rows[:, :4].split(1, 1)
    more, other_mean, other_deviation, other_abs_mean = others[:, :4].split(1, 1)
    share = more / (count + more).clamp(min=1)
    rest, away = 1 - share, other_mean - mean
    # In this order, because a square of a row without values may be infinite.
    squares = deviation * rest * deviation + other_deviation * share * other_deviation + (away * share) * (away * rest)
    means = [mean + away * share, squares.sqrt(), abs_mean + (other_abs_mean - abs_mean) * share]
    low, high = torch.minimum(rows[:, 8:9], others[:, 8:9]), torch.maximum(rows[:, 9:], others[:, 9:])
    return torch.cat([count + more, *means, rows[:, 4:8] + others[:, 4:8], low, high], 1)


def merge_over(ranks: Ranks, rows: Tensor) -> Tensor:
    """Merge rows, shape (n, WIDTH), float64, with those of all other ranks, which have as many in the same order.

    The result is the same on all ranks to the bit, see `merge`. A NaN in the column `count` of a rank gives NaN there.
    """
    count, mean, deviation, abs_mean = rows[:, :4].split(1, 1)
    ends = ranks.max(torch.cat([-rows[:, 8:9], rows[:, 9:]], 1))  # the minimum as the largest negative
    sums = torch.cat([count, count * mean, count * abs_mean, rows[:, 4:8]], 1)
    # Columns without content, as of NaN and infinities, are not sent: channels have many rows.
    has_content = ranks.max(((sums != 0) & ~sums.isnan()).any(0).double()).bool()
    sums[:, has_content] = ranks.sum(sums[:, has_content])
    at_least_one = sums[:, :1].clamp(min=1)
    means = sums[:, 1:3] / at_least_one
    squares = ranks.sum(count * (deviation.square() + (mean - means[:, :1]).square()))
    deviation = (squares / at_least_one).sqrt()
    return torch.cat([sums[:, :1], means[:, :1], deviation, means[:, 1:], sums[:, 3:], -ends[:, :1], ends[:, 1:]], 1)


def channel_stride(channels: int) -> int:
    """Return the smallest k such that channels 0, k, 2k, ... are at most `MAX_CHANNEL_ROWS`; only these get a row.

    It depends only on the number of channels, so that all calls, steps, ranks and roles take the same ones. A pattern
    that repeats every k channels, or a divisor of k, appears in such a sample everywhere or nowhere.

    >>> channel_stride(4096), channel_stride(4097), channel_stride(14_336)
    (4, 5, 14)
    """
    return max(1, -(-channels // MAX_CHANNEL_ROWS))


def channel_row_count(channels: int) -> int:
    """Return how many channels get a row, of a tensor with this many: every `channel_stride(channels)`-th.

    >>> channel_row_count(4096), channel_row_count(14_336), channel_row_count(1_000_003)
    (1024, 1024, 1024)
    """
    return -(-channels // channel_stride(channels))
