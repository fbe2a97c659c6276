"""Bins with fixed edges, whose counts merge by addition; and the histograms and quantiles that follow from them."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MANTISSA_BITS = 4
"""Sixteen bins for each power of two: none is wider than 1/16 of its value (TensorBoard's own grow by 1/10)."""

SHIFT = 23 - MANTISSA_BITS
"""The bits of a float32 shifted right by this are its bin: its sign, exponent, and `MANTISSA_BITS` of its mantissa."""

BINS = 1 << (32 - SHIFT)
"""The number of bins, for all values of float32. Those of NaN and infinities are left out of histograms."""


def as_single(values: Tensor) -> Tensor:
    """Convert real values to float32 without moving any of them across an edge of a bin.

    Rounding could move a float64 or an integer across an edge, so what is rounded up is replaced by the number before.
    Values beyond the range of float32 go into the outermost bins.
    """
    if values.dtype is torch.float64 or not values.dtype.is_floating_point:
        wide = values.double()
        single = wide.float()
        return single.where(single.abs() <= wide.abs(), single.nextafter(torch.zeros_like(single)))
    return values.float()


def bins_of(single: Tensor) -> Tensor:
    """Return the index of the bin of each value, flattened to shape (n,), int32; `single` has dtype float32."""
    return (single.contiguous().view(torch.int32).reshape(-1) >> SHIFT) & (BINS - 1)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of the finite values of one site between ascending edges.

    Args:
        edges: shape (n + 1,), float64; the first and last are the smallest and the largest value. [0] if there are no
            counts.
        counts: shape (n,), float64.
    """

    edges: np.ndarray
    counts: np.ndarray


def _bin_edges() -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the finite bins in ascending order of values, and their edges, one more than bins."""
    finite = 255 << MANTISSA_BITS
    starts = (np.arange(finite + 1, dtype=np.uint32) << SHIFT).view(np.float32).astype(np.float64)
    # The bits after those of the largest number are infinity's; the last bin ends where float32 does.
    starts[-1] = 2.0**128
    # The bits of negative numbers, in the upper half of the bins, grow with the magnitude.
    order = np.concatenate([np.arange(finite)[::-1] + BINS // 2, np.arange(finite)])
    return order, np.concatenate([-starts[:0:-1], starts])


_ORDER, _EDGES = _bin_edges()


def histogram(counts: np.ndarray, low: float, high: float, resolution: int = 64) -> Histogram:
    """Turn the bin counts of a site into a histogram of at most `resolution` bins; of none without values.

    Neighbouring bins are joined until each is about `1 / resolution` of the range wide: a chart cannot show the
    hundreds of bins close to zero, and the file would hold them for every site and step. An empty stretch between two
    bins that hold values is one bin, however wide: a chart draws it alike.

    The first and the last edge are `low` and `high`, the smallest and the largest finite value.
    """
    ordered = counts[_ORDER].astype(np.float64)
    if not ordered.any():
        return Histogram(np.zeros(1), ordered[:0])
    cuts = 2 * (low / 2 + np.arange(1, resolution) / resolution * (high / 2 - low / 2))  # the range may exceed float64
    starts = np.unique(np.append(0, np.searchsorted(_EDGES, cuts)))
    starts = starts[starts < len(_ORDER)]
    sums = np.add.reduceat(ordered, starts)
    is_kept = sums > 0
    last = np.flatnonzero(is_kept)[-1]
    is_kept[1 : last + 1] |= is_kept[:last]  # the first that is empty after one that is not
    edges = np.append(_EDGES[starts[is_kept]].clip(low, high), high)
    edges[0] = low
    return Histogram(edges, sums[is_kept])


def quantile(counts: np.ndarray, low: float, high: float, share: float) -> float:
    """Estimate a quantile of the counted values, as `torch.quantile` with linear interpolation; NaN without values.

    Each of the two values that it lies between is taken as the middle of its bin, or as 0 in the two bins next to 0.
    So the error is at most half the width of these bins: 1/32 of the larger magnitude, or 6e-40 near 0. Beyond the
    range of float32 the result only lies between `low` and `high`.
    """
    ends = np.cumsum(counts[_ORDER])
    if not ends[-1]:
        return math.nan
    place = share * (float(ends[-1]) - 1)
    rank = math.floor(place)
    lower, upper = (_middle(np.searchsorted(ends, each, side="right").item(), low, high) for each in (rank, rank + 1))
    return lower + (place - rank) * (upper - lower) if place > rank else lower


def _middle(place: int, low: float, high: float) -> float:
    """Return the middle of a bin, or 0 for the two bins next to 0, clipped to `low` and `high`."""
    is_next_to_zero = place in (len(_ORDER) // 2 - 1, len(_ORDER) // 2)
    middle = 0.0 if is_next_to_zero or place == len(_ORDER) else (_EDGES[place] + _EDGES[place + 1]).item() / 2
    return min(max(middle, low), high)


def count_below(counts: np.ndarray, limit: float) -> float:
    """Return how many finite values are smaller in magnitude than a limit, which is an edge of a bin."""
    bins = int(np.float32(limit).view(np.uint32)) >> SHIFT
    return float(counts[:bins].sum() + counts[BINS // 2 : BINS // 2 + bins].sum())
