"""Histograms with fixed edges: they merge by adding integers, whatever the range and with NaN inside."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hookboard.measure.moments import BLOCK, Scratch, _native

MANTISSA_BITS = 4
"""Sixteen bins for each power of two: none is wider than 1/16 of its value (TensorBoard's own grow by 1/10)."""

SHIFT = 23 - MANTISSA_BITS
"""Bits of a float32 that are dropped: its sign, 8 bits of exponent and the rest of the mantissa name its bin."""

BINS = 1 << (32 - SHIFT)
"""Over the whole range of float32: no value is clipped."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between ascending edges, of the finite values of one site.

    Args:
        edges: shape (n + 1,), float64; the first and last are the smallest and the largest value.
        counts: shape (n,), float64.
    """

    edges: np.ndarray
    counts: np.ndarray


def count_into(counts: Tensor, values: Tensor, implicit_zeros: int, scratch: Scratch) -> None:
    """Add the bins of `values` to `counts`.

    A value belongs to the bin that the first bits of its float32 form name (float64 is rounded to float32 first):
    two values share a bin if they have the same sign and exponent and the same leading bits of mantissa. NaN and
    infinities have bins of their own, which `histogram` leaves out.

    Args:
        counts: shape (BINS,), int64, changed in place.
        values: shape (n,), any real dtype.
        implicit_zeros: zeros that belong to the tensor but are not in `values`.
        scratch: memory to work in.
    """
    for block in values.split(BLOCK):
        if counts.device.type == "cpu":
            single = block.contiguous()
            if block.dtype is not torch.float32:
                single = scratch.take("single", torch.float32, block.numel()).copy_(block)
            if _native is not None:
                _native.count_into(counts.data_ptr(), single.data_ptr(), single.numel())
                continue
            bins = scratch.take("bins", torch.int32, block.numel())
            torch.bitwise_right_shift(single.view(torch.int32), SHIFT, out=bins)
            counts += torch.bincount(bins.bitwise_and_(BINS - 1), minlength=BINS)
        else:
            count_without_waiting(counts, block, 1)
    counts[0] += implicit_zeros


def count_without_waiting(counts: Tensor, values: Tensor, weight: Tensor | int) -> None:
    """Add the bins of `values`, of any shape, by tensor operations of which the host reads nothing back.

    Args:
        counts: shape (BINS,), int64, changed in place.
        values: real, of any dtype and shape.
        weight: what each value adds to its bin.
    """
    # bincount would make the host wait for the device.
    bins = (values.float().reshape(-1).view(torch.int32) >> SHIFT) & (BINS - 1)
    counts.index_add_(0, bins, (counts.new_ones(1) * weight).expand(bins.numel()))


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

    Args:
        counts: shape (BINS,), as `count_into` left them.
        low: the smallest finite value; it becomes the first edge.
        high: the largest finite value; it becomes the last edge.
        resolution: how many bins the range is cut into, about, at most.

    Example:
        >>> counts = torch.zeros(BINS, dtype=torch.long)
        >>> count_into(counts, torch.tensor([0.0, 0.0, 1.0, float("nan")]), 0, Scratch())
        >>> histogram(counts.numpy(), low=0.0, high=1.0).counts.sum()
        np.float64(3.0)
    """
    ordered = counts[_ORDER].astype(np.float64)
    filled = np.flatnonzero(ordered)
    if not len(filled):
        return Histogram(np.zeros(1), np.zeros(0))
    first, last = filled[0], filled[-1]
    edges = np.clip(_EDGES[first : last + 2], low, high)
    ordered = ordered[first : last + 1]
    edges[0], edges[-1] = low, high

    # An edge is kept where it is the first in its share of the range.
    share = np.floor((edges - low) / max((high - low) / resolution, np.finfo(np.float64).tiny))
    kept = np.flatnonzero(np.diff(share, prepend=-1) > 0)
    kept = np.union1d(kept[kept < len(ordered)], [0])
    return Histogram(np.append(edges[kept], edges[-1]), np.add.reduceat(ordered, kept))
