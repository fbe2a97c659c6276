"""`Histogram`, made from counts in fixed bins. Such counts merge by addition, for any range of values."""

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
