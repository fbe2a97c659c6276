"""Calls the compiled kernel in C. Only this file passes memory addresses of tensors to it.

Large tensors are measured by torch's own threads, as many as torch uses. The results do not depend on their number.
"""

import functools
import math
import threading
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.measure.row import WIDTH, channel_stride, has_channels
from hookboard.messages import inform

try:
    import hookboard.measure._native as _native
except ImportError:  # there was no C compiler when hookboard was installed
    _native = None  # type: ignore[assignment]

_TYPES = {torch.float32: (0, 4), torch.float64: (1, 8), torch.bfloat16: (2, 2), torch.float16: (3, 2)}
"""The dtypes that the kernel reads: its number for each, and the bytes of a value."""

_COUNTING = threading.Lock()
"""Held while bins are added: the kernel may run without the interpreter's lock."""


@functools.cache
def report_missing_kernel() -> None:
    """Log once that the compiled kernel is missing, what that costs and how to get it; nothing if it is there."""
    if _native is None:
        inform(
            "its compiled kernel is missing, as there was no C compiler at installation. Measuring on the CPU gives "
            "the same numbers without it but takes 4 to 17 times as long. To get it, install a C compiler and then "
            "hookboard again, with `pip install --force-reinstall --no-deps --no-cache-dir` (this is said once)"
        )


class Form(NamedTuple):
    """How the kernel reads any tensor of one shape, stride and dtype, whatever its address.

    Args:
        shape: the shape of the tensor.
        stride: its strides.
        dtype: its dtype.
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
    """Return how the kernel reads the tensor; None if it must not.

    The kernel reads plain tensors of floats on the CPU that are contiguous, channels last (with 4 dimensions), or
    contiguous but for gaps between the parts of their first dimension, as `weight[::4]` is. A subclass may have no
    memory of its own, a tensor inside `torch.func` has none, a view may stand for the negative of its memory, and FSDP
    frees the memory of tensors that still exist.

    Args:
        tensor: the tensor.
        dim: the dimension of its channels; None, or one that the tensor does not have, for no channels. A tensor with
            more channels than get a row each is not read, see `channel_stride`; one with gaps is read only if the
            channels are dimension 0.
    """
    if not is_readable(tensor):
        return None
    dim = dim % tensor.dim() if dim is not None and has_channels(tensor, dim) else None
    if dim is not None and channel_stride(tensor.shape[dim]) > 1:
        return None
    values = reach = tensor.numel()
    if tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        outer, channels, inner = (1, 0, values) if dim is None else _extents(tensor, dim)
        apart = inner
    elif not dim and values and _has_gaps_between_parts_alone(tensor):
        inner, apart = values // len(tensor), tensor.stride(0)
        outer, channels = (len(tensor), 0) if dim is None else (1, len(tensor))
        reach = (len(tensor) - 1) * apart + inner
    else:
        return None
    given = _TYPES[tensor.dtype][0], outer, channels, inner, apart
    form = Form(tensor.shape, tensor.stride(), tensor.dtype, dim, channels, reach, given)
    return form if is_readable(tensor, reach) else None


def is_like(tensor: Tensor, form: Form) -> bool:
    """Return True if `read` may read this tensor with a form made for another one; much faster than `form_of`."""
    return (
        tensor.dtype is form.dtype
        and is_readable(tensor, form.reach)
        and tensor.shape == form.shape
        and tensor.stride() == form.stride
    )


def can_subtract(minus: Tensor, form: Form) -> bool:
    """Return True if `read` can subtract `minus` from a tensor of this form.

    It can if the form has no channels, and `minus` has the same shape, dtype and order in memory, without gaps.
    """
    values, stride = minus.numel(), form.stride
    if form.channels or minus.dtype is not form.dtype or not is_readable(minus, values) or minus.shape != form.shape:
        return False
    if form.reach != values:  # only between the parts of the first dimension
        stride = (values // len(minus), *stride[1:])
    strides = zip(minus.shape, minus.stride(), stride, strict=True)
    return minus.stride() == stride or all(size == 1 or own == wanted for size, own, wanted in strides)


def is_readable(tensor: Tensor, values: int = 0) -> bool:
    """Return True for a plain tensor on the CPU, of a dtype that the kernel reads, whose memory has not been freed.

    Args:
        tensor: the tensor.
        values: how many values its memory must hold, from its first one on.
    """
    kind = type(tensor)
    is_plain = (
        _native is not None
        and (kind is Tensor or kind is nn.Parameter)
        and tensor.dtype in _TYPES
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_neg()
    )
    try:
        needed = _TYPES[tensor.dtype][1] * (tensor.storage_offset() + values) if is_plain else 0
        return is_plain and tensor.untyped_storage().nbytes() >= needed and tensor.data_ptr() != 0
    except RuntimeError:  # a tensor inside torch.func
        return False


def _has_gaps_between_parts_alone(tensor: Tensor) -> bool:
    """Return True if each part along the first dimension is contiguous, and the parts do not overlap."""
    inner = left = tensor.numel() // len(tensor)
    for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True):
        left //= size
        if size > 1 and stride != left:
            return False
    return tensor.stride(0) >= inner


def read(
    tensor: Tensor,
    form: Form,
    *,
    with_abs_mean: bool,
    counts: Tensor | None = None,
    minus: Tensor | None = None,
) -> tuple[list[float] | None, np.ndarray | None]:
    """Measure a tensor by the kernel: its row, and the rows of its channels if the form has some.

    Args:
        tensor: the tensor.
        form: how to read it: what `form_of` returned for it, or for a tensor that it `is_like`.
        with_abs_mean: whether to measure `abs_mean`; otherwise that column is 0.
        counts: the bins of the values are added to this, shape (BINS,), int64, contiguous, on the CPU.
        minus: is subtracted from the tensor first, in float32 at least; it must have passed `can_subtract`.

    Returns:
        The row, WIDTH floats; and the rows of the channels, shape (channels, WIDTH), float64, None without channels. If
        squares of float64 values leave the range of float64, in any channel, the row is None and the rows of the
        channels are wrong; the bins have been counted.
    """
    less = 0 if minus is None else minus.data_ptr()
    given, threads = (tensor.data_ptr(), less, *form.given, with_abs_mean), torch.get_num_threads()
    if counts is None:
        row, memory = _native.measure(*given, 0, threads)
    else:
        with _COUNTING:
            row, memory = _native.measure(*given, counts.data_ptr(), threads)
    return row, None if memory is None else np.ndarray((form.channels, WIDTH), np.float64, memory)


def _extents(tensor: Tensor, dim: int) -> tuple[int, int, int]:
    """Return the tensor's shape in memory as (outer, channels, inner); `dim` is the dimension of the channels."""
    shape: tuple[int, ...] = tensor.shape
    channels = shape[dim]
    if not tensor.is_contiguous():  # channels last: in memory they are the last dimension
        shape, dim = (shape[0], shape[2], shape[3], shape[1]), (0, 3, 1, 2)[dim]
    return math.prod(shape[:dim]), channels, math.prod(shape[dim + 1 :])


def can_merge(rows: Tensor, owner: Tensor) -> bool:
    """Return True if `merged` can be used: a kernel is there, `rows` is contiguous on the CPU, `owner` is int64."""
    return _native is not None and rows.is_cpu and rows.is_contiguous() and owner.dtype is torch.long


def merged(rows: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Merge the rows of each owner by the kernel; arguments and result are those of `merge.merge`."""
    owner = owner.contiguous()
    memory = _native.merge_all(rows.data_ptr(), owner.data_ptr(), len(rows), owners)
    return torch.from_numpy(np.ndarray((owners, WIDTH), np.float64, memory))


def add_counts(counts: Tensor, more: Tensor) -> None:
    """Add `more` to `counts` in place, both of shape (BINS,), int64, while no other thread adds."""
    with _COUNTING:
        counts += more
