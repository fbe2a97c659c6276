"""Triton kernels that measure tensors on an accelerator: one launch and one read for all that is wanted of a tensor.

`measure` measures one tensor, `measure_many` any number of them in one launch. Both merge what they find into rows of
`hookboard.measure.FIELDS` that stand in memory already, and add to the bins of a histogram. So a module that is called
many times in a step needs no memory for each call, and nothing is left to be done at the flush.

A tensor lies in memory in one of four layouts, and each program measures tiles of it:

| layout | the channels | a tile |
|---|---|---|
| WHOLE | none | `ROWS` groups of `WIDE` values, one after the other |
| FIRST | each is one run of `inner` values, as in a weight (out, in) | the same, within one channel |
| RUNS | each is `outer` runs of `inner` values, as in (N, C, H, W) | the same, within one channel |
| LAST | side by side, as in (N, T, C) or channels_last | `ROWS` positions of `WIDE` channels |

**Fast.** A group is what a thread loads at once, 16 bytes. The loop over tiles has no barrier and moves nothing between
threads: each thread keeps sums of its own, which are reduced once, after the loop.

**True.** The results are exact to 1e-6 whatever the values:

- The squares of a group are of the differences from its own mean, in float32, and in units of a power of two that
  brings its largest magnitude into [1, 2), so that none overflows or underflows. All that follows is float64, in which
  no square of a float32 can overflow. So a standard deviation of 0.1 about a mean of 1e4 is right.
- A mean may cancel, so sums are exact: in float64, or on cards where that is slow in pairs of float32, `high + low`,
  which hold 48 bits. Pairs are added by the exact sum of two numbers (Knuth, "The Art of Computer Programming" 2,
  4.2.2; Dekker, "A floating-point technique for extending the available precision", 1971).
- Sums over groups are about a pivot, the mean of the first tile that has a finite value. The square of its distance
  from the mean of all N values is at most N/T times their variance, for a tile of T values: so what cancels in
  `squares - total**2 / n` costs at most a factor N/T in precision, of the 1e16 that float64 has.
- Rows are merged by the formula of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for computing
  sample variances", 1979).

**One launch.** Each program writes the rows of its channels into `scratch` and counts itself in `counters`. The last
one of a group of channels merges their rows, and the last of all merges those of the tensor (as in "split K" matrix
products). The counters are 0 again when the launch ends.

Under TRITON_INTERPRET=1 the same source runs on the CPU.
"""

# mypy: ignore-errors
# ruff: noqa: D417, N803, N806, RUF059, SIM102
# What runs in a kernel has no types, and its constants are written in capitals, as Triton's own are. An `if` on one is
# decided when the kernel is compiled, and so is not joined with one on a number.

import triton
import triton.language as tl

WIDTH = tl.constexpr(10)

BINS = tl.constexpr(8192)

WHOLE = tl.constexpr(0)
FIRST = tl.constexpr(1)
RUNS = tl.constexpr(2)
LAST = tl.constexpr(3)

JOB = tl.constexpr(14)
"""The numbers of a tensor in the table of `measure_many`, in the order in which it reads them."""


@triton.jit
def _load(
    values, minus, has_minus, scale, start, rows, inner, channel, channels, LAYOUT: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr, IS_ALIGNED: tl.constexpr, HAS_MINUS: tl.constexpr, HAS_SCALE: tl.constexpr
):  # fmt: skip
    """Load rows `start` to `start + ROWS` of a tensor, or of one of its channels.

    Returns the values in float32, [ROWS, WIDE], NaN where the tensor has none; and the number of values in each row
    that it has, [ROWS, 1] (for LAST, whether it has the row).
    """
    row = start + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    # A load is as wide as the compiler can prove: it must see that addresses are multiples of 16 bytes.
    vector: tl.constexpr = 128 // values.dtype.element_ty.primitive_bitwidth
    if LAYOUT == LAST:
        width = channels // vector * vector if IS_ALIGNED else channels
        offsets = (row * width)[:, None] + channel[None, :]
        is_full = IS_ALIGNED and ((start + ROWS <= rows) & (tl.max(channel, 0) < channels))
    elif LAYOUT == RUNS:
        length = (inner + (WIDE - 1)) // WIDE
        run = start // length  # the one division of 64 bits of a tile
        within = (start - run * length).to(tl.int32) + tl.arange(0, ROWS)
        runs = within // length.to(tl.int32)
        place = (within - runs * length.to(tl.int32)) * WIDE
        apart = inner // WIDE * WIDE if IS_ALIGNED else inner
        offsets = ((run + runs) * (channels * apart) + place)[:, None] + column[None, :]
        is_full = IS_ALIGNED and (start + ROWS <= rows)
    else:
        offsets = (row * WIDE)[:, None] + column[None, :]
        is_full = (start + ROWS) * WIDE <= inner
    # A mask, even one that is True everywhere, would make each value a load of its own.
    if is_full:
        x = tl.load(values + offsets).to(tl.float32)
        there = tl.full([ROWS, 1], 1 if LAYOUT == LAST else WIDE, tl.int32)
        if HAS_MINUS:
            if has_minus:
                x -= tl.load(minus + offsets).to(tl.float32)
    else:
        if LAYOUT == LAST:
            is_there = (row < rows)[:, None] & (channel < channels)[None, :]
            there = (row < rows).to(tl.int32)[:, None]
        else:
            is_there = ((place if LAYOUT == RUNS else row * WIDE)[:, None] + column[None, :] < inner) & (row < rows)[
                :, None
            ]
            there = tl.sum(is_there.to(tl.int32), 1)[:, None]
        x = tl.load(values + offsets, mask=is_there, other=float("nan")).to(tl.float32)
        if HAS_MINUS:
            if has_minus:
                x -= tl.load(minus + offsets, mask=is_there, other=0.0).to(tl.float32)
    if HAS_SCALE:
        x = tl.div_rn(x, tl.load(scale))
    return x, there


@triton.jit
def _mean(x, LAYOUT: tl.constexpr):
    """Return the mean of the finite values of a tile, for LAST of each channel, float64, 0 if none is; and how many."""
    is_finite = tl.abs(x) < float("inf")
    clean, many = tl.where(is_finite, x, 0.0).to(tl.float64), is_finite.to(tl.int32)
    if LAYOUT != LAST:
        clean, many = tl.sum(clean, 1)[:, None], tl.sum(many, 1)[:, None]
    found = tl.sum(many, 0)
    return tl.sum(clean, 0) / tl.maximum(found, 1).to(tl.float64), found


@triton.jit
def two_sum(a_high, a_low, b_high, b_low):
    """Return the sum of two numbers that are given as a high and a low part each: high rounded, low with the rest."""
    high = a_high + b_high
    b = high - a_high
    rounded_away = (a_high - (high - b)) + (b_high - b)
    return high, a_low + b_low + rounded_away


@triton.jit
def _sums(x, is_finite, LAYOUT: tl.constexpr, PAIRS: tl.constexpr):
    """Return of the finite values of each group, [ROWS, 1]; for LAST each value is a group, [ROWS, WIDE].

    Their number; their sum; about where they lie, and the sum of squares of their differences from there; the sum of
    their magnitudes; the smallest and the largest.
    """
    clean = tl.where(is_finite, x, 0.0)
    low, high = tl.where(is_finite, x, float("inf")), tl.where(is_finite, x, float("-inf"))
    if LAYOUT == LAST:
        many, centre = is_finite.to(tl.int32), clean.to(tl.float64)
        total, squares, magnitudes = centre, tl.zeros_like(centre), tl.abs(centre)
    else:
        # 2**(k - 127) brings the largest magnitude into [1, 2), as far as it is a normal number; `unit` is its inverse.
        k = tl.maximum(254 - (tl.max(tl.abs(clean), 1).to(tl.int32, bitcast=True) >> 23), 1)[:, None]
        unit = ((1150 - k).to(tl.int64) << 52).to(tl.float64, bitcast=True)
        scaled = clean * (k << 23).to(tl.float32, bitcast=True)
        many = tl.sum(is_finite.to(tl.int32), 1)[:, None]
        mean = tl.sum(scaled, 1)[:, None] / tl.maximum(many, 1).to(tl.float32)
        away = tl.where(is_finite, scaled - mean, 0.0)
        centre = mean.to(tl.float64) * unit
        if PAIRS:
            exact, rounded_away = tl.reduce((scaled, tl.zeros_like(scaled)), 1, two_sum)
            total = (exact.to(tl.float64) + rounded_away.to(tl.float64))[:, None] * unit
        else:
            total = tl.sum(scaled.to(tl.float64), 1)[:, None] * unit
        squares = tl.sum(away * away, 1)[:, None].to(tl.float64) * unit * unit
        magnitudes = tl.sum(tl.abs(scaled), 1)[:, None].to(tl.float64) * unit
        low, high = tl.min(low, 1)[:, None], tl.max(high, 1)[:, None]
    return many, total, centre, squares, magnitudes, low, high


@triton.jit
def _merged(parts, count, apart, is_there, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """Merge the `count` rows of each channel that programs have written: row i of channel c is row `i * apart + c`.

    Returns as columns, [CHANNELS]: how many finite values there are; their sum, the squares of their differences from
    their mean, and their magnitudes; zeros, NaN, infinities above and below; the smallest and the largest value.
    PARTS rows of each are read at once.
    """
    # Each thread adds up rows of its own; only what it has in the end goes to others. A loop that reduced each time
    # would be many times slower, and no other program has anything to do meanwhile.
    part = tl.arange(0, PARTS)
    first = parts + (part[:, None].to(tl.int64) * apart + tl.arange(0, CHANNELS)[None, :]) * WIDTH
    many = tl.zeros([PARTS, CHANNELS], tl.float64)
    total, magnitudes, zeros, nan, posinf, neginf = many, many, many, many, many, many
    low, high = many + float("inf"), many + float("-inf")
    # Other programs have written them: `.cg` passes by the cache of this multiprocessor.
    for start in range(0, count, PARTS):
        at, mask = first + start * apart * WIDTH, (start + part < count)[:, None] & is_there[None, :]
        numbers = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
        many += numbers
        total += numbers * tl.load(at + 1, mask=mask, other=0.0, cache_modifier=".cg")
        magnitudes += numbers * tl.load(at + 3, mask=mask, other=0.0, cache_modifier=".cg")
        zeros += tl.load(at + 4, mask=mask, other=0.0, cache_modifier=".cg")
        nan += tl.load(at + 5, mask=mask, other=0.0, cache_modifier=".cg")
        posinf += tl.load(at + 6, mask=mask, other=0.0, cache_modifier=".cg")
        neginf += tl.load(at + 7, mask=mask, other=0.0, cache_modifier=".cg")
        low = tl.minimum(low, tl.load(at + 8, mask=mask, other=float("inf"), cache_modifier=".cg"))
        high = tl.maximum(high, tl.load(at + 9, mask=mask, other=float("-inf"), cache_modifier=".cg"))
    found, sum_of_all = tl.sum(many, 0), tl.sum(total, 0)
    mean, squares = sum_of_all / tl.maximum(found, 1.0), tl.zeros([PARTS, CHANNELS], tl.float64)
    for start in range(0, count, PARTS):
        at, mask = first + start * apart * WIDTH, (start + part < count)[:, None] & is_there[None, :]
        numbers = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
        away = tl.load(at + 1, mask=mask, other=0.0, cache_modifier=".cg") - mean[None, :]
        spread = tl.load(at + 2, mask=mask, other=0.0, cache_modifier=".cg")
        squares += numbers * (spread * spread + away * away)
    return (
        found, sum_of_all, tl.sum(squares, 0), tl.sum(magnitudes, 0), tl.sum(zeros, 0), tl.sum(nan, 0),
        tl.sum(posinf, 0), tl.sum(neginf, 0), tl.min(low, 0), tl.max(high, 0)
    )  # fmt: skip


@triton.jit
def _of_all(many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high):
    """Merge the rows of some channels, as `_merged` returns them, into one, each column of shape [1]."""
    found, sum_of_all = tl.sum(many, 0), tl.sum(total, 0)
    away = total / tl.maximum(many, 1.0) - sum_of_all / tl.maximum(found, 1.0)
    one = tl.zeros([1], tl.float64)
    return (
        one + found, one + sum_of_all, one + tl.sum(squares + many * away * away, 0), one + tl.sum(magnitudes, 0),
        one + tl.sum(zeros, 0), one + tl.sum(nan, 0), one + tl.sum(posinf, 0), one + tl.sum(neginf, 0),
        one + tl.min(low, 0), one + tl.max(high, 0)
    )  # fmt: skip


@triton.jit
def _write(
    to, is_there, is_fresh, many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high
):  # fmt: skip
    """Merge what `_merged` returns into the rows at `to`, [CHANNELS] pointers; fresh rows hold nothing yet."""
    has_begun = is_there & (many.to(tl.int64) * 0 + is_fresh == 0)
    before, own = tl.load(to, mask=has_begun, other=0.0), total / tl.maximum(many, 1.0)
    centre, spread = tl.load(to + 1, mask=has_begun, other=0.0), tl.load(to + 2, mask=has_begun, other=0.0)
    number = tl.maximum(before + many, 1.0)
    mean = (before * centre + total) / number  # not times its inverse: the mean of equal values is that value
    squares += many * (own - mean) * (own - mean) + before * (spread * spread + (centre - mean) * (centre - mean))
    magnitudes += before * tl.load(to + 3, mask=has_begun, other=0.0)
    tl.store(to, before + many, mask=is_there)
    tl.store(to + 1, mean, mask=is_there)
    tl.store(to + 2, tl.sqrt(squares / number), mask=is_there)
    tl.store(to + 3, magnitudes / number, mask=is_there)
    tl.store(to + 4, zeros + tl.load(to + 4, mask=has_begun, other=0.0), mask=is_there)
    tl.store(to + 5, nan + tl.load(to + 5, mask=has_begun, other=0.0), mask=is_there)
    tl.store(to + 6, posinf + tl.load(to + 6, mask=has_begun, other=0.0), mask=is_there)
    tl.store(to + 7, neginf + tl.load(to + 7, mask=has_begun, other=0.0), mask=is_there)
    tl.store(to + 8, tl.minimum(low, tl.load(to + 8, mask=has_begun, other=float("inf"))), mask=is_there)
    tl.store(to + 9, tl.maximum(high, tl.load(to + 9, mask=has_begun, other=float("-inf"))), mask=is_there)


@triton.jit
def _pivot(
    values, minus, has_minus, scale, block, rows, inner, channel, channels, programs, LAYOUT: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr, IS_ALIGNED: tl.constexpr, HAS_MINUS: tl.constexpr, HAS_SCALE: tl.constexpr
):  # fmt: skip
    """Return the mean of the first tile of a program, [CHANNELS]; of a later one if it has no finite value there."""
    x, there = _load(
        values, minus, has_minus, scale, block, rows, inner, channel, channels, LAYOUT, ROWS, WIDE, IS_ALIGNED,
        HAS_MINUS, HAS_SCALE
    )  # fmt: skip
    pivot, found = _mean(x, LAYOUT)
    if LAYOUT == LAST:
        found = tl.where(channel < channels, found, 1)
    step = programs.to(tl.int64) * ROWS
    while (tl.min(found, 0) == 0) & (block + step < rows):
        block += step
        x, there = _load(
            values, minus, has_minus, scale, block, rows, inner, channel, channels, LAYOUT, ROWS, WIDE, IS_ALIGNED,
            HAS_MINUS, HAS_SCALE
        )  # fmt: skip
        later, more = _mean(x, LAYOUT)
        pivot, found = tl.where(found == 0, later, pivot), found + more
    return pivot


@triton.jit
def _over_tiles(
    values, minus, has_minus, scale, has_counts, rows, inner, channel, channels, program, programs, own_bins,
    LAYOUT: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, TILES: tl.constexpr, IS_ALIGNED: tl.constexpr,
    PAIRS: tl.constexpr, HAS_MINUS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_ABS_MEAN: tl.constexpr,
    HAS_BINS: tl.constexpr, COPIES: tl.constexpr
):  # fmt: skip
    """Return the sums of each thread over its tiles, [ROWS, CHANNELS], the pivot that they are about, and the bins."""
    CHANNELS: tl.constexpr = WIDE if LAYOUT == LAST else 1
    total = tl.zeros([ROWS, CHANNELS], tl.float64)
    squares, magnitudes = total, total
    low, high = (
        tl.full([ROWS, CHANNELS], float("inf"), tl.float32),
        tl.full([ROWS, CHANNELS], float("-inf"), tl.float32),
    )
    seen = tl.zeros([ROWS, CHANNELS], tl.int32)
    zeros_posinf, neginf = seen, seen  # zeros in the lower 16 bits: no thread has as many tiles
    elements = tl.zeros([ROWS, 1], tl.int32)
    bins = tl.zeros([BINS if HAS_BINS else 1], tl.int32)
    block = program.to(tl.int64) * (ROWS * TILES)
    pivot = _pivot(
        values, minus, has_minus, scale, block, rows, inner, channel, channels, programs, LAYOUT, ROWS, WIDE,
        IS_ALIGNED, HAS_MINUS, HAS_SCALE
    )  # fmt: skip
    while block < rows:
        for tile in range(TILES):
            x, there = _load(
                values, minus, has_minus, scale, block + tile * ROWS, rows, inner, channel, channels, LAYOUT, ROWS,
                WIDE, IS_ALIGNED, HAS_MINUS, HAS_SCALE
            )  # fmt: skip
            many, own, centre, about, sizes, smallest, largest = _sums(x, tl.abs(x) < float("inf"), LAYOUT, PAIRS)
            number, distance = many.to(tl.float64), centre - pivot[None, :]
            total += own - number * pivot[None, :]
            squares += about + distance * (2.0 * (own - number * centre) + number * distance)
            if HAS_ABS_MEAN:
                magnitudes += sizes
            low, high = tl.minimum(low, smallest), tl.maximum(high, largest)
            seen, elements = seen + many, elements + there
            both = (x == 0).to(tl.int32) + ((x == float("inf")).to(tl.int32) << 16)
            below = (x == float("-inf")).to(tl.int32)
            zeros_posinf += both if LAYOUT == LAST else tl.sum(both, 1)[:, None]
            neginf += below if LAYOUT == LAST else tl.sum(below, 1)[:, None]
        if HAS_BINS:
            # The values are in the cache. Many additions to one bin cost little in shared memory, more in a copy of the
            # bins that few programs have.
            if has_counts:
                again, there_too = _load(
                    values, minus, has_minus, scale, block, rows, inner, channel, channels, LAYOUT, ROWS * TILES,
                    WIDE, IS_ALIGNED, HAS_MINUS, HAS_SCALE
                )  # fmt: skip
                of_value = (again.to(tl.int32, bitcast=True) >> 19) & 8191
                if COPIES:
                    tl.atomic_add(own_bins + of_value, 1, sem="relaxed")
                else:
                    bins += tl.histogram(tl.reshape(of_value, [ROWS * TILES * WIDE]), BINS)
        block += programs.to(tl.int64) * (ROWS * TILES)
    return pivot, total, squares, magnitudes, low, high, seen, zeros_posinf, neginf, elements, bins


@triton.jit
def _store(at, is_there, pivot, total, squares, magnitudes, low, high, seen, zeros_posinf, neginf, elements):
    """Reduce what `_over_tiles` returns to the row of each channel, and write it."""
    # Column by column: all at once would take too many registers.
    finite = tl.sum(seen, 0)
    number = tl.maximum(finite, 1).to(tl.float64)
    tl.store(at, finite.to(tl.float64), mask=is_there)
    shift = tl.sum(total, 0) / number
    tl.store(at + 1, pivot + shift, mask=is_there)
    tl.store(at + 2, tl.sqrt(tl.maximum(tl.sum(squares, 0) / number - shift * shift, 0.0)), mask=is_there)
    tl.store(at + 3, tl.sum(magnitudes, 0) / number, mask=is_there)
    tl.store(at + 4, tl.sum(zeros_posinf & 65535, 0).to(tl.float64), mask=is_there)
    posinf, below = tl.sum(zeros_posinf >> 16, 0), tl.sum(neginf, 0)
    tl.store(at + 5, (tl.sum(elements, 0) - finite - posinf - below).to(tl.float64), mask=is_there)
    tl.store(at + 6, posinf.to(tl.float64), mask=is_there)
    tl.store(at + 7, below.to(tl.float64), mask=is_there)
    tl.store(at + 8, tl.min(low, 0).to(tl.float64), mask=is_there)
    tl.store(at + 9, tl.max(high, 0).to(tl.float64), mask=is_there)


@triton.jit
def _merge_all(
    rows, scratch, counters, channels, every, is_fresh, programs, group, LAYOUT: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Merge the rows of a group of channels once all programs have written them, then those of all groups."""
    CHANNELS: tl.constexpr = WIDE if LAYOUT == LAST else 1
    ALONE: tl.constexpr = 256
    one = tl.arange(0, 1)
    tl.debug_barrier()  # what all threads have stored, before one of them says so
    if LAYOUT == WHOLE:
        if tl.atomic_add(counters, 1, sem="acq_rel") == programs - 1:
            tl.store(counters, 0)
            many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high = _merged(
                scratch, programs, 1, one == 0, ALONE, 1
            )  # fmt: skip
            _write(
                rows + one, one == 0, is_fresh,
                many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high
            )  # fmt: skip
    elif tl.atomic_add(counters + 1 + group, 1, sem="acq_rel") == programs - 1:
        tl.store(counters + 1 + group, 0)
        channel = group.to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
        many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high = _merged(
            scratch + group.to(tl.int64) * CHANNELS * WIDTH, programs, channels, channel < channels,
            8 if LAYOUT == LAST else ALONE, CHANNELS
        )  # fmt: skip
        each = tl.maximum(every, 1)
        is_kept = (channel < channels) & (channel % each + (each - every) == 0)  # none, if `every` is 0
        _write(
            rows + (1 + channel // each) * WIDTH, is_kept, is_fresh,
            many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high
        )  # fmt: skip
        if LAYOUT == LAST:
            many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high = _of_all(
                many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high
            )  # fmt: skip
        groups = (channels.to(tl.int32) + (CHANNELS - 1)) // CHANNELS
        totals = scratch + programs.to(tl.int64) * channels * WIDTH
        _write(
            totals + (group + one) * WIDTH, one == 0, 1,
            many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high
        )  # fmt: skip
        tl.debug_barrier()
        if tl.atomic_add(counters, 1, sem="acq_rel") == groups - 1:
            tl.store(counters, 0)
            many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high = _merged(
                totals, groups, 1, one == 0, ALONE, 1
            )  # fmt: skip
            _write(
                rows + one, one == 0, is_fresh,
                many, total, squares, magnitudes, zeros, nan, posinf, neginf, low, high
            )  # fmt: skip


@triton.jit
def _measure(
    values, minus, has_minus, scale, counts, has_counts, rows, scratch, counters, copies,
    outer, channels, inner, apart, every, is_fresh, program, programs, group, number,
    LAYOUT: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, TILES: tl.constexpr, IS_ALIGNED: tl.constexpr,
    PAIRS: tl.constexpr, HAS_MINUS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_ABS_MEAN: tl.constexpr,
    HAS_BINS: tl.constexpr, COPIES: tl.constexpr
):  # fmt: skip
    """What one program does, the `program`-th of `programs` of a group of channels; see `measure`."""
    CHANNELS: tl.constexpr = WIDE if LAYOUT == LAST else 1
    channel = group.to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    if LAYOUT == LAST:
        every_row = outer
    else:
        every_row = outer * ((inner + (WIDE - 1)) // WIDE)
        first = group.to(tl.int64)
        values += first * (apart // WIDE * WIDE if IS_ALIGNED else apart)
        minus += first * (inner // WIDE * WIDE if IS_ALIGNED else inner)
    own_bins = copies + (number % COPIES if COPIES else 0) * BINS
    pivot, total, squares, magnitudes, low, high, seen, zeros_posinf, neginf, elements, bins = _over_tiles(
        values, minus, has_minus, scale, has_counts, every_row, inner, channel, channels, program, programs, own_bins,
        LAYOUT, ROWS, WIDE, TILES, IS_ALIGNED, PAIRS, HAS_MINUS, HAS_SCALE, HAS_ABS_MEAN, HAS_BINS, COPIES
    )  # fmt: skip
    at = scratch + (program.to(tl.int64) * channels + channel) * WIDTH
    is_there = channel < channels
    _store(at, is_there, pivot, total, squares, magnitudes, low, high, seen, zeros_posinf, neginf, elements)
    if HAS_BINS:
        if has_counts:
            bin = tl.arange(0, BINS)
            if COPIES:
                # What is taken out here may be that of another program, which then finds nothing.
                tl.debug_barrier()
                is_filled = tl.load(own_bins + bin, cache_modifier=".cg") > 0
                # `atomic_xchg` does not compile for AMD in Triton 3.6.
                bins = tl.where(is_filled, tl.atomic_and(own_bins + bin, 0, mask=is_filled, sem="relaxed"), 0)
            is_finite = (bin & 4095) < 4080  # those of infinities and NaN are in no histogram
            tl.atomic_add(counts + bin, bins.to(tl.int64), mask=is_finite & (bins > 0), sem="relaxed")
    _merge_all(rows, scratch, counters, channels, every, is_fresh, programs, group, LAYOUT, WIDE)


@triton.jit(do_not_specialize=["outer", "channels", "inner", "apart", "every", "is_fresh"])
def measure(
    values, scale, counts, rows, scratch, counters, copies, outer: tl.int64, channels: tl.int64, inner: tl.int64,
    apart: tl.int64, every: tl.int64, is_fresh: tl.int32, LAYOUT: tl.constexpr, ROWS: tl.constexpr,
    WIDE: tl.constexpr, TILES: tl.constexpr, IS_ALIGNED: tl.constexpr, PAIRS: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_ABS_MEAN: tl.constexpr, HAS_BINS: tl.constexpr, COPIES: tl.constexpr
):  # fmt: skip
    """Measure a tensor; grid (programs, groups of channels).

    Args:
        values: float16, bfloat16 or float32, all in one run of memory.
        scale: float32, one number that the values are divided by; not read without HAS_SCALE.
        counts: int64, (BINS,): the bins are added to it; not touched without HAS_BINS.
        rows: float64, (1 + channels with a row, WIDTH): the row of the tensor, then those of channels, to merge into.
        scratch: float64, (programs * channels + groups, WIDTH).
        counters: int32, (1 + groups,), all 0.
        copies: int32, (COPIES, BINS), all 0; not touched without COPIES.
        outer: how many runs a channel has; for LAST, its values; 1 for WHOLE and FIRST.
        channels: how many there are, 1 for WHOLE.
        inner: the length of a run, 1 for LAST.
        apart: the distance of the first values of two channels, for FIRST and RUNS.
        every: each `every`-th channel has a row; 0 if none has.
        is_fresh: whether `rows` holds nothing yet, and is not merged with.
        LAYOUT: how the channels lie in memory.
        ROWS: groups of values, or positions, in a tile.
        WIDE: values in a group, or channels in a tile.
        TILES: tiles that are counted into bins at once.
        IS_ALIGNED: whether each group begins at a multiple of 16 bytes.
        PAIRS: whether the values of a group are summed in pairs of float32, else in float64.
        HAS_SCALE: whether the values are divided.
        HAS_ABS_MEAN: whether that column is filled; else it is 0.
        HAS_BINS: whether bins are counted.
        COPIES: how many copies of bins there are in memory; 0 to count them in shared memory.
    """
    _measure(
        values, values, 0, scale, counts, 1, rows, scratch, counters, copies, outer, channels, inner, apart, every,
        is_fresh, tl.program_id(0), tl.num_programs(0), tl.program_id(1),
        tl.program_id(0) + tl.num_programs(0) * tl.program_id(1), LAYOUT, ROWS, WIDE, TILES, IS_ALIGNED, PAIRS, False,
        HAS_SCALE, HAS_ABS_MEAN, HAS_BINS, COPIES
    )  # fmt: skip


@triton.jit(do_not_specialize=["jobs"])
def measure_many(
    like, scale, table, copies, jobs: tl.int32, LAYOUT: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    TILES: tl.constexpr, IS_ALIGNED: tl.constexpr, PAIRS: tl.constexpr, HAS_SCALE: tl.constexpr,
    HAS_ABS_MEAN: tl.constexpr, HAS_BINS: tl.constexpr, COPIES: tl.constexpr
):  # fmt: skip
    """Measure many tensors of one dtype, or their differences from others; grid (programs of all together,).

    Args:
        like: any of the tensors; it only tells the dtype.
        scale: as in `measure`, of all.
        table: int64, (jobs, JOB), in the order of the first column: the number of the first program; the addresses of
            values, of what is subtracted from them (or 0), of counts (or 0), rows, scratch, counters; outer, channels,
            inner, apart, every, is_fresh; the number of programs of each group of channels. What is subtracted lies
            without gaps. No tensor may have the rows of another.
        copies: as in `measure`. No two programs of different tensors may have the same, `number % COPIES`.
        jobs: how many tensors there are.
        LAYOUT: as in `measure`, and so are the others.
    """
    number = tl.program_id(0)
    low, high = jobs * 0, jobs
    while high - low > 1:  # the last job whose first program is not after this one
        middle = (low + high) // 2
        is_later = tl.load(table + middle * JOB) > number
        low, high = tl.where(is_later, low, middle), tl.where(is_later, middle, high)
    job = table + low * JOB
    within = (number - tl.load(job)).to(tl.int32)
    values = tl.load(job + 1).to(like.dtype)
    less = tl.load(job + 2)
    minus = less.to(like.dtype)
    if IS_ALIGNED:
        values, minus = tl.multiple_of(values, 16), tl.multiple_of(minus, 16)
    bins = tl.load(job + 3)
    rows, scratch = tl.load(job + 4).to(tl.pointer_type(tl.float64)), tl.load(job + 5).to(tl.pointer_type(tl.float64))
    programs = tl.load(job + 13).to(tl.int32)
    _measure(
        values, minus, less != 0, scale, bins.to(tl.pointer_type(tl.int64)), bins != 0, rows, scratch,
        tl.load(job + 6).to(tl.pointer_type(tl.int32)), copies, tl.load(job + 7), tl.load(job + 8), tl.load(job + 9),
        tl.load(job + 10), tl.load(job + 11), tl.load(job + 12), within % programs, programs, within // programs,
        number, LAYOUT, ROWS, WIDE, TILES, IS_ALIGNED, PAIRS, True, HAS_SCALE, HAS_ABS_MEAN, HAS_BINS, COPIES
    )  # fmt: skip
