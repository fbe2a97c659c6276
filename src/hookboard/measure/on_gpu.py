"""A Triton kernel that measures tensors on an accelerator, and its launches. Nothing here waits for the device.

It imports Triton: import it only where tensors may be on a GPU. One launch reads a tensor, and merges what it finds
into rows of `FIELDS` that stand in memory already; torch counts the bins. Each program measures tiles of the tensor:

- FIRST: a channel is one run of values, as in a weight (out, in). A tile is `ROWS` groups of `WIDE` values of it.
- RUNS: it is `outer` runs of `inner` values, as in (N, C, H, W). A tile is the same.
- LAST: channels lie side by side, as in (N, T, C) or channels_last. A tile is `ROWS` positions of `WIDE` channels.

**Fast.** A group is what a thread loads at once, 16 bytes. The loop over tiles has no barrier and moves nothing between
threads: each keeps sums of its own, reduced once after the loop. Each program writes the rows of its channels into
`scratch` and counts itself in `counters`. The last one of a group of channels merges their rows, and the last of all
merges those of the tensor (as in "split K" matrix products). The counters are 0 again at the end.

**True.** The results are exact to 1e-6 whatever the values. The squares of a group are of the differences from its own
mean, in float32, in units of a power of two that brings its largest magnitude into [1, 2): none overflows. All that
follows is float64, as is each sum, since a mean may cancel. Sums over groups are about a pivot, the mean of the first
tile that has a finite value. The square of its distance from the mean of all N values is at most N/T times their
variance, for a tile of T values: so what cancels in `squares - total**2 / n` costs at most a factor N/T, of the 1e16
that float64 has. Rows are merged as by `row.merge`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803, N806
# What runs in a kernel has no types, and its constants are written in capitals, as Triton's own are.

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hookboard.base.messages import warn_switched_off
from hookboard.base.torch_private import stream_number
from hookboard.measure import memory, row
from hookboard.measure.by_torch import count_into
from hookboard.measure.memory import processors

WIDTH = tl.constexpr(row.WIDTH)
COLUMNS = tl.constexpr(16)  # of a row in a tile, whose sizes are powers of two
RUNS = tl.constexpr(memory.RUNS)
LAST = tl.constexpr(memory.LAST)


@triton.jit
def _load(
    values, start, rows, inner, channel, channels, LAYOUT: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    IS_ALIGNED: tl.constexpr
):  # fmt: skip
    """Load rows from `start` on of a tensor, or of one of its channels, as float32, [ROWS, WIDE]; NaN for no value."""
    row, column = start + tl.arange(0, ROWS), tl.arange(0, WIDE)
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
        place = row * WIDE
        offsets = place[:, None] + column[None, :]
        is_full = (start + ROWS) * WIDE <= inner
    # A mask, even one that is True everywhere, would make each value a load of its own.
    if is_full:
        x = tl.load(values + offsets).to(tl.float32)
    else:
        if LAYOUT == LAST:
            is_there = (row < rows)[:, None] & (channel < channels)[None, :]
        else:
            is_there = (place[:, None] + column[None, :] < inner) & (row < rows)[:, None]
        x = tl.load(values + offsets, mask=is_there, other=float("nan")).to(tl.float32)
    return x


@triton.jit
def _many(is_so, LAYOUT: tl.constexpr):
    """Return for how many values of each group something is so, [ROWS, 1]; for LAST each value is a group."""
    return is_so.to(tl.int32) if LAYOUT == LAST else tl.sum(is_so.to(tl.int32), 1)[:, None]


@triton.jit
def _summable(at, is_there, mean):
    """Load rows, [PARTS, CHANNELS] pointers, as [PARTS, CHANNELS, COLUMNS], so that they merge column by column."""
    # Other programs may have written them: `.cg` passes by the cache of this multiprocessor.
    column = tl.arange(0, COLUMNS)[None, None, :]
    is_here = is_there[:, :, None] & (column < WIDTH)
    found = tl.load(at[:, :, None] + column, mask=is_here, other=0.0, cache_modifier=".cg")
    number = tl.load(at, mask=is_there, other=0.0, cache_modifier=".cg")[:, :, None]
    away = (tl.load(at + 1, mask=is_there, other=0.0, cache_modifier=".cg") - mean[None, :])[:, :, None]
    # Squared differences from `mean`, [CHANNELS]; the smallest values negated; means times the counts.
    found = tl.where(column == 2, found * found + away * away, tl.where(column == 8, -found, found))
    found = tl.where((column >= 1) & (column <= 3), number, 1.0) * found
    return tl.where(is_here | (column < 8), found, float("-inf"))


@triton.jit
def _merge(parts, count, apart, is_there, to, is_fresh, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """Merge rows `i * apart + c` of `parts`, i below `count`, into that of channel c at `to`, [CHANNELS] pointers."""
    # Each thread adds up rows of its own, and only what it has in the end goes to others: all others wait meanwhile.
    part, column = tl.arange(0, PARTS)[:, None], tl.arange(0, COLUMNS)[None, :]
    first = parts + (part.to(tl.int64) * apart + tl.arange(0, CHANNELS)[None, :]) * WIDTH
    before, has_before = to[None, :] + part * 0, (part + is_fresh == 0) & is_there[None, :]
    mean = tl.zeros([CHANNELS], tl.float64)
    for _ in tl.static_range(2):  # in the second turn differences are from the mean
        found = _summable(before, has_before, mean)
        for start in range(0, count, PARTS):
            more = _summable(first + start * apart * WIDTH, (start + part < count) & is_there[None, :], mean)
            found = tl.where(column[None, :, :] < 8, found + more, tl.maximum(found, more))
        sums = tl.sum(tl.where(column[None, :, :] < 8, found, 0.0), 0)
        number = tl.maximum(tl.sum(tl.where(column == 0, sums, 0.0), 1), 1.0)
        mean = tl.sum(tl.where(column == 1, sums, 0.0), 1) / number  # of equal values theirs
    merged = tl.where(column < 8, sums, tl.max(found, 0))
    merged = tl.where((column >= 1) & (column <= 3), merged / number[:, None], merged)
    merged = tl.where(column == 2, tl.sqrt(tl.abs(merged)), tl.where(column == 8, -merged, merged))
    tl.store(to[:, None] + column, merged, mask=is_there[:, None] & (column < WIDTH))


@triton.jit(do_not_specialize=[*range(4, 11)])
def measure(
    values, slab, scratch, counters, programs: tl.int32, row: tl.int64, outer: tl.int64, channels: tl.int64,
    inner: tl.int64, every: tl.int64, is_fresh: tl.int32, LAYOUT: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
    IS_ALIGNED: tl.constexpr
):  # fmt: skip
    """Measure `values`, float16, bfloat16 or float32 in one run of memory, into rows of `slab`, from `row` on."""
    # `slab` and `scratch` are (n, WIDTH), float64, `counters` (n,), int32, all 0: as many as `Form.needs`. A channel is
    # `outer` runs of `inner` values (for LAST, `outer` values), `channels` is 1 for none. `programs` measure a group of
    # channels; each `every`-th channel has a row, none if that is 0. IS_ALIGNED: each group begins at a multiple of 16
    # bytes.
    number = tl.program_id(0)
    CHANNELS: tl.constexpr = WIDE if LAYOUT == LAST else 1
    group, program, one = number // programs, number % programs, tl.arange(0, 1)
    begin, rows = group.to(tl.int64) * CHANNELS, slab + row * WIDTH
    channel = begin + tl.arange(0, CHANNELS)
    is_there = channel < channels
    length = outer if LAYOUT == LAST else outer * ((inner + (WIDE - 1)) // WIDE)
    if LAYOUT != LAST:
        values += begin * (inner // WIDE * WIDE if IS_ALIGNED else inner)

    tile, step = program.to(tl.int64) * ROWS, programs.to(tl.int64) * ROWS
    found = tl.where(is_there, 0, 1)
    pivot, at = found.to(tl.float64) * 0.0, tile
    while (tl.min(found, 0) == 0) & (at < length):
        x = _load(values, at, length, inner, channel, channels, LAYOUT, ROWS, WIDE, IS_ALIGNED)
        is_finite = tl.abs(x) < float("inf")
        clean, many = tl.where(is_finite, x, 0.0).to(tl.float64), tl.sum(_many(is_finite, LAYOUT), 0)
        mean = tl.sum(clean if LAYOUT == LAST else tl.sum(clean, 1)[:, None], 0) / tl.maximum(many, 1).to(tl.float64)
        pivot, found, at = tl.where(found == 0, mean, pivot), found + many, at + step

    total = tl.zeros([ROWS, CHANNELS], tl.float64)
    squares, magnitudes = total, total
    low, high = total.to(tl.float32) + float("inf"), total.to(tl.float32) + float("-inf")
    seen = tl.zeros([ROWS, CHANNELS], tl.int32)
    zeros, infinite = seen, seen  # +inf in the lower 16 bits, -inf above: no thread has as many values
    while tile < length:
        x = _load(values, tile, length, inner, channel, channels, LAYOUT, ROWS, WIDE, IS_ALIGNED)
        is_finite = tl.abs(x) < float("inf")
        clean, many = tl.where(is_finite, x, 0.0), _many(is_finite, LAYOUT)
        smallest, largest = tl.where(is_finite, x, float("inf")), tl.where(is_finite, x, float("-inf"))
        count = many.to(tl.float64)
        if LAYOUT == LAST:
            own, size = clean.to(tl.float64), tl.abs(clean).to(tl.float64)
            squares += count * (own - pivot[None, :]) * (own - pivot[None, :])
        else:
            # 2**(k - 127) brings the largest magnitude into [1, 2), or nearer to it; `unit` is its inverse.
            k = tl.maximum(254 - (tl.max(tl.abs(clean), 1).to(tl.int32, bitcast=True) >> 23), 1)[:, None]
            unit = ((1150 - k).to(tl.int64) << 52).to(tl.float64, bitcast=True)
            scaled = clean * (k << 23).to(tl.float32, bitcast=True)
            mean = tl.sum(scaled, 1)[:, None] / tl.maximum(many, 1).to(tl.float32)
            away = tl.where(is_finite, scaled - mean, 0.0)
            own = tl.sum(scaled.to(tl.float64), 1)[:, None] * unit
            size = tl.sum(tl.abs(scaled), 1)[:, None].to(tl.float64) * unit
            smallest, largest = tl.min(smallest, 1)[:, None], tl.max(largest, 1)[:, None]
            centre = mean.to(tl.float64) * unit
            distance = centre - pivot[None, :]
            squares += tl.sum(away * away, 1)[:, None].to(tl.float64) * unit * unit
            squares += distance * (2.0 * (own - count * centre) + count * distance)
        total += own - count * pivot[None, :]
        magnitudes += size
        low, high, seen = tl.minimum(low, smallest), tl.maximum(high, largest), seen + many
        zeros += _many(x == 0, LAYOUT)
        infinite += _many(x == float("inf"), LAYOUT) + (_many(x == float("-inf"), LAYOUT) << 16)
        tile += step

    # Column by column: all at once would take too many registers.
    to, finite = scratch + (program.to(tl.int64) * channels + channel) * WIDTH, tl.sum(seen, 0)
    several = tl.maximum(finite, 1).to(tl.float64)
    shift = tl.sum(total, 0) / several
    tl.store(to, finite.to(tl.float64), mask=is_there)
    tl.store(to + 1, pivot + shift, mask=is_there)
    tl.store(to + 2, tl.sqrt(tl.maximum(tl.sum(squares, 0) / several - shift * shift, 0.0)), mask=is_there)
    tl.store(to + 3, tl.sum(magnitudes, 0) / several, mask=is_there)
    tl.store(to + 4, tl.sum(zeros, 0).to(tl.float64), mask=is_there)
    # The others of a channel are NaN. The first program counts all of its values, and each takes off what it has seen.
    posinf, neginf = tl.sum(infinite & 65535, 0), tl.sum(infinite >> 16, 0)
    others = tl.where(program == 0, outer * inner, 0) - finite - posinf - neginf
    tl.store(to + 5, others.to(tl.float64), mask=is_there)
    tl.store(to + 6, posinf.to(tl.float64), mask=is_there)
    tl.store(to + 7, neginf.to(tl.float64), mask=is_there)
    tl.store(to + 8, tl.min(low, 0).to(tl.float64), mask=is_there)
    tl.store(to + 9, tl.max(high, 0).to(tl.float64), mask=is_there)

    tl.debug_barrier()  # what all threads have stored, before one of them says so
    if tl.atomic_add(counters + 1 + group, 1, sem="acq_rel") == programs - 1:
        tl.store(counters + 1 + group, 0)
        whole = scratch + programs.to(tl.int64) * channels * WIDTH  # behind the rows of programs: those of channels
        most: tl.constexpr = 2 if LAYOUT == LAST else 64
        _merge(scratch + begin * WIDTH, programs, channels, is_there, whole + channel * WIDTH, 1, most, CHANNELS)
        tl.debug_barrier()
        if every > 0:
            is_kept, to = is_there & (channel % every == 0), rows + (1 + channel // every) * WIDTH
            _merge(whole + begin * WIDTH, 1, 1, is_kept, to, is_fresh, 1, CHANNELS)
        groups = channels.to(tl.int32)
        if LAYOUT == LAST:  # and behind these one for each group, as the last program would have many to merge
            groups, of_groups = (groups + (CHANNELS - 1)) // CHANNELS, whole + channels * WIDTH
            own = tl.minimum(channels - begin, CHANNELS).to(tl.int32)
            _merge(whole + begin * WIDTH, own, 1, one == 0, of_groups + (group + one) * WIDTH, 1, 64, 1)
            whole = of_groups
            tl.debug_barrier()
        if tl.atomic_add(counters, 1, sem="acq_rel") == groups - 1:
            tl.store(counters, 0)
            _merge(whole, groups, 1, one == 0, rows + one, is_fresh, 64, 1)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WARPS = 4  # of a program
OPTIONS = {"num_warps": WARPS, "enable_fp_fusion": True}  # of compiling; without the second Triton 3.9 warns
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
IS_CALLABLE = VERSION >= (3, 3)  # a compiled kernel takes all arguments, constants too, as it is called here
MAX_CHANNELS = 65535  # of a tensor that is measured: each takes a row of scratch
PROGRAMS_PER_PROCESSOR = 4
"""How many programs at most measure a tensor, for each multiprocessor of the device, unless each channel has one: so
many run at once. Of those with more to keep, with channels side by side, half as many do."""


class Form(NamedTuple):
    """How the kernel reads tensors of one shape, stride, dtype and device."""

    numbers: tuple[int, int, int, int, int]  # `programs`, then `outer` to `every` of `measure`
    grid: int  # how many programs
    needs: int  # how many rows of scratch, and at most as many counters
    can_align: bool  # all groups begin at a multiple of 16 bytes if the tensor does
    constants: dict[str, Any]  # what the kernel is compiled for
    variant: tuple[object, ...]  # the device, the dtype and the constants: those of one variant share a kernel


Job = tuple[Form, Tensor, Tensor | None, int, bool, int]
"""A detached tensor to measure: its form; the tensor; what is subtracted from it (see `can_subtract`), or None; its
first row in the slab; whether its rows hold nothing yet; its row of the bins, or -1."""


def form_of(tensor: Tensor, dim: int | None = None, *, has_minus: bool, with_abs_mean: bool) -> Form | None:
    """Return how the kernel reads a dense real tensor that is not empty, `abs_mean` always; None if it cannot."""
    if tensor.is_neg() or tensor.dtype not in DTYPES:
        return None
    dtype = torch.float32 if has_minus else tensor.dtype  # a difference
    return _form(tensor.shape, tensor.stride(), dtype, tensor.device, dim)


@functools.lru_cache(maxsize=1 << 14)
def _form(
    shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: torch.device, dim: int | None
) -> Form | None:
    found = memory.shape_in_memory(shape, stride, dim)
    if found is None:
        return None
    layout, outer, channels, inner, apart, every = found
    if channels > MAX_CHANNELS or apart > inner:
        return None
    is_last, vector = layout == memory.LAST, 16 // dtype.itemsize
    rows, wide = _tile(layout, vector)
    groups = -(-channels // wide) if is_last else channels
    tiles = -(-(outer if is_last else outer * -(-inner // wide)) // rows)
    most = PROGRAMS_PER_PROCESSOR * processors(device) // (2 if is_last else 1)
    programs = max(1, min(tiles, most // groups))
    constants = {"LAYOUT": max(layout, memory.FIRST), "ROWS": rows, "WIDE": wide}
    return Form(
        (programs, outer, channels, inner, every),
        programs * groups,
        (programs + 1) * channels + groups,
        channels % vector == 0 if is_last else channels * outer == 1 or inner % vector == 0,
        constants,
        (device, dtype, *constants.values()),
    )


def _tile(layout: int, vector: int) -> tuple[int, int]:
    """Return the rows of a tile, and the values in each."""
    wide = 64 if layout == memory.LAST else vector
    # Each of a warp's 32 threads loads 16 bytes at a time, and twice if its program does not keep channels.
    return 32 * WARPS * vector // wide * (1 if layout == memory.LAST else 2), wide


def measure_into(job: Job, slab: Tensor, bins: Tensor) -> bool:
    """Measure a tensor on the current stream, as `native.measure_into`; False if that failed, and changed nothing."""
    form, values, minus, first_row, is_fresh, bin_row = job
    values = values if minus is None else values.float() - minus
    is_done = _launch(form, values, slab, [form.numbers[0], first_row, *form.numbers[1:], int(is_fresh)])
    if is_done and bin_row >= 0:
        count_into(bins[bin_row], values.as_strided([values.numel()], [1]))  # in their order in memory
    return is_done


_compiled: dict[tuple[object, ...], Any] = {}  # kernels by variant; None for one that Triton itself launches
_failed: set[tuple[object, ...]] = set()  # variants that are not tried again
_workspaces: dict[tuple[torch.device, int], tuple[Tensor, Tensor]] = {}  # by stream: there launches do not overlap


def _workspace(device: torch.device, rows: int) -> tuple[Tensor, Tensor]:
    """Return scratch of at least `rows` rows, and as many counters, which are 0, for this stream."""
    stream = (device, stream_number(device) if device.type == "cuda" else 0)
    found = _workspaces.get(stream)
    if found is None or len(found[0]) < rows:
        size = 2 * max(rows, 4096)
        with torch.inference_mode(False):  # its tensors could not be changed in place outside of it
            scratch = torch.empty((size, WIDTH.value), dtype=torch.float64, device=device)
            found = _workspaces[stream] = scratch, torch.zeros(size, dtype=torch.int32, device=device)
    return found


def _launch(form: Form, values: Tensor, slab: Tensor, numbers: Sequence[int]) -> bool:
    """Launch the kernel on the current stream of its tensors' device, and return whether that worked."""
    # Triton also compiles for the alignment of each pointer. Memory that torch has allocated is aligned.
    device, is_aligned = values.device, values.data_ptr() % 16 == 0
    constants = {**form.constants, "IS_ALIGNED": form.can_align and is_aligned}
    variant = (form.variant, form.can_align, is_aligned)
    if variant in _failed:
        return False
    try:
        pointers, grid = [values, slab, *_workspace(device, form.needs)], (form.grid, 1, 1)
        # Triton launches on the current device, which need not be the tensor's.
        is_elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
        with torch.cuda.device(device) if is_elsewhere else contextlib.nullcontext():
            if _compiled.get(variant) is not None:
                # Triton's own way takes ten times as long, as it looks at each argument to find the variant.
                addresses = [pointer.data_ptr() for pointer in pointers]  # for which it would ask the driver
                _compiled[variant][grid](*addresses, *numbers, *constants.values())
            else:
                compiled = measure[grid](*pointers, *numbers, **constants, **OPTIONS)
                # Not the interpreter, nor AMD, for which Triton also compiles for the size of a tensor's memory.
                is_whole = IS_CALLABLE and compiled is not None and compiled.metadata.target.backend == "cuda"
                _compiled[variant] = compiled if is_whole else None
    except Exception as error:
        # Whatever fails, torch measures these tensors. For a lack of memory Triton raises a RuntimeError.
        if "out of memory" not in str(error).lower():
            if not _failed:
                warn_switched_off("a Triton kernel (torch's own operations, which are slower, take its place)", error)
            _failed.add(variant)
        return False
    return True
