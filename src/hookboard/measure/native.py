"""Calls the compiled kernel in C, by addresses of memory. Torch's threads run it; their number changes no result."""

import functools

import torch
from torch import Tensor

from hookboard.base.messages import inform
from hookboard.measure.memory import shape_in_memory
from hookboard.measure.row import BINS, WIDTH

try:
    import hookboard.measure._native as _native
except ImportError:  # there was no C compiler when hookboard was installed
    _native = None  # type: ignore[assignment]

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}  # the kernel's number for each


@functools.cache
def report_missing_kernel() -> None:
    """Log once that the compiled kernel is missing, what that costs and how to get it; nothing if it is there."""
    if _native is None:
        inform(
            "the compiled kernel is missing because no C compiler was found when hookboard was installed. Without the "
            "kernel, measuring on the CPU gives the same numbers but takes 4 to 17 times as long. To get the kernel, "
            "install a C compiler and then reinstall hookboard with `pip install --force-reinstall --no-deps "
            "--no-cache-dir` (shown once)"
        )


def is_there() -> bool:
    """Return True if the kernel was compiled when hookboard was installed."""
    return _native is not None


Form = tuple[int, int, int, int, int, int, bool]
"""How the kernel reads any tensor of one shape, stride and dtype: the type, outer, channels, inner, apart and every of
`Job` in `_native.c`, and whether it measures `abs_mean`."""


def form_of(tensor: Tensor, dim: int | None = None, *, has_minus: bool, with_abs_mean: bool) -> Form | None:
    """Return how the kernel reads a plain tensor on the CPU; None if it cannot, as channels of a difference."""
    if tensor.dtype not in _TYPES or not tensor.numel() or tensor.is_neg():
        return None
    shape = shape_in_memory(tensor.shape, tensor.stride(), dim)
    if shape is None:
        return None
    _, outer, channels, inner, apart, every = shape
    if has_minus and every:
        return None
    outer, channels = (outer, channels) if every else (channels, 0)
    return _TYPES[tensor.dtype], outer, channels, inner, apart, max(every, 1), with_abs_mean


def measure_into(job: tuple[Form, Tensor, Tensor | None, int, bool, int], rows: Tensor, bins: Tensor) -> bool:
    """Measure a tensor into rows of (n, WIDTH), float64, and bins of (n, BINS), int64; `job` is as in `on_gpu`."""
    form, values, minus, row, is_fresh, bin_row = job
    less, at = 0 if minus is None else minus.data_ptr(), rows.data_ptr() + 8 * WIDTH * row
    counts = 0 if bin_row < 0 else bins.data_ptr() + 8 * BINS * bin_row
    _native.measure_into(values.data_ptr(), less, counts, at, is_fresh, torch.get_num_threads(), form)
    return True
