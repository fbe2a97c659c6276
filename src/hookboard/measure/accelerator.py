"""Launches the kernels of `triton_kernel`. Only this file passes tensors to them.

Nothing here waits for the device. Where Triton is missing, or a kernel fails, tensors are measured by torch's own
operations (`by_torch.py`), which are right too, but are some forty launches for each tensor.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookboard.base.messages import inform, warn_switched_off
from hookboard.base.torch_private import stream_number
from hookboard.measure.card import adds_float64_fast, processors
from hookboard.measure.histogram import BINS
from hookboard.measure.memory import FIRST, LAST, WHOLE, Shape, can_subtract, is_plain, shape_in_memory
from hookboard.measure.row import WIDTH, channel_row_count
from hookboard.measure.values import with_memory

DEVICES = {"cuda"}
"""The types of devices that the kernels run on. Tests add the CPU, where Triton's interpreter runs them."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that the kernels read."""

AS_SINGLE = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Further dtypes, besides 8-bit floats, that are copied to float32, which has all of their values."""

FIRST_WITH_SHARED_BINS = (3, 9)
"""The first version of Triton whose `histogram` counts thousands of bins well in shared memory, on NVIDIA's cards.
Elsewhere programs count them in copies of the bins in memory, which is slower."""

COPIES = 256
"""The number of these copies. Further programs of a tensor share them."""

FIRST_CALLABLE = (3, 3)
"""The first version of Triton in which a compiled kernel takes all arguments, constants too, as it is called here."""

PROGRAMS_PER_PROCESSOR = 4
"""Maximum number of programs that measure a tensor, for each multiprocessor of the device, unless each channel has one.
So many run at once; further ones would wait, and their results take long to merge. Of those with more to keep, with
bins or channels side by side, half as many run."""

MAX_PARTS = 1024
"""Maximum number of parts with gaps between them that are read as they lie."""

MAX_TILES = 4095
"""Maximum number of tiles of a program, beyond which there are more programs: counts of tiles have 16 bits."""

LAST_CHANNELS = 64
"""The number of channels in a tile if they lie side by side."""

MAX_CHANNELS = 65535
"""Maximum number of channels. CUDA has no more groups of programs; and each takes a row, also if it keeps none."""

BINNED_VALUES = 1 << 13
"""The number of values that are counted into bins at once."""

MIN_BINNED_VALUES = 1 << 14
"""Minimum number of values of a program that counts bins, if the tensor has as many: at its end it adds each bin that
is not empty to the tensor's by an atomic addition, usually a few hundred."""

LONG_COMPILE_SECONDS = 1.0
"""If compiling takes longer than this, users are told."""


class Job(NamedTuple):
    """What is measured in a launch: the values, less those of `minus`, which has their dtype and no gaps."""

    values: Tensor
    minus: Tensor | None
    shape: Shape

    @property
    def channels(self) -> int:
        """The number of channels; 0 if none has a row."""
        return self.shape.channels if self.shape.every else 0

    @property
    def rows(self) -> int:
        """The number of its rows: one for the tensor, then one for each channel that has one."""
        return 1 + (channel_row_count(self.shape.channels) if self.shape.every else 0)

    def without_channels(self) -> "Job":
        """Return the same without rows of channels."""
        return self._replace(shape=self.shape._replace(every=0))


class Target(NamedTuple):
    """Where the results of a job go.

    Args:
        rows: its rows, shape (job.rows, WIDTH), float64, contiguous: they are merged with.
        is_fresh: True if the rows hold nothing yet: they are overwritten.
        counts: the bins of the values are added to it, shape (BINS,), int64, contiguous; None for no bins. Those of NaN
            and infinities are not added.
    """

    job: Job
    rows: Tensor
    is_fresh: bool
    counts: Tensor | None


class _State:
    """Which kernels have been compiled in this process, which have failed, and how long compiling took."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[object, ...], Callable[..., object]] = {}
        """By variant, what launches it. Beside its constants a variant has the device, the dtype and the alignment of
        each pointer, for which Triton compiles."""
        self.failed: set[tuple[object, ...]] = set()
        """The variants that cannot be compiled or launched."""
        self.is_said = False
        self.seconds = 0.0
        """How long compiling took; infinite once users have been told."""
        self.workspaces: dict[tuple[torch.device, int], tuple[Tensor, Tensor, Tensor]] = {}
        """By stream, on which launches do not overlap, what `_workspace` returns."""


_state = _State()


@functools.cache
def _kernels() -> ModuleType | None:
    """Return the module of the kernels; None where there is no Triton. It is imported when it is first needed."""
    try:
        from hookboard.measure import triton_kernel
    except ImportError:
        return None
    return triton_kernel


@functools.cache
def _version() -> tuple[int, int]:
    import triton

    major, minor, *_ = triton.__version__.split(".")
    return int(major), int(minor)


def has_kernels(device: torch.device) -> bool:
    """Return True if there may be kernels for a device."""
    return device.type in DEVICES and _kernels() is not None


def job_of(tensor: Tensor, dim: int | None = None, minus: Tensor | None = None) -> Job | None:
    """Return how the kernels read a detached tensor, less `minus`; None if they cannot.

    They read plain tensors with a dtype of `DTYPES` that have no gaps, or gaps only between the parts of their first
    dimension, as `weight[::4]` has. Others are copied first, unless their dtype has values that float32 has not. The
    channels along `dim` get a row each, or of very many every k-th, see `channel_stride`.

    Raises:
        TypeError: the memory of the tensor has been freed.
    """
    if not is_plain(tensor) or not has_kernels(tensor.device) or not tensor.numel():
        return None
    with_memory(tensor)
    if tensor.dtype not in DTYPES:
        if not (tensor.dtype in AS_SINGLE or (tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1)):
            return None
        tensor = tensor.float()
    elif tensor.is_neg():
        tensor = tensor.resolve_neg()
    shape = shape_in_memory(tensor.shape, tensor.stride(), dim)
    if shape is None or (shape.apart > shape.inner and shape.channels > MAX_PARTS):
        tensor = tensor.contiguous()
        shape = shape_in_memory(tensor.shape, tensor.stride(), dim)
    if shape is None or shape.channels > MAX_CHANNELS or not (minus is None or can_subtract(minus, tensor)):
        return None
    return Job(tensor, minus, shape)


def measure_into(target: Target, *, with_abs_mean: bool, scale: Tensor | None = None) -> bool:
    """Measure a tensor, divided by `scale` in float32, and merge it into its rows, in one launch on the current stream.

    Returns whether that worked; otherwise nothing has changed. The job has no `minus`.
    """
    job, rows, is_fresh, counts = target
    values, shape = job.values, job.shape
    way = _way(shape, values.dtype, values.device, _is_at_16(job), counts is not None, with_abs_mean, scale is not None)
    try:
        scratch, counters, copies = _workspace(values.device, way.scratch, way.groups, way.copies)
    except torch.OutOfMemoryError:
        return False
    given = rows if scale is None else scale, rows if counts is None else counts  # any pointer for those without
    pointers = [values, *given, rows, scratch, counters, copies]
    return _launch("measure", way, (way.programs, way.groups, 1), pointers, (*shape[1:], int(is_fresh)))


def measure(tensor: Tensor, dim: int | None = None, *, with_abs_mean: bool) -> tuple[Tensor, Tensor | None] | None:
    """Return the row of a tensor, and the rows of its channels, see `job_of`; None if no kernel can measure it."""
    job = job_of(tensor, dim)
    if job is None:
        return None
    rows = new_rows(job.rows, tensor.device)
    if not measure_into(Target(job, rows, is_fresh=True, counts=None), with_abs_mean=with_abs_mean):
        return None
    return rows[0], rows[1:] if job.channels else None


def measure_all_into(targets: Iterable[Target], *, with_abs_mean: bool, scale: Tensor | None = None) -> list[Target]:
    """Do what `measure_into` does with many tensors of one device, in a launch for each dtype, layout and alignment.

    No two may have the same rows. Returns the targets for which that did not work: nothing has changed there.
    """
    alike: dict[tuple[object, ...], list[tuple[Target, Way]]] = {}
    for target in targets:
        job, _, _, counts = target
        values, has_bins, has_scale = job.values, counts is not None, scale is not None
        shape = job.shape if job.shape.layout != WHOLE else _as_one_channel(job.shape)
        way = _way(shape, values.dtype, values.device, _is_at_16(job), has_bins, with_abs_mean, has_scale)
        alike.setdefault(way.variant, []).append((target, way))
    failed: list[Target] = []
    for several in alike.values():
        for some in _launched_together(several):
            if not _launch_many(some, scale):
                failed += [target for target, _ in some]
    return failed


def _launched_together(targets: "list[tuple[Target, Way]]") -> "list[list[tuple[Target, Way]]]":
    """Split tensors into launches in which no two programs of different tensors have the same copy of the bins."""
    if not targets[0][1].copies:
        return [targets]
    launches: list[list[tuple[Target, Way]]] = []
    taken = COPIES
    for target, way in targets:
        taken += way.programs * way.groups
        if taken > COPIES:
            launches.append([])
            taken = way.programs * way.groups
        launches[-1].append((target, way))
    return launches


@functools.cache
def _as_one_channel(shape: Shape) -> Shape:
    """Return a WHOLE tensor as one channel, which has no row of its own."""
    return shape._replace(layout=FIRST)


def _launch_many(targets: Sequence[tuple[Target, "Way"]], scale: Tensor | None) -> bool:
    like = targets[0][0].job.values
    needed = sum(way.scratch for _, way in targets), sum(way.groups + 1 for _, way in targets)
    try:
        scratch, counters, copies = _workspace(like.device, *needed, targets[0][1].copies)
    except torch.OutOfMemoryError:
        return False
    first, place, counter, table = 0, scratch.data_ptr(), counters.data_ptr(), []
    for (job, rows, is_fresh, counts), way in targets:
        addresses = [0 if each is None else each.data_ptr() for each in (job.minus, counts)]
        numbers = [*job.shape[1:], int(is_fresh), way.programs]
        table.append([first, job.values.data_ptr(), *addresses, rows.data_ptr(), place, counter, *numbers])
        first += way.programs * way.groups
        place, counter = place + 8 * WIDTH * way.scratch, counter + 4 * (way.groups + 1)
    try:
        uploaded = uploaded_from(torch.tensor(table, dtype=torch.int64, device="cpu"), like.device)
    except RuntimeError:  # also where page-locked memory lacks; earlier launches have been made
        return False
    pointers = [like, scratch if scale is None else scale, uploaded, copies]
    return _launch("measure_many", targets[0][1], (first, 1, 1), pointers, [len(table)])


def uploaded_from(host: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor of the host on a device, without a wait for it.

    Only a copy from page-locked memory is known not to wait. Its memory is used again once the copy is made.
    """
    if device.type != "cuda":
        return host.to(device)
    pinned = torch.empty(host.shape, dtype=host.dtype, device="cpu", pin_memory=True)
    pinned.copy_(host)
    return pinned.to(device, non_blocking=True)


class _Tiles(NamedTuple):
    """The size of a tile: rows, and values in each; how many are counted into bins at once; warps of a program."""

    rows: int
    wide: int
    at_once: int
    warps: int


class Way(NamedTuple):
    """How tensors of one shape are measured: what is the same for all of them.

    Args:
        programs: how many measure each group of channels.
        variant: the device, the dtype and the constants: which kernel is launched, but for the alignment of pointers.
    """

    programs: int
    groups: int
    scratch: int
    constants: dict[str, Any]
    variant: tuple[object, ...]

    @property
    def copies(self) -> int:
        """How many copies of the bins it takes."""
        return int(self.constants["COPIES"])


@functools.lru_cache(maxsize=1 << 14)
def _way(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
    is_at_16: bool,
    has_bins: bool,
    with_abs_mean: bool,
    has_scale: bool,
) -> Way:
    """Return how tensors of a shape are measured; `is_at_16` if all begin at multiples of 16 bytes."""
    tiles = _tiles(shape.layout, dtype, has_bins)
    programs, groups = _grid(shape, tiles, device, has_bins)
    constants = {
        "LAYOUT": shape.layout,
        "ROWS": tiles.rows,
        "WIDE": tiles.wide,
        "TILES": tiles.at_once,
        "IS_ALIGNED": is_at_16 and _has_aligned_groups(shape, 16 // dtype.itemsize),
        "PAIRS": not adds_float64_fast(device),
        "HAS_SCALE": has_scale,
        "HAS_ABS_MEAN": with_abs_mean,
        "HAS_BINS": has_bins,
        "COPIES": COPIES if has_bins and not _counts_in_shared_memory() else 0,
    }
    variant = (device, dtype, *constants.values())
    return Way(programs, groups, programs * shape.channels + groups, constants, variant)


def _tiles(layout: int, dtype: torch.dtype, has_bins: bool) -> _Tiles:
    vector, warps = 16 // dtype.itemsize, 8 if has_bins else 4
    wide = LAST_CHANNELS if layout == LAST else vector
    # Each of a warp's 32 threads loads 16 bytes at a time, and twice if its program keeps neither bins nor channels.
    rows = 32 * warps * vector // wide * (1 if has_bins or layout == LAST else 2)
    at_once = BINNED_VALUES // (rows * wide) if has_bins and _counts_in_shared_memory() else 1
    return _Tiles(rows, wide, at_once, warps)


def _counts_in_shared_memory() -> bool:
    return _version() >= FIRST_WITH_SHARED_BINS and not torch.version.hip


def _grid(shape: Shape, tiles: _Tiles, device: torch.device, has_bins: bool) -> tuple[int, int]:
    """Return how many programs each group of channels has, and how many groups there are."""
    if shape.layout == LAST:
        groups, rows = -(-shape.channels // LAST_CHANNELS), shape.outer
    else:
        groups, rows = shape.channels, shape.outer * -(-shape.inner // tiles.wide)
    blocks = -(-rows // (tiles.rows * tiles.at_once))
    most = PROGRAMS_PER_PROCESSOR * processors(device)
    if has_bins:
        most = min(most // 2, shape.outer * shape.channels * shape.inner // MIN_BINNED_VALUES)
    elif shape.layout == LAST:
        most //= 2
    return max(1, min(blocks, most // groups), -(-blocks // (MAX_TILES // tiles.at_once))), groups


def _has_aligned_groups(shape: Shape, vector: int) -> bool:
    """Return True if each group of `vector` values that threads load begins at a multiple of 16 bytes.

    So it does if the tensor begins at one, and all runs and channels do too.
    """
    if shape.layout == LAST:
        return shape.channels % vector == 0
    return shape.channels * shape.outer == 1 or (shape.inner % vector == 0 and shape.apart % vector == 0)


def _is_at_16(job: Job) -> bool:
    return job.values.data_ptr() % 16 == 0 and (job.minus is None or job.minus.data_ptr() % 16 == 0)


def new_rows(count: int, device: torch.device) -> Tensor:
    """Return memory for rows, shape (count, WIDTH), float64."""
    # A tensor made under inference_mode could not be changed in place outside of it.
    with torch.inference_mode(False):
        return torch.empty((count, WIDTH), dtype=torch.float64, device=device)


def new_bins(count: int, device: torch.device) -> Tensor:
    """Return empty bins of some sites, shape (count, BINS), int64."""
    return _zeros(count, BINS, device=device, dtype=torch.int64)


def _workspace(device: torch.device, rows: int, groups: int, copies: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return scratch of at least `rows` rows, more than `groups` counters and `copies` of the bins, of this stream.

    All but the scratch are 0.
    """
    stream = (device, stream_number(device) if device.type == "cuda" else 0)
    found = _state.workspaces.get(stream)
    if found is None:
        scratch, counters, bins = new_rows(8192, device), _zeros(4096, device=device), _zeros(1, BINS, device=device)
    else:
        scratch, counters, bins = found
        if scratch.shape[0] >= rows and counters.shape[0] > groups and bins.shape[0] >= copies:
            return found
    # Each part grows alone: launches of other needs take turns.
    if scratch.shape[0] < rows:
        scratch = new_rows(2 * rows, device)
    if counters.shape[0] <= groups:
        counters = _zeros(2 * groups, device=device)
    if bins.shape[0] < copies:
        bins = _zeros(copies, BINS, device=device)
    _state.workspaces[stream] = scratch, counters, bins
    return scratch, counters, bins


def _zeros(*shape: int, device: torch.device, dtype: torch.dtype = torch.int32) -> Tensor:
    with torch.inference_mode(False):  # as in `new_rows`
        return torch.zeros(shape, dtype=dtype, device=device)


def report_compile_time() -> None:
    """Log once how long the kernels took to compile, if it was longer than `LONG_COMPILE_SECONDS`."""
    if LONG_COMPILE_SECONDS < _state.seconds < math.inf:
        inform(
            f"compiling the kernels for the GPU took {_state.seconds:.1f} s. Triton caches them on disk for the next "
            "run (shown once)"
        )
        _state.seconds = math.inf


def _launch(
    name: str, way: Way, grid: tuple[int, int, int], pointers: Sequence[Tensor], numbers: Sequence[int]
) -> bool:
    """Launch a kernel on the current stream of its tensors' device, and return whether that worked.

    If a variant fails for another reason than a lack of memory, it is not tried again, and the first that fails gives a
    warning.
    """
    device = pointers[0].device
    addresses = [tensor.data_ptr() for tensor in pointers]
    variant = (name, way.variant, tuple([address % 16 == 0 for address in addresses]))
    if variant in _state.failed:
        return False
    run = _state.kernels.get(variant)
    try:
        # Triton launches on the current device, which need not be the tensor's.
        is_elsewhere = pointers[0].is_cuda and device.index != torch.cuda.current_device()
        with torch.cuda.device(device) if is_elsewhere else contextlib.nullcontext():
            if run is None:
                _state.kernels[variant] = _compiled(name, grid, [*pointers, *numbers], way.constants)
            else:
                run(grid, pointers, addresses, numbers)
    except Exception as error:
        # Whatever fails, torch measures this tensor. For a lack of memory Triton raises a RuntimeError, and the next
        # tensor is measured by the kernel again.
        if "out of memory" not in str(error).lower():
            _state.failed.add(variant)
            if not _state.is_said:
                _state.is_said = True
                warn_switched_off("a Triton kernel (torch's own operations, which are slower, take its place)", error)
        return False
    return True


def _compiled(
    name: str, grid: tuple[int, int, int], arguments: Sequence[Any], constants: dict[str, Any]
) -> Callable[..., object]:
    """Launch a variant for the first time, which compiles it, and return a function that launches it from then on."""
    start, kernel = time.perf_counter(), getattr(_kernels(), name)
    fixed = options(8 if constants["HAS_BINS"] else 4)
    compiled = kernel[grid](*arguments, **constants, **fixed)
    _state.seconds += time.perf_counter() - start
    # The interpreter; or an older Triton; or one for AMD, which also compiles for the size of a tensor's memory.
    if compiled is None or _version() < FIRST_CALLABLE or compiled.metadata.target.backend != "cuda":
        return lambda grid, tensors, addresses, numbers: kernel[grid](*tensors, *numbers, **constants, **fixed)
    # Triton's own way to launch takes ten times as long: it looks at each argument to find the variant. Of a tensor it
    # would ask the driver for the address.
    values = constants.values()
    return lambda grid, tensors, addresses, numbers: compiled[grid](*addresses, *numbers, *values)


def options(warps: int) -> dict[str, Any]:
    """Return how Triton compiles. `maxnreg` is not among it: Triton for AMD does not know it."""
    return {"num_warps": warps, "enable_fp_fusion": True}
