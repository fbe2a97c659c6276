"""Which bin of a histogram a value belongs to. The edges are fixed, so bins merge by adding integers."""

import math

import torch
from torch import Tensor

MANTISSA_BITS = 4
"""Sixteen bins for each power of two: none is wider than 1/16 of its value (TensorBoard's own grow by 1/10)."""

SHIFT = 23 - MANTISSA_BITS
"""Bits of a float32 that are dropped: its sign, 8 bits of exponent and the rest of the mantissa name its bin."""

BINS = 1 << (32 - SHIFT)
"""Over the whole range of float32. NaN and infinities have bins of their own, which no histogram shows."""

LARGEST = torch.finfo(torch.float32).max

_KEPT_BITS = -1 << (52 - MANTISSA_BITS)
"""Bits of a float64 that name its bin."""


def as_single(values: Tensor) -> Tensor:
    """Return the values as float32, each in the same bin as before.

    To round could lift a float64 or an integer over an edge, so it is cut to the bits that name its bin. What is
    beyond the range of float32 goes into the outermost bin, whose outer edge is the largest value.

    Args:
        values: real, of any dtype and shape, without a negative bit.
    """
    if values.dtype is torch.float64 or not values.dtype.is_floating_point:
        wide = values.double()
        cut = (wide.contiguous().view(torch.int64) & _KEPT_BITS).view(torch.float64)
        inside = cut.clamp(-LARGEST, LARGEST)
        # An infinity stays one, and so does NaN: cutting may turn NaN into an infinity, which counts as little.
        values = torch.where(wide.abs() < math.inf, inside, wide)
    return values.float()


def bins_of(single: Tensor) -> Tensor:
    """Return the bin of each float32 value, shape (n,), int32."""
    return (single.contiguous().view(torch.int32).reshape(-1) >> SHIFT) & (BINS - 1)
