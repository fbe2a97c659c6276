"""The built-in statistics that need more than the moments: bins, rows of channels, the dtype."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from hookboard.measure.histogram import count_below, quantile
from hookboard.measure.row import FIELDS, NONFINITE, Moments

_COUNT, _ZEROS = map(FIELDS.index, ("count", "zeros"))


AxisScale = Literal["log", "linear"]


class MergedSite(NamedTuple):
    """Everything measured of one site, merged over all its tensors of a step.

    Args:
        bins: the counts of the values, shape (BINS,); None if they were not counted.
        channels: the moments of each channel, shape (channels, WIDTH); None if there are none.
    """

    moments: Moments
    bins: np.ndarray | None
    channels: np.ndarray | None
    dtype: torch.dtype | None


class Formula(NamedTuple):
    """How a built-in statistic is computed.

    Args:
        value: of `Moments` of arrays over the sites, where the caller silences NumPy's warnings with `np.errstate`. If
            the moments are not enough, of one `MergedSite`; None if that has no such statistic.
        about: its formula, or a definition in words, for docs/statistics.md.
        scale: the scale of a chart's axis that suits its values.
        needs: `bins` or `channels` if it needs those.
    """

    value: Callable[[Any], Any]
    about: str
    scale: AxisScale = "linear"
    needs: Literal["", "bins", "channels"] = ""


def _quantile(share: float, merged: MergedSite) -> float | None:
    low, high = merged.moments.min, merged.moments.max
    return None if merged.bins is None else quantile(merged.bins, low, high, share)


def _dead_fraction(merged: MergedSite) -> float | None:
    """Return the share of channels with only zeros among those with a finite value; NaN if there are none of these."""
    if (channels := merged.channels) is None:
        return None
    finite = channels[:, _COUNT]
    seen = finite > 0
    dead = (channels[:, _ZEROS] == finite) & (channels[:, NONFINITE].sum(axis=1) == 0)
    return float(np.mean(dead[seen])) if seen.any() else math.nan


def _underflow(dtype: torch.dtype | None, merged: MergedSite) -> float | None:
    """Return the share of nonzero values below the smallest normal number of a dtype (or of the site's).

    None for float64, for a dtype that is no float, and if the values were not counted into bins.
    """
    of = dtype or merged.dtype
    if merged.bins is None or of is None or not of.is_floating_point or of is torch.float64:
        return None
    nonzero = merged.moments.count - merged.moments.zeros
    small = count_below(merged.bins, torch.finfo(of).tiny) - merged.moments.zeros
    return small / nonzero if nonzero else math.nan


def _headroom(merged: MergedSite) -> float | None:
    if merged.dtype is None or not (merged.dtype.is_floating_point or merged.dtype.is_complex):
        return None
    m = merged.moments
    if not m.count:
        return math.nan
    largest = max(abs(m.min), abs(m.max))
    return math.log2(torch.finfo(merged.dtype).max) - math.log2(largest) if largest else math.inf


_FROM_BINS = "from the bins of the histogram ([how exact](#how-exact-quantiles-are))"

_of_bins = partial(Formula, needs="bins")

DERIVED: dict[str, Formula] = {
    "p01": _of_bins(partial(_quantile, 0.01), f"the 0.01 quantile, {_FROM_BINS}"),
    "p50": _of_bins(partial(_quantile, 0.50), f"the 0.5 quantile, {_FROM_BINS}"),
    "p99": _of_bins(partial(_quantile, 0.99), f"the 0.99 quantile, {_FROM_BINS}"),
    "dead_fraction": Formula(
        _dead_fraction,
        "fraction of the [channels](#channels) (units) that are 0 at every position of every sample in the step",
        needs="channels",
    ),
    "underflow_fraction": _of_bins(
        partial(_underflow, None),
        "fraction of the nonzero `x` with `abs(x)` below the dtype's smallest normal number (not for float64)",
    ),
    "fp16_underflow_fraction": _of_bins(
        partial(_underflow, torch.float16),
        "fraction of values that float16 would round more coarsely or to 0, regardless of the tensor's dtype",
    ),
    "headroom": Formula(
        _headroom,
        "`log2(largest finite number of the dtype / max(abs(x)))`: how many doublings are left before "
        "overflow; infinite if all values are 0",
    ),
}
"""The built-in statistics that need more than the moments, by name."""
