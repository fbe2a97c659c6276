"""What counts in fixed bins tell: a `Histogram`, quantiles. Such counts merge by addition, for any range of values."""

import math
from dataclasses import dataclass

import numpy as np

from hookboard.measure.bins import BINS, MANTISSA_BITS, SHIFT


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between ascending edges, of the finite values of one site.

    Args:
        edges: shape (n + 1,), float64; the first and last are the smallest and the largest value.
        counts: shape (n,), float64.
    """

    edges: np.ndarray
    counts: np.ndarray


def _bin_edges() -> tuple[np.ndarray, np.ndarray]:
    """The order of the finite bins from the lowest to the highest value, and their edges, one more."""
    finite = 255 << MANTISSA_BITS
    starts = (np.arange(finite + 1, dtype=np.uint32) << SHIFT).view(np.float32).astype(np.float64)
    starts[-1] = 2.0**128
    order = np.concatenate([np.arange(finite)[::-1] + BINS // 2, np.arange(finite)])
    return order, np.concatenate([-starts[:0:-1], starts])


_ORDER, _EDGES = _bin_edges()


def histogram(counts: np.ndarray, low: float, high: float, resolution: int = 64) -> Histogram:
    """The histogram behind the counts, ready to be written.

    Neighbouring bins are joined until each is at least `1 / resolution` of the range wide: a chart cannot show the
    hundreds of bins close to zero, and the file would hold them for every site and step.

    The outermost bins of float32's range hold all that is beyond it, up to `low` and `high`.

    Args:
        counts: shape (BINS,), as `measure` left them.
        low: the smallest finite value; it becomes the first edge.
        high: the largest finite value; it becomes the last edge.
        resolution: how many bins the range is cut into, about, at most.

    Example:
        >>> import torch
        >>> from hookboard.measure import measure, plan
        >>> counts = torch.zeros(BINS, dtype=torch.long)
        >>> row = measure(torch.tensor([0.0, 0.0, 1.0, float("nan")]), plan("mean"), counts=counts)
        >>> histogram(counts.numpy(), low=0.0, high=1.0).counts.sum().item()
        3.0
    """
    ordered = counts[_ORDER].astype(np.float64)
    filled = np.flatnonzero(ordered)
    if not len(filled):
        return Histogram(np.zeros(1), np.zeros(0))
    first, last = filled[0], filled[-1]
    edges = np.clip(_EDGES[first : last + 2], low, high)
    ordered = ordered[first : last + 1]
    edges[0], edges[-1] = low, high

    # An edge is kept where it is the first in its share of the range, which is halved: it may exceed float64.
    width = (high / 2 - low / 2) / resolution
    share = np.floor((edges / 2 - low / 2) / max(width, np.finfo(np.float64).tiny))
    kept = np.flatnonzero(np.diff(share, prepend=-1) > 0)
    kept = np.union1d(kept[kept < len(ordered)], [0])
    return Histogram(np.append(edges[kept], edges[-1]), np.add.reduceat(ordered, kept))


def quantile(counts: np.ndarray, low: float, high: float, share: float) -> float:
    """A quantile of the values behind the counts, as `torch.quantile` has it, with linear interpolation.

    Each of the two values that it lies between is taken as the middle of its bin, or as 0 in the two bins next to 0.
    So it is off by at most half the width of their bins: 1/32 of the larger one's magnitude, or 6e-40 near 0. Beyond
    the range of float32 it only lies between `low` and `high`.

    Args:
        counts: shape (BINS,), as `measure` left them.
        low: the smallest finite value.
        high: the largest finite value.
        share: from 0 to 1.

    Returns:
        NaN if no value was counted.
    """
    ends = np.cumsum(counts[_ORDER])
    if not ends[-1]:
        return math.nan
    place = share * (float(ends[-1]) - 1)
    rank = math.floor(place)
    lower, upper = (_middle(np.searchsorted(ends, each, side="right").item(), low, high) for each in (rank, rank + 1))
    return lower + (place - rank) * (upper - lower) if place > rank else lower


def _middle(place: int, low: float, high: float) -> float:
    """The middle of a bin by its place in the order, or what of it lies between the smallest and the largest value."""
    is_next_to_zero = place in (len(_ORDER) // 2 - 1, len(_ORDER) // 2)
    middle = 0.0 if is_next_to_zero or place == len(_ORDER) else (_EDGES[place] + _EDGES[place + 1]).item() / 2
    return min(max(middle, low), high)


def count_below(counts: np.ndarray, limit: float) -> float:
    """How many of the finite values are smaller in magnitude than a limit at an edge of a bin, such as a power of two.

    Args:
        counts: shape (BINS,), as `measure` left them.
        limit: from the smallest normal number of float32 on.
    """
    bins = int(np.float32(limit).view(np.uint32)) >> SHIFT
    return float(counts[:bins].sum() + counts[BINS // 2 : BINS // 2 + bins].sum())
