"""Launches the kernels of `triton_kernel`. Only this file passes tensors to them.

Nothing here waits for the device. Where Triton is missing, or its first launch fails, tensors are measured by torch's
own operations (`device.py`), which are right too, but are some forty launches for each tensor.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hookboard.measure.row import WIDTH
from hookboard.messages import inform, warn_switched_off

DEVICES = {"cuda"}
"""The types of devices that the kernels run on. Tests add the CPU, where Triton's interpreter runs them."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The dtypes that the kernels read."""

MAX_PROGRAMS = 512
"""Maximum number of programs in a launch, and so of rows that it writes for each channel."""

TILES = {"flat": (2048, 1), "spread": (2048, 1), "last": (64, 32)}
"""By layout, values of each channel and channels in a tile; half as many values for float64 or with bins. Larger tiles
need so many registers that too few programs run at once."""

OPTIONS = {"num_warps": 4, "maxnreg": 168, "enable_fp_fusion": False}
"""How Triton compiles. Left to itself, it takes so few registers for some kernels that they spill. A fused multiply-add
would not round away what `two_sum` collects."""

MAX_INNER = 1 << 30
"""Maximum length of a run of values of one channel: positions within it must fit into 32 bits."""

FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities that add float64 at half the speed of float32; the others have a 32nd or 64th of it."""

LONG_COMPILE_SECONDS = 1.0
"""If compiling takes longer than this, users are told."""


class _State:
    """Whether the kernels work in this process, and how long compiling them took."""

    def __init__(self) -> None:
        self.has_failed = False
        self.compiled: set[tuple[object, ...]] = set()
        """The variants that have been launched: the first launch of each compiles it."""
        self.seconds = 0.0
        """How long these first launches took; infinite once users have been told."""


_state = _State()


@functools.cache
def _kernels() -> ModuleType | None:
    """Return the module of the kernels; None where there is no Triton. It is imported when it is first needed."""
    try:
        from hookboard.measure import triton_kernel
    except ImportError:
        return None
    return triton_kernel


def can_read(tensor: Tensor) -> bool:
    """Return True if the kernels run on the device of this tensor; `rows_of` copies what they cannot read directly."""
    return tensor.device.type in DEVICES and not _state.has_failed and _kernels() is not None


def can_divide(tensor: Tensor, scale: Tensor) -> bool:
    """Return True if `rows_of` can measure this tensor with this `scale`, which has shape ().

    That takes `can_read`, a strided tensor with a dtype of `DTYPES`, and a scale in float32 on the same device.
    """
    return (
        can_read(tensor)
        and tensor.dtype in DTYPES
        and tensor.layout is torch.strided
        and scale.device == tensor.device
        and scale.dtype is torch.float32
    )


def rows_of(
    tensor: Tensor,
    dim: int | None = None,
    *,
    with_abs_mean: bool,
    counts: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor | None:
    """Measure a tensor by the Triton kernel: one launch; with channels there may be a second.

    Args:
        tensor: plain, strided, real. If it has gaps, or a type that the kernels do not read, it is copied first.
        dim: the dimension of the channels, not negative; None for no channels.
        with_abs_mean: whether to measure `abs_mean`; otherwise that column is 0.
        counts: the bins of the values are added to this, shape (BINS,), int64, contiguous, on the tensor's device.
        scale: the values are divided by this first, in float32 at least; it must have passed `can_divide`.

    Returns:
        Shape (n, WIDTH), float64, on its device: with `dim` the row of each channel; without it rows of parts of the
        tensor, which merge to its row. None if the kernels cannot be used.

    Raises:
        TypeError: a CUDA graph is being captured.
    """
    if not can_read(tensor):
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise TypeError("a CUDA graph is being captured: its tensors have no values yet")
    tensor, (outer, channels, inner) = _readable(tensor, dim)
    layout, elements = "flat" if channels == 1 else "last" if inner == 1 else "spread", outer * inner
    values, width = tile(layout, tensor.dtype, counts is not None)
    if inner >= MAX_INNER and layout == "spread":
        return None
    groups = -(-channels // width)
    programs = max(1, min(-(-elements // values), MAX_PROGRAMS // groups))
    rows = _new_rows(programs * channels, tensor.device)
    # What is not used is any address that is there.
    arguments = [tensor, rows if scale is None else scale, rows if counts is None else counts, rows]
    options = {
        "LAYOUT": _code_of(layout, channels),
        "ROWS": values,
        "CHANNELS": width,
        "PAIRS": tensor.dtype is not torch.float64 and not adds_float64_fast(tensor.device),
        "HAS_SCALE": scale is not None,
        "HAS_ABS_MEAN": with_abs_mean,
        "HAS_BINS": counts is not None,
    }
    if not _launch("rows_of", (programs, groups), [*arguments, elements, channels, inner], options):
        return None
    return rows if dim is None or programs == 1 else merged(rows, channels)


def merged(rows: Tensor, channels: int = 1) -> Tensor | None:
    """Merge the rows of each channel in one launch: shape (channels, WIDTH); None if the kernels cannot be used.

    Args:
        rows: shape (n * channels, WIDTH), float64: the first row of every channel in turn, then the second of every
            channel, and so on; n is at most `MAX_PROGRAMS`.
        channels: how many there are.
    """
    into = _new_rows(channels, rows.device)
    arguments = [rows, into, len(rows) // channels, channels]
    return into if _launch("merge", (channels,), arguments, {"PARTS": MAX_PROGRAMS}) else None


@functools.cache
def adds_float64_fast(device: torch.device) -> bool:
    """Return True if a device adds float64 fast enough to sum in it; on others pairs of float32 are faster."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in FAST_FLOAT64


def report_compile_time() -> None:
    """Log once how long the kernels took to compile, if it was longer than `LONG_COMPILE_SECONDS`."""
    if LONG_COMPILE_SECONDS < _state.seconds < math.inf:
        inform(
            f"compiling the kernels that measure on the GPU took {_state.seconds:.1f} s. Triton keeps them on disk: "
            "the next run will find them there (this is said once)"
        )
        _state.seconds = math.inf


def tile(layout: str, dtype: torch.dtype, has_bins: bool) -> tuple[int, int]:
    """Return the size of a tile as (values per channel, channels)."""
    values, channels = TILES[layout]
    return (values // 2 if has_bins or dtype is torch.float64 else values), channels


def _readable(tensor: Tensor, dim: int | None) -> tuple[Tensor, tuple[int, int, int]]:
    """Return the tensor, copied if the kernels cannot read it, and its shape in memory, (outer, channels, inner)."""
    if tensor.dtype not in DTYPES:
        tensor = tensor.float() if tensor.dtype.is_floating_point or tensor.dtype is torch.bool else tensor.double()
    elif tensor.is_neg():
        tensor = tensor.resolve_neg()
    if dim is None and tensor.is_contiguous():
        return tensor, (1, 1, tensor.numel())
    order = dense_order(tensor)
    if order is None:
        tensor, order = tensor.contiguous(), list(range(tensor.dim()))
    if dim is None:
        return tensor, (1, 1, tensor.numel())
    place, sizes = order.index(dim), [tensor.shape[each] for each in order]
    return tensor, (math.prod(sizes[:place]), sizes[place], math.prod(sizes[place + 1 :]))


def dense_order(tensor: Tensor) -> list[int] | None:
    """Return the dimensions in their order in memory, the one with stride 1 last; None if there are gaps.

    Examples:
        >>> dense_order(torch.empty(2, 3, 4, 5, memory_format=torch.channels_last))
        [0, 2, 3, 1]
    """
    order = sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), tensor.shape[dim]), reverse=True)
    expected = 1
    for dim in reversed(order):
        if tensor.shape[dim] != 1:
            if tensor.stride(dim) != expected:
                return None
            expected *= tensor.shape[dim]
    return order


def _new_rows(count: int, device: torch.device) -> Tensor:
    # A tensor made under inference_mode could not be merged in place outside of it.
    with torch.inference_mode(False):
        return torch.empty((count, WIDTH), dtype=torch.float64, device=device)


def _code_of(layout: str, channels: int) -> int:
    """Return the constant of `triton_kernel` for a layout: FLAT, SPREAD, LAST or LAST_ALIGNED."""
    if layout == "last":
        return 3 if channels % 16 == 0 else 2
    return 1 if layout == "spread" else 0


def _launch(name: str, grid: tuple[int, ...], arguments: Sequence[Any], options: dict[str, Any]) -> bool:
    """Launch a kernel on the current stream of its tensors' device, and return whether that worked.

    The first failure of any kernel gives a warning and holds for all: `can_read` is False from then on.

    Raises:
        torch.OutOfMemoryError: the launch ran out of memory; this does not count as a failure.
    """
    tensor: Tensor = arguments[0]
    kernel = getattr(_kernels(), name)[grid]
    # Triton compiles for these; and for tensors that are not aligned to 16 bytes, such as parts of others.
    variant = (name, tensor.dtype, tensor.device, tensor.data_ptr() % 16 == 0, *options.values())
    run = functools.partial(kernel, *arguments, **options, **OPTIONS)
    try:
        # Triton launches on the current device, which need not be the tensor's.
        is_elsewhere = tensor.is_cuda and tensor.device.index != torch.cuda.current_device()
        with torch.cuda.device(tensor.device) if is_elsewhere else contextlib.nullcontext():
            if variant in _state.compiled:
                run()
            else:
                _compile(run)
                _state.compiled.add(variant)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if not _state.has_failed:
            _state.has_failed = True
            warn_switched_off("the Triton kernel (torch's own operations measure instead, which are slower)", error)
        return False
    return True


def _compile(run: Callable[[], Any]) -> None:
    """Call `run`, whose launch compiles a kernel, and add the time to `_state.seconds`. Errors are raised."""
    start = time.perf_counter()
    run()
    _state.seconds += time.perf_counter() - start
