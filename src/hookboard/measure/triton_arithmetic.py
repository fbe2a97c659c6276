"""The arithmetic of the Triton kernels.

The numbers are exact to 1e-6 by these means:

- **Range.** Values are multiplied by a power of two, which is exact, such that the largest magnitude that the program
  has met lies in [1, 2) (or a little above, at the very end of the range). So no square overflows or vanishes.
- **Sums** of a tile are float64 where the card adds it at half the speed of float32. Other cards have a 64th of that
  speed: there a sum is a pair of float32, `high + low`, which together hold 48 bits. Pairs are added by the exact sum
  of two numbers (Knuth, "The Art of Computer Programming" 2, 4.2.2; Dekker, "A floating-point technique for extending
  the available precision", 1971): `low` collects what each addition rounds away.
- **Variance.** The squares are those of the differences from the tile's own mean, computed while the tile is still in
  registers. The mean is rounded to the type of the values; what that changes is subtracted again. So a standard
  deviation of 0.1 about a mean of 1e4 is right.
- **Merging** tiles, and then programs, is that of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
  for computing sample variances", 1979, in float64.
"""

# mypy: ignore-errors
# ruff: noqa: N803
# What runs in a kernel has no types, and its constants are written in capitals, as Triton's own are.

import triton
import triton.language as tl


@triton.jit
def two_sum(a_high, a_low, b_high, b_low):
    """Return the sum of two pairs: the high parts exactly, what is rounded away added to the low parts."""
    high = a_high + b_high
    b = high - a_high
    rounded_away = (a_high - (high - b)) + (b_high - b)
    return high, a_low + b_low + rounded_away


@triton.jit
def sum_of(x, PAIRS: tl.constexpr):
    """Return the sum over the rows of a tile, float64."""
    if PAIRS:
        high, low = tl.reduce((x, tl.zeros_like(x)), 0, two_sum)
        return high.to(tl.float64) + low.to(tl.float64)
    return tl.sum(x.to(tl.float64), 0)


@triton.jit
def factor_for(size):
    """Return the power of two that brings a magnitude into [1, 2), as far as it is a normal number."""
    size = tl.abs(size)  # the larger of 0 and -0 may be -0, whose sign is a bit beside the exponent
    if size.dtype == tl.float64:
        exponent = size.to(tl.int64, bitcast=True) >> 52
        factor = (tl.maximum(2046 - exponent, 1) << 52).to(tl.float64, bitcast=True)
    else:
        exponent = size.to(tl.int32, bitcast=True) >> 23
        factor = (tl.maximum(254 - exponent, 1) << 23).to(tl.float32, bitcast=True)
    return factor


@triton.jit
def moments(scaled, is_finite, here, PAIRS: tl.constexpr):
    """Return the sum, the mean and the sum of squares about the mean of a tile's finite values; all float64."""
    wide: tl.constexpr = scaled.dtype
    one_by = 1.0 / tl.maximum(here, 1).to(wide)
    many = here.to(tl.float64)
    total = sum_of(scaled, PAIRS)
    # The mean in the type of the values, corrected once so that it is rounded well; `rest` is what it lacks.
    mean = total.to(wide) * one_by
    mean += (total - many * mean.to(tl.float64)).to(wide) * one_by
    rest = total - many * mean.to(tl.float64)
    away = tl.where(is_finite, scaled - mean[None, :], 0.0)
    squares = sum_of(away * away, PAIRS) if PAIRS else tl.sum(away.to(tl.float64) * away.to(tl.float64), 0)
    correction = rest * one_by.to(tl.float64)
    return total, mean.to(tl.float64) + correction, tl.maximum(squares - rest * correction, 0.0)


@triton.jit
def joined(mean, squares, count, tile_mean, tile_squares, here, wide: tl.constexpr):
    """Return the mean and the squares about it of `count` values and of `here` more, by Chan's formula."""
    # The shares may be of the values' type: the error of a mean is that of its distance here.
    before = count.to(wide)
    share = here.to(wide) / tl.maximum(before + here.to(wide), 1.0)
    distance = tile_mean - mean
    squares += tile_squares + distance * distance * (before * share).to(tl.float64)
    return mean + distance * share.to(tl.float64), squares
