"""Calls the compiled kernel in C. Only this file passes memory addresses of tensors to it.

Large tensors are measured by torch's own threads, as many as torch uses. The results do not depend on their number.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookboard.base.messages import inform
from hookboard.measure.memory import shape_in_memory
from hookboard.measure.row import WIDTH

try:
    import hookboard.measure._native as _native
except ImportError:  # there was no C compiler when hookboard was installed
    _native = None  # type: ignore[assignment]

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
"""The dtypes that the kernel reads, and its number for each."""


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


class Form(NamedTuple):
    """How the kernel reads any tensor of one shape, stride and dtype, whatever its address.

    Args:
        channels: the number of channels; 0 if their rows are not wanted.
        nbytes: the number of bytes from its first value to its last, gaps included.
        given: arguments of the kernel, see `Job` in `_native.c`: type, outer, channels, inner, apart, every.
    """

    channels: int
    nbytes: int
    given: tuple[int, int, int, int, int, int]
    with_abs_mean: bool


class Job(NamedTuple):
    """What is measured: the values, less those of `minus`; the row that they are merged into, and the bins.

    Args:
        row: the first row of the site; those of channels follow.
        is_fresh: True if these rows hold nothing yet.
        bins: the row of the site's bins; -1 without bins.
    """

    form: Any
    values: Tensor
    minus: Tensor | None
    row: int
    is_fresh: bool
    bins: int


def form_of(
    tensor: Tensor, dim: int | None = None, *, has_bins: bool, has_minus: bool, with_abs_mean: bool
) -> Form | None:
    """Return how the kernel reads a tensor; None if it cannot.

    The kernel reads plain tensors of floats on the CPU that have no gaps, or gaps only between the parts of their first
    dimension, as `weight[::4]` has; then only that may have the channels. Of a difference it reads no channels.
    """
    if tensor.dtype not in _TYPES or not tensor.numel() or tensor.is_neg():
        return None
    shape = shape_in_memory(tensor.shape, tensor.stride(), dim)
    if shape is None or (has_minus and shape.every):
        return None
    reach = (shape.channels - 1) * shape.apart + shape.inner if shape.apart > shape.inner else tensor.numel()
    outer, channels = (shape.outer, shape.channels) if shape.every else (shape.channels, 0)
    given = _TYPES[tensor.dtype], outer, channels, shape.inner, shape.apart, max(shape.every, 1)
    return Form(channels, reach * tensor.element_size(), given, with_abs_mean)


def measure_into(jobs: Iterable[Job], rows: Tensor, bins: Tensor | None) -> list[int]:
    """Measure tensors, and merge each into its rows, shape (n, WIDTH), and its bins.

    Raises:
        TypeError: the memory of a tensor has been freed, as FSDP does with parameters that it has sharded.
    """
    into, threads = rows.data_ptr(), torch.get_num_threads()
    for form, values, minus, row, is_fresh, bin_row in jobs:
        less = 0 if minus is None else minus.data_ptr()
        counts = 0 if bin_row < 0 or bins is None else bins[bin_row].data_ptr()
        at = into + 8 * WIDTH * row
        address = values.data_ptr()
        first = values.storage_offset() * values.element_size()
        if not address or values.untyped_storage().nbytes() < first + form.nbytes:
            raise TypeError("its memory has been freed")
        kind, outer, channels, inner, apart, every = form.given
        how = is_fresh, form.with_abs_mean, threads
        _native.measure_into(address, less, counts, at, kind, outer, channels, inner, apart, every, *how)
    return []
