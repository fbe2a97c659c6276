"""Triton kernels that measure a tensor on an accelerator: one read gives its rows and the bins of its histogram.

`rows_of` runs as at most a few hundred programs. Program p takes tile p, p + P, p + 2P ... of the values (P programs)
and keeps one row of `hookboard.measure.FIELDS` for each channel of its tiles; a tensor without channels counts as one
channel. It writes these rows once, when it ends. `merge` turns them into one row for each channel; the rows of a tensor
without channels are merged later, at the flush.

float64 values are measured in float64 throughout. The results for the other types are exact to 1e-6:

- **Range.** Values are multiplied by a power of two, which is exact, so that the largest magnitude the program has met
  lies in [1, 2) (or a little above, at the very end of the range). So no square overflows or underflows.
- **Sums** of a tile are float64 on cards that add float64 at half the speed of float32. Other cards add it at 1/32 or
  1/64 of that speed: there a sum is a pair of float32, `high + low`, which together hold 48 bits. Pairs are added by
  the exact sum of two numbers (Knuth, "The Art of Computer Programming" 2, 4.2.2; Dekker, "A floating-point technique
  for extending the available precision", 1971): `low` collects what each addition rounds away.
- **Variance.** The squares are of the differences from the tile's mean, computed while the tile is still in registers.
  The mean is rounded to the type of the values, and the error this causes is subtracted again. So a standard deviation
  of 0.1 about a mean of 1e4 is right.
- **Merging** of tiles, and then of programs, uses the formula of Chan, Golub and LeVeque ("Updating formulae and a
  pairwise algorithm for computing sample variances", 1979), in float64.

Under TRITON_INTERPRET=1 the same source runs on the CPU.
"""

# mypy: ignore-errors
# ruff: noqa: N803
# What runs in a kernel has no types, and its constants are written in capitals, as Triton's own are.

import triton
import triton.language as tl

WIDTH = tl.constexpr(10)

FLAT = tl.constexpr(0)
"""One channel: the values in the order in which they lie in memory."""

SPREAD = tl.constexpr(1)
"""Each channel is a run of `inner` values, `channels * inner` values from its next run, as in (N, C, H, W)."""

LAST = tl.constexpr(2)
"""The channels of a position lie side by side, as in (N, C) or in channels_last."""

LAST_ALIGNED = tl.constexpr(3)
"""As LAST, and the number of channels is a multiple of 16, so that several are loaded at once."""


@triton.jit
def two_sum(a_high, a_low, b_high, b_low):
    """Return the sum of two numbers that are given as a high and a low part each: high rounded, low with the rest."""
    high = a_high + b_high
    b = high - a_high
    rounded_away = (a_high - (high - b)) + (b_high - b)
    return high, a_low + b_low + rounded_away


@triton.jit
def sum_of(x, PAIRS: tl.constexpr):
    """Return the sum of `x` over its rows, float64; with PAIRS it is added up in pairs of float32."""
    if PAIRS:
        high, low = tl.reduce((x, tl.zeros_like(x)), 0, two_sum)
        return high.to(tl.float64) + low.to(tl.float64)
    return tl.sum(x.to(tl.float64), 0)


@triton.jit
def factor_for(size):
    """Return the power of two that scales a magnitude into [1, 2), as far as that factor is a normal number."""
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
    """Return sum, mean and sum of squares about the mean of the `here` finite values of each channel; all float64."""
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
    """Return mean and squares of `count` values merged with those of a tile of `here` values, by Chan's formula."""
    # The shares may be of the values' type: the error of a mean is that of its distance here.
    before = count.to(wide)
    share = here.to(wide) / tl.maximum(before + here.to(wide), 1.0)
    distance = tile_mean - mean
    squares += tile_squares + distance * distance * (before * share).to(tl.float64)
    return mean + distance * share.to(tl.float64), squares


@triton.jit
def _bins_of(x):
    """Return the bin of each value, as `hookboard.measure.histogram` has it."""
    if x.dtype == tl.float64:
        kept: tl.constexpr = -1 << 48  # the bits that name a bin
        largest: tl.constexpr = 3.4028234663852886e38
        cut = (x.to(tl.int64, bitcast=True) & kept).to(tl.float64, bitcast=True)
        cut = tl.minimum(tl.maximum(cut, -largest), largest)
        single = tl.where(tl.abs(x) < float("inf"), cut, x).to(tl.float32)
    else:
        single = x
    return (single.to(tl.int32, bitcast=True) >> 19) & 8191


@triton.jit
def _count_into(counts, x, is_there):
    """Add a tile's bins to `counts`. Zeros, often many, are added at once: atomic additions to one bin take turns."""
    is_zero = (x == 0) & is_there
    bins = _bins_of(x)
    positive = tl.sum(tl.sum((is_zero & (bins == 0)).to(tl.int32), 0), 0)
    negative = tl.sum(tl.sum((is_zero & (bins != 0)).to(tl.int32), 0), 0)
    tl.atomic_add(counts, positive.to(tl.int64), mask=positive > 0, sem="relaxed")
    tl.atomic_add(counts + 4096, negative.to(tl.int64), mask=negative > 0, sem="relaxed")
    one = tl.full(bins.shape, 1, tl.int64)
    tl.atomic_add(counts + bins, one, mask=is_there & (x != 0), sem="relaxed")


@triton.jit
def _count_others(nan, posinf, neginf, x, is_there):
    """Return the three counts of each channel, with a tile's numbers of NaN, +Inf and -Inf added to them."""
    nan += tl.sum(((x != x) & is_there).to(tl.int32), 0)
    posinf += tl.sum(((x == float("inf")) & is_there).to(tl.int32), 0)
    neginf += tl.sum(((x == float("-inf")) & is_there).to(tl.int32), 0)
    return nan, posinf, neginf


@triton.jit
def _offsets(start, elements, channel, channels, inner, LAYOUT: tl.constexpr, ROWS: tl.constexpr):
    """Return the offsets of a tile's values in memory, int64, and which exist; both [ROWS, channels of the tile]."""
    row = tl.arange(0, ROWS)
    is_there = (start + row < elements)[:, None] & (channel < channels)[None, :]
    if LAYOUT == FLAT:
        offsets = (start + row)[:, None] + channel[None, :] * 0
    elif LAYOUT == SPREAD:
        # Only one division of 64 bits for each tile; those for each value have 32.
        run = start // inner
        within = (start - run * inner).to(tl.int32) + row
        runs = within // inner.to(tl.int32)
        place = (run + runs) * (channels * inner) + (within - runs * inner.to(tl.int32))
        offsets = place[:, None] + (channel * inner)[None, :]
    else:
        width = tl.multiple_of(channels, 16) if LAYOUT == LAST_ALIGNED else channels
        offsets = ((start + row) * width)[:, None] + channel[None, :]
    return offsets, is_there


@triton.jit
def _load(at, is_there, scale, HAS_SCALE: tl.constexpr, wide: tl.constexpr):
    """Return the values of a tile, divided by the scale if there is one."""
    x = tl.load(at, mask=is_there, other=0.0).to(wide)
    if HAS_SCALE:
        divisor = tl.load(scale).to(wide)
        x = tl.div_rn(x, divisor) if wide == tl.float32 else x / divisor
    return x


@triton.jit
def _extremes(x, is_finite):
    """Return the smallest and the largest finite value of each channel of a tile; inf and -inf if it has none."""
    low = tl.min(tl.where(is_finite, x, float("inf")), 0)
    return low, tl.max(tl.where(is_finite, x, float("-inf")), 0)


@triton.jit
def _store(at, is_there, factor, count, sums, others):
    """Write rows.

    Args:
        at: pointers to the first number of each row.
        is_there: False for channels beyond the last one, whose rows are not written.
        factor: the values were multiplied by it before they were summed.
        count: number of finite values.
        sums: three sums: of the values, of the squares about their mean, of the absolute values.
        others: the columns from the fifth on.
    """
    many, unit = tl.maximum(count, 1).to(tl.float64), 1.0 / factor.to(tl.float64)
    tl.store(at, count.to(tl.float64), mask=is_there)
    tl.store(at + 1, sums[0] / many * unit, mask=is_there)
    tl.store(at + 2, tl.sqrt(sums[1] / many) * unit, mask=is_there)
    tl.store(at + 3, sums[2] / many * unit, mask=is_there)
    for column in tl.static_range(4, WIDTH):
        tl.store(at + column, others[column - 4].to(tl.float64), mask=is_there)


@triton.jit(do_not_specialize=["elements", "channels", "inner"])
def rows_of(
    values,
    scale,
    counts,
    rows,
    elements: tl.int64,
    channels: tl.int64,
    inner: tl.int64,
    LAYOUT: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAIRS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_ABS_MEAN: tl.constexpr,
    HAS_BINS: tl.constexpr,
):
    """Measure a tensor; grid (programs, groups of channels).

    Args:
        values: float16, bfloat16, float32 or float64, all in one run of memory.
        scale: float32, one number that the values are divided by; not read without HAS_SCALE.
        counts: int64, (BINS,): the bins are added to it; not touched without HAS_BINS.
        rows: float64, (programs, channels, WIDTH): is written.
        elements: the number of values in each channel.
        channels: how many there are.
        inner: the length of a channel's runs, below 2**30; for SPREAD.
        LAYOUT: how the channels lie in memory.
        ROWS: values of each channel in a tile.
        CHANNELS: channels in a tile.
        PAIRS: whether sums are pairs of float32.
        HAS_SCALE: whether the values are divided.
        HAS_ABS_MEAN: whether that column is filled; else it is 0.
        HAS_BINS: whether bins are counted.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    channel = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    wide: tl.constexpr = tl.float64 if values.dtype.element_ty == tl.float64 else tl.float32

    count = tl.zeros([CHANNELS], tl.int64)
    zeros, nan, posinf, neginf = count, count, count, count
    low, high = tl.full([CHANNELS], float("inf"), wide), tl.full([CHANNELS], float("-inf"), wide)
    # In units of 1 / factor: the sum, the sum of magnitudes, the mean, the squares about it.
    factor = factor_for(tl.zeros([CHANNELS], wide))
    total = tl.zeros([CHANNELS], tl.float64)
    magnitudes, mean, squares = total, total, total

    start = program.to(tl.int64) * ROWS
    while start < elements:
        offsets, is_there = _offsets(start, elements, channel, channels, inner, LAYOUT, ROWS)
        x = _load(values + offsets, is_there, scale, HAS_SCALE, wide)
        is_finite = (tl.abs(x) < float("inf")) & is_there
        if HAS_BINS:
            _count_into(counts, x, is_there)

        # Both counts in one sum: neither reaches 2**16.
        both = tl.sum(is_finite.to(tl.int32) + (((x == 0) & is_there).to(tl.int32) << 16), 0)
        here = both & 65535
        zeros += both >> 16
        if tl.max(tl.where(channel < channels, tl.minimum(elements - start, ROWS) - here, 0), 0) > 0:
            nan, posinf, neginf = _count_others(nan, posinf, neginf, x, is_there)

        tile_low, tile_high = _extremes(x, is_finite)
        low, high = tl.minimum(low, tile_low), tl.maximum(high, tile_high)
        smaller = tl.minimum(factor, factor_for(tl.maximum(tl.maximum(-low, high), 0.0)))
        change = (smaller / factor).to(tl.float64)
        factor = smaller
        scaled = tl.where(is_finite, x, 0.0) * factor[None, :]
        tile_total, tile_mean, about_mean = moments(scaled, is_finite, here, PAIRS)
        mean, squares = joined(mean * change, squares * change * change, count, tile_mean, about_mean, here, wide)
        total = total * change + tile_total
        if HAS_ABS_MEAN:
            magnitudes = magnitudes * change + sum_of(tl.abs(scaled), PAIRS)
        count += here
        start += programs.to(tl.int64) * ROWS

    at = rows + (program.to(tl.int64) * channels + channel) * WIDTH
    columns = (zeros, nan, posinf, neginf, low, high)
    _store(at, channel < channels, factor, count, (total, squares, magnitudes), columns)


@triton.jit(do_not_specialize=["count", "channels"])
def merge(parts, rows, count: tl.int32, channels: tl.int64, PARTS: tl.constexpr):
    """Merge the rows that the programs of `rows_of` wrote; grid (channels,).

    Args:
        parts: float64, (count, channels, WIDTH).
        rows: float64, (channels, WIDTH): is written.
        count: how many programs there were, at most PARTS.
        channels: how many channels there are.
        PARTS: a power of two, at least `count`.
    """
    channel = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    is_there = part < count
    at = parts + (part * channels + channel) * WIDTH
    to = rows + channel * WIDTH
    many = tl.load(at, mask=is_there, other=0.0)
    low = tl.min(tl.load(at + 8, mask=is_there, other=float("inf")), 0)
    high = tl.max(tl.load(at + 9, mask=is_there, other=float("-inf")), 0)
    total = tl.sum(many, 0)
    at_least_one = tl.maximum(total, 1.0)
    factor = factor_for(tl.maximum(tl.maximum(-low, high), 0.0))
    unit = 1.0 / factor
    means = tl.load(at + 1, mask=is_there, other=0.0) * factor
    deviations = tl.load(at + 2, mask=is_there, other=0.0) * factor
    magnitudes = tl.load(at + 3, mask=is_there, other=0.0) * factor
    mean = tl.sum(many * means, 0) / at_least_one
    away = means - mean
    squares = tl.sum(many * (deviations * deviations + away * away), 0)
    tl.store(to, total)
    tl.store(to + 1, mean * unit)
    tl.store(to + 2, tl.sqrt(squares / at_least_one) * unit)
    tl.store(to + 3, tl.sum(many * magnitudes, 0) / at_least_one * unit)
    for column in tl.static_range(4, 8):
        tl.store(to + column, tl.sum(tl.load(at + column, mask=is_there, other=0.0), 0))
    tl.store(to + 8, low)
    tl.store(to + 9, high)
