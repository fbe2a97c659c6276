"""Calls the compiled kernel in C. Only this file passes memory addresses of tensors to it.

Large tensors are measured by torch's own threads, as many as torch uses. The results do not depend on their number.
"""

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.base.messages import inform
from hookboard.measure.memory import can_subtract, is_plain, shape_in_memory
from hookboard.measure.row import WIDTH

try:
    import hookboard.measure._native as _native
except ImportError:  # there was no C compiler when hookboard was installed
    _native = None  # type: ignore[assignment]

_TYPES = {torch.float32: (0, 4), torch.float64: (1, 8), torch.bfloat16: (2, 2), torch.float16: (3, 2)}
"""The dtypes that the kernel reads: its number for each, and the bytes of a value."""


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


class Form(NamedTuple):
    """How the kernel reads any tensor of one shape, stride and dtype, whatever its address.

    Args:
        dim: the dimension of the channels whose rows are wanted, not negative; None for the row of the tensor alone.
        channels: the number of channels; 0 if their rows are not wanted.
        reach: the number of values in memory from its first to its last, gaps included.
        given: arguments of the kernel, see `Job` in `_native.c`: type, outer, channels, inner, apart.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    dim: int | None
    channels: int
    reach: int
    given: tuple[int, int, int, int, int]


def form_of(tensor: Tensor, dim: int | None = None) -> Form | None:
    """Return how the kernel reads a tensor; None if it cannot.

    The kernel reads plain tensors of floats on the CPU that have no gaps, or gaps only between the parts of their first
    dimension, as `weight[::4]` has; then only that may have the channels. A tensor with more channels than get a row
    each is not read, see `channel_stride`.
    """
    if _native is None or not is_plain(tensor) or not (tensor.is_cpu and tensor.dtype in _TYPES and tensor.numel()):
        return None
    shape = shape_in_memory(tensor.shape, tensor.stride(), dim)
    if shape is None or shape.every > 1:
        return None
    has_gaps = shape.apart > shape.inner
    reach = (shape.channels - 1) * shape.apart + shape.inner if has_gaps else tensor.numel()
    outer, channels = (shape.outer, shape.channels) if shape.every else (shape.channels, 0)
    given = _TYPES[tensor.dtype][0], outer, channels, shape.inner, shape.apart
    of_channels = dim % tensor.dim() if dim is not None and shape.every else None
    return Form(tensor.shape, tensor.stride(), tensor.dtype, of_channels, channels, reach, given)


def read(
    tensor: Tensor,
    form: Form,
    *,
    with_abs_mean: bool,
    counts: Tensor | None = None,
    minus: Tensor | None = None,
) -> tuple[list[float] | None, np.ndarray | None] | None:
    """Measure a tensor by the kernel: its row, and the rows of its channels if the form has some.

    It looks at each tensor before its address goes to the kernel: a subclass may have no memory of its own, a tensor
    inside `torch.func` has none, a view may stand for the negative of its memory, and FSDP frees the memory of tensors
    that still exist.

    Args:
        tensor: the tensor.
        form: how to read it: what `form_of` returned for it, or for another tensor before.
        with_abs_mean: whether to measure `abs_mean`; otherwise that column is 0.
        counts: the bins of the values are added to this, shape (BINS,), int64, contiguous, on the CPU.
        minus: is subtracted from the tensor first, in float32 at least.

    Returns:
        None, and nothing is counted, if the kernel must not read the tensor in this form, or cannot subtract `minus`:
        it can if that lies in the same order, without gaps, and the form has no channels.
        Otherwise the row, WIDTH floats; and the rows of the channels, shape (channels, WIDTH), float64, None without
        channels. If squares of float64 values leave the range of float64, in any channel, the row is None and the rows
        of the channels are wrong; the bins have been counted.
    """
    kind = type(tensor)
    is_alike = (
        (kind is Tensor or kind is nn.Parameter)
        and tensor.dtype is form.dtype
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_neg())
        and tensor.shape == form.shape
        and tensor.stride() == form.stride
    )
    if not is_alike or not (minus is None or (not form.channels and can_subtract(minus, tensor))):
        return None
    try:
        needed = _TYPES[form.dtype][1] * (tensor.storage_offset() + form.reach)
        address = tensor.data_ptr() if tensor.untyped_storage().nbytes() >= needed else 0
    except RuntimeError:  # a tensor inside torch.func
        return None
    if not address:
        return None
    less = 0 if minus is None else minus.data_ptr()
    into = 0 if counts is None else counts.data_ptr()
    row, memory = _native.measure(address, less, *form.given, with_abs_mean, into, torch.get_num_threads())
    return row, None if memory is None else np.ndarray((form.channels, WIDTH), np.float64, memory)


def measure(
    tensor: Tensor, dim: int | None = None, *, with_abs_mean: bool, counts: Tensor | None = None
) -> tuple[list[float] | None, np.ndarray | None] | None:
    """Return what `read` does of a tensor in the form that `form_of` finds; None also if it finds none."""
    form = form_of(tensor, dim)
    return None if form is None else read(tensor, form, with_abs_mean=with_abs_mean, counts=counts)


def merge(rows: Tensor, owner: Tensor, owners: int) -> Tensor | None:
    """Merge the rows of each owner by the kernel, as `merge.merge` does; None if it cannot read them."""
    if _native is None or not (rows.is_cpu and rows.is_contiguous() and owner.dtype is torch.long):
        return None
    owner = owner.contiguous()
    memory = _native.merge_all(rows.data_ptr(), owner.data_ptr(), len(rows), owners)
    return torch.from_numpy(np.ndarray((owners, WIDTH), np.float64, memory))
