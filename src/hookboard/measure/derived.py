"""The built-in statistics for which the moments are not enough, and what each needs: bins, channels, columns, dtype."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from hookboard.measure.columns import AtEnds, Columns, Covariance, Tails, effective_rank
from hookboard.measure.histograms import count_below, quantile
from hookboard.measure.row import FIELDS, Moments

_COUNT, _ZEROS, _NAN, _NEGINF = map(FIELDS.index, ("count", "zeros", "nan", "neginf"))


AxisScale = Literal["log", "linear"]


@dataclass(frozen=True, slots=True)
class Merged:
    """What is known of one site when all its tensors of a step are merged.

    Args:
        moments: their moments.
        bins: the counts of their values, shape (BINS,); None if there are none.
        channels: the row of each channel, shape (channels, WIDTH); None if there are none.
        dtype: of the tensors; None if unknown.
        numbers: what was measured for each kind of columns.
    """

    moments: Moments
    bins: np.ndarray | None
    channels: np.ndarray | None
    dtype: torch.dtype | None
    numbers: Mapping[Columns, list[float]]


class Derived(NamedTuple):
    """A statistic for which the moments are not enough.

    Args:
        needs: the columns of `REQUESTABLE` that it needs, and `bins` or `channels`.
        value: computes it; None where a site has no such statistic.
        about: its formula, or what it is in words, for docs/statistics.md.
        columns: what must be measured of the whole tensor; None for nothing.
        why_not: why a site may have no such statistic, used in messages.
        scale: the scale of an axis that suits its values.
    """

    needs: frozenset[str]
    value: Callable[[Merged], float | None]
    about: str
    columns: Columns | None = None
    why_not: str = ""
    scale: AxisScale = "linear"


def _kurtosis(merged: Merged) -> float:
    m = merged.moments
    # Equal values have a deviation of rounding errors.
    if not m.count or m.min == m.max or not m.deviation:
        return math.nan
    _, fourth = merged.numbers[TAILS]
    return (fourth / m.deviation) ** 4


def _quantile(share: float) -> Callable[[Merged], float | None]:
    def value(merged: Merged) -> float | None:
        if merged.bins is None:
            return None
        return quantile(merged.bins, merged.moments.min, merged.moments.max, share)

    return value


def _dead_share(channels: np.ndarray) -> float:
    """Return the share of channels with nothing but zeros; NaN if none has a finite value.

    Args:
        channels: shape (channels, WIDTH): the row of each.
    """
    finite = channels[:, _COUNT]
    seen = finite > 0
    dead = (channels[:, _ZEROS] == finite) & (channels[:, _NAN : _NEGINF + 1].sum(axis=1) == 0)
    return float(np.mean(dead[seen])) if seen.any() else math.nan


def _dead_fraction(merged: Merged) -> float | None:
    return None if merged.channels is None else _dead_share(merged.channels)


def _saturated_fraction(merged: Merged) -> float | None:
    count, found = merged.moments.count, merged.numbers[ENDS][0]
    if not count:
        return math.nan
    return None if math.isnan(found) else found / count


def _underflow(dtype: torch.dtype | None) -> Callable[[Merged], float | None]:
    """For one dtype, or for that of the tensors."""

    def value(merged: Merged) -> float | None:
        of = dtype or merged.dtype
        if merged.bins is None or of is None or not of.is_floating_point or of is torch.float64:
            return None
        nonzero = merged.moments.count - merged.moments.zeros
        small = count_below(merged.bins, torch.finfo(of).tiny) - merged.moments.zeros
        return small / nonzero if nonzero else math.nan

    return value


def _headroom(merged: Merged) -> float | None:
    if merged.dtype is None or not (merged.dtype.is_floating_point or merged.dtype.is_complex):
        return None
    m = merged.moments
    if not m.count:
        return math.nan
    largest = max(abs(m.min), abs(m.max))
    return math.log2(torch.finfo(merged.dtype).max) - math.log2(largest) if largest else math.inf


def _effective_rank(merged: Merged) -> float | None:
    numbers = merged.numbers[COVARIANCE]
    if not merged.moments.count:
        return math.nan
    return None if math.isnan(numbers[0]) else effective_rank(numbers)


COVARIANCE = Covariance()
TAILS = Tails()
ENDS = AtEnds()
"""Stands for the ends of any site; `Plan.between` gives them."""

_FROM_BINS = "from the bins of the histogram ([how exact](#how-exact-quantiles-are))"
_BINS = "its values are not counted into bins"
_CHANNELS = "what it is taken of has no channels, or another number of them in another call"

DERIVED: dict[str, Derived] = {
    "kurtosis": Derived(
        frozenset({"mean", "deviation"}),
        _kurtosis,
        "`mean((x - mean)⁴) / mean((x - mean)²)²`, Pearson's: 3 for a normal distribution, 1.8 for a uniform one, "
        "large where a few values are far out",
        TAILS,
        scale="log",
    ),
    "p01": Derived(frozenset({"bins"}), _quantile(0.01), f"the quantile at 0.01, {_FROM_BINS}", why_not=_BINS),
    "p50": Derived(frozenset({"bins"}), _quantile(0.50), f"the quantile at 0.5, {_FROM_BINS}", why_not=_BINS),
    "p99": Derived(frozenset({"bins"}), _quantile(0.99), f"the quantile at 0.99, {_FROM_BINS}", why_not=_BINS),
    "dead_fraction": Derived(
        frozenset({"zeros", "channels"}),
        _dead_fraction,
        "share of the [channels](#channels) (units) that are 0 for every sample and position of the step",
        why_not=_CHANNELS,
    ),
    "saturated_fraction": Derived(
        frozenset(),
        _saturated_fraction,
        "share of `x` near an end of the range of Tanh, Sigmoid, Hardtanh, Hardsigmoid or Softsign: more than 0.97 of "
        "the way from the middle (tanh passes 6 % of the gradient there)",
        ENDS,
        why_not="only outputs of bounded activations, such as Tanh and Sigmoid, have it",
    ),
    "underflow_fraction": Derived(
        frozenset({"zeros", "bins"}),
        _underflow(None),
        "share of the `x != 0` with `abs(x)` below the smallest normal number of the tensor's dtype (not for float64)",
        why_not="its dtype is float64, complex or no float",
    ),
    "fp16_underflow_fraction": Derived(
        frozenset({"zeros", "bins"}),
        _underflow(torch.float16),
        "the same for float16, whatever the dtype: what float16 would round more coarsely, or to 0",
        why_not=_BINS,
    ),
    "headroom": Derived(
        frozenset(),
        _headroom,
        "`log2(largest finite number of the dtype / max(abs(x)))`: how many doublings are left; infinite if all values "
        "are 0",
        why_not="its dtype has no limit that values come near",
    ),
    "effective_rank": Derived(
        frozenset({"channels"}),
        _effective_rank,
        "`exp` of the entropy of the eigenvalues of the channels' covariance, as shares of their sum (Roy and "
        "Vetterli, 2007): from 1 to the number of channels",
        COVARIANCE,
        why_not=_CHANNELS,
    ),
}
"""Each such statistic by name."""
