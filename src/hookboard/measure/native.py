"""The compiled kernel. Only this file passes memory addresses of tensors to it.

Large tensors are measured by as many threads as torch uses, which are torch's own. The numbers do not depend on how
many there are.
"""

import math
import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.measure.row import WIDTH

try:
    import hookboard.measure._native as _native
except ImportError:  # there was no C compiler when hookboard was installed
    _native = None  # type: ignore[assignment]

_COUNTING = threading.Lock()
"""Held while bins are added: the kernel runs without the interpreter's lock."""


def can_read(tensor: Tensor) -> bool:
    """Whether the kernel may read the tensor: all its values lie at its address, in any order, as float32.

    Only plain tensors pass. A subclass may have no memory of its own, a tensor inside `torch.func` has none, a view
    may mean the negative of what lies there, and FSDP frees the memory of tensors that still exist.
    """
    return (
        _is_plain(tensor)
        and (tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)))
        and _is_in_memory(tensor, tensor.numel())
    )


def can_read_together(tensor: Tensor, minus: Tensor | None = None) -> bool:
    """Whether `rows_of_all` may read the tensor. There may also be gaps between its first dimension's parts.

    Args:
        tensor: the tensor.
        minus: what is to be subtracted from it; it must have no gaps.
    """
    if minus is not None and not (minus.is_contiguous() and can_read(minus) and minus.shape == tensor.shape):
        return False
    if not _is_plain(tensor):
        return False
    if tensor.is_contiguous():
        return _is_in_memory(tensor, tensor.numel())
    if not tensor.numel():
        return False
    # A slice such as weight[::4]: parts without gaps, the next one behind the last.
    inner = left = tensor.numel() // len(tensor)
    for size, stride in zip(tensor.shape[1:], tensor.stride()[1:], strict=True):
        left //= size
        if size > 1 and stride != left:
            return False
    return tensor.stride(0) >= inner and _is_in_memory(tensor, (len(tensor) - 1) * tensor.stride(0) + inner)


def _is_plain(tensor: Tensor) -> bool:
    kind = type(tensor)
    return (
        _native is not None
        and (kind is Tensor or kind is nn.Parameter)
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_neg()
    )


def _is_in_memory(tensor: Tensor, values: int) -> bool:
    """Whether so many values from its first one on lie in memory."""
    try:
        needed = 4 * (tensor.storage_offset() + values)
        return tensor.untyped_storage().nbytes() >= needed and tensor.data_ptr() != 0
    except RuntimeError:  # a tensor inside torch.func
        return False


def row_of(tensor: Tensor, *, with_abs_mean: bool) -> list[float]:
    """The row of a tensor that `can_read` has passed; `abs_mean` may be left 0."""
    return _native.measure(tensor.data_ptr(), tensor.numel(), with_abs_mean, torch.get_num_threads())


def rows_of_channels(tensor: Tensor, dim: int, *, with_abs_mean: bool) -> tuple[list[float], np.ndarray]:
    """The rows of a tensor that `can_read` has passed, and of its channels; `abs_mean` may be left 0.

    Args:
        tensor: the values.
        dim: the dimension of the channels, not negative.
        with_abs_mean: whether to fill that column.

    Returns:
        The row of the whole tensor, and those of the channels, shape (channels, WIDTH), float64.
    """
    outer, channels, inner = _extents(tensor, dim)
    row, rows = _native.measure_channels(
        tensor.data_ptr(), outer, channels, inner, with_abs_mean, torch.get_num_threads()
    )
    return row, np.frombuffer(rows).reshape(channels, WIDTH)


def rows_of_all(
    tensors: Sequence[tuple[Tensor, int | None, Tensor | None]], *, with_abs_mean: bool
) -> list[tuple[list[float], np.ndarray | None]]:
    """The rows of tensors that `can_read_together` has passed, and of their channels; `abs_mean` may be left 0.

    Args:
        tensors: each with the dimension of its channels, which is the first where it has gaps, and None if they are not
            wanted; and with what is subtracted from it first: None for nothing, as it must be where it has channels.
        with_abs_mean: whether to fill that column.

    Returns:
        For each tensor what `row_of` or `rows_of_channels` returns, None in place of the rows of channels that are not
        wanted.
    """
    jobs = [_job(*each) for each in tensors]
    of_all, of_channels = _native.measure_all(jobs, with_abs_mean, torch.get_num_threads())
    rows, channels = (np.frombuffer(memory).reshape(-1, WIDTH) for memory in (of_all, of_channels))
    start, found = 0, []
    for row, (_, dim, _), (_, _, _, count, _, _) in zip(rows.tolist(), tensors, jobs, strict=True):
        found.append((row, None if dim is None else channels[start : start + count]))
        start += count
    return found


def _job(tensor: Tensor, dim: int | None, minus: Tensor | None) -> tuple[int, int, int, int, int, int]:
    """What `measure_all` of the kernel takes for a tensor."""
    if tensor.is_contiguous():
        outer, channels, inner = (1, 0, tensor.numel()) if dim is None else _extents(tensor, dim)
        apart = inner
    else:
        inner, apart = tensor.numel() // len(tensor), tensor.stride(0)
        outer, channels = (len(tensor), 0) if dim is None else (1, len(tensor))
    return tensor.data_ptr(), 0 if minus is None else minus.data_ptr(), outer, channels, inner, apart


def _extents(tensor: Tensor, dim: int) -> tuple[int, int, int]:
    """The shape (outer, channels, inner) of the tensor in memory, where `dim` is that of the channels."""
    shape: tuple[int, ...] = tensor.shape
    channels = shape[dim]
    if not tensor.is_contiguous():  # channels last: in memory they are the last dimension
        shape, dim = (shape[0], shape[2], shape[3], shape[1]), (0, 3, 1, 2)[dim]
    return math.prod(shape[:dim]), channels, math.prod(shape[dim + 1 :])


def are_finite(tensors: Sequence[Tensor]) -> bool | None:
    """Whether no value of some small tensors is NaN or infinite; None if the kernel may not read one of them."""
    if not all(map(can_read, tensors)):
        return None
    return _native.are_finite([(tensor.data_ptr(), tensor.numel()) for tensor in tensors])


def count_into(counts: Tensor, tensor: Tensor) -> None:
    """Add the bins of a tensor that `can_read` has passed.

    Args:
        counts: shape (BINS,), int64, contiguous, on the CPU; changed in place.
        tensor: the values.
    """
    with _COUNTING:
        _native.count_into(counts.data_ptr(), tensor.data_ptr(), tensor.numel(), torch.get_num_threads())


def add_counts(counts: Tensor, more: Tensor) -> None:
    """Add counted bins, both of shape (BINS,), int64, while no other thread does."""
    with _COUNTING:
        counts += more
