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

_TYPES = {torch.float32: (0, 4), torch.float64: (1, 8), torch.bfloat16: (2, 2), torch.float16: (3, 2)}
"""What the kernel reads: the number that it has for a type, and the bytes of a value."""

_LARGE = 1 << 15
"""Tensors with fewer values are never worth more than one thread."""

_COUNTING = threading.Lock()
"""Held while bins are added: the kernel may run without the interpreter's lock."""


def can_read(tensor: Tensor) -> bool:
    """Whether the kernel may read the tensor: all its values lie at its address, in any order, in a type that it reads.

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
    if minus is not None and not (
        minus.is_contiguous() and can_read(minus) and minus.shape == tensor.shape and minus.dtype is tensor.dtype
    ):
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
        and tensor.dtype in _TYPES
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_neg()
    )


def _is_in_memory(tensor: Tensor, values: int) -> bool:
    """Whether so many values from its first one on lie in memory."""
    try:
        needed = _TYPES[tensor.dtype][1] * (tensor.storage_offset() + values)
        return tensor.untyped_storage().nbytes() >= needed and tensor.data_ptr() != 0
    except RuntimeError:  # a tensor inside torch.func
        return False


def row_of(tensor: Tensor, *, with_abs_mean: bool, counts: Tensor | None = None) -> list[float] | None:
    """The row of a tensor that `can_read` has passed; `abs_mean` may be left 0.

    Args:
        tensor: the values.
        with_abs_mean: whether to fill that column.
        counts: the bins of the values are added to this, shape (BINS,), int64, contiguous, on the CPU.

    Returns:
        The row; None for float64 values whose squares leave its range. Then only the bins were added.
    """
    values = tensor.numel()
    threads = torch.get_num_threads() if values >= _LARGE else 1
    given = tensor.data_ptr(), _TYPES[tensor.dtype][0], values, with_abs_mean
    if counts is None:
        return _native.measure(*given, 0, threads)
    with _COUNTING:
        return _native.measure(*given, counts.data_ptr(), threads)


def rows_of_channels(
    tensor: Tensor, dim: int, *, with_abs_mean: bool, counts: Tensor | None = None
) -> tuple[list[float] | None, np.ndarray]:
    """The rows of a tensor that `can_read` has passed, and of its channels; `abs_mean` may be left 0.

    Args:
        tensor: the values.
        dim: the dimension of the channels, not negative.
        with_abs_mean: whether to fill that column.
        counts: as in `row_of`.

    Returns:
        The row of the whole tensor, and those of the channels, shape (channels, WIDTH), float64. The first is None, and
        the others are not right, for float64 values whose squares leave its range, of any channel.
    """
    outer, channels, inner = _extents(tensor, dim)
    given = tensor.data_ptr(), _TYPES[tensor.dtype][0], outer, channels, inner, with_abs_mean
    threads = torch.get_num_threads()
    if counts is None:
        row, rows = _native.measure_channels(*given, 0, threads)
    else:
        with _COUNTING:
            row, rows = _native.measure_channels(*given, counts.data_ptr(), threads)
    return row, np.frombuffer(rows).reshape(channels, WIDTH)


def rows_of_all(
    tensors: Sequence[tuple[Tensor, int | None, Tensor | None]], *, with_abs_mean: bool
) -> list[tuple[list[float] | None, np.ndarray | None]]:
    """The rows of tensors that `can_read_together` has passed, and of their channels; `abs_mean` may be left 0.

    Args:
        tensors: each with the dimension of its channels, which is the first where it has gaps, and None if they are not
            wanted; and with what is subtracted from it first, in float32 at least: None for nothing, as it must be
            where it has channels.
        with_abs_mean: whether to fill that column.

    Returns:
        For each tensor what `row_of` or `rows_of_channels` returns, None in place of the rows of channels that are not
        wanted.
    """
    jobs = [_job(*each) for each in tensors]
    of_all, of_channels = _native.measure_all(jobs, with_abs_mean, torch.get_num_threads())
    rows, channels = (np.frombuffer(memory).reshape(-1, WIDTH) for memory in (of_all, of_channels))
    start, found = 0, []
    for row, (_, dim, _), (_, _, _, _, count, _, _) in zip(rows.tolist(), tensors, jobs, strict=True):
        is_right = row[0] == row[0]  # its count is NaN
        found.append((row if is_right else None, None if dim is None else channels[start : start + count]))
        start += count
    return found


def _job(tensor: Tensor, dim: int | None, minus: Tensor | None) -> tuple[int, int, int, int, int, int, int]:
    """What `measure_all` of the kernel takes for a tensor."""
    if tensor.is_contiguous():
        outer, channels, inner = (1, 0, tensor.numel()) if dim is None else _extents(tensor, dim)
        apart = inner
    else:
        inner, apart = tensor.numel() // len(tensor), tensor.stride(0)
        outer, channels = (len(tensor), 0) if dim is None else (1, len(tensor))
    subtracted = 0 if minus is None else minus.data_ptr()
    return tensor.data_ptr(), subtracted, _TYPES[tensor.dtype][0], outer, channels, inner, apart


def _extents(tensor: Tensor, dim: int) -> tuple[int, int, int]:
    """The shape (outer, channels, inner) of the tensor in memory, where `dim` is that of the channels."""
    shape: tuple[int, ...] = tensor.shape
    channels = shape[dim]
    if not tensor.is_contiguous():  # channels last: in memory they are the last dimension
        shape, dim = (shape[0], shape[2], shape[3], shape[1]), (0, 3, 1, 2)[dim]
    return math.prod(shape[:dim]), channels, math.prod(shape[dim + 1 :])


def can_merge(rows: Tensor, owner: Tensor) -> bool:
    """Whether `merged` takes these rows."""
    return _native is not None and rows.is_cpu and rows.is_contiguous() and owner.dtype is torch.long


def merged(rows: Tensor, owner: Tensor, owners: int) -> Tensor:
    """What `merge` of merge.py returns, for rows that `can_merge` has passed."""
    owner = owner.contiguous()
    memory = _native.merge_all(rows.data_ptr(), owner.data_ptr(), len(rows), owners)
    return torch.from_numpy(np.ndarray((owners, WIDTH), np.float64, memory))


def count_into(counts: Tensor, tensor: Tensor) -> None:
    """Add the bins of a tensor that `can_read` has passed, as `row_of` does."""
    row_of(tensor, with_abs_mean=False, counts=counts)


def add_counts(counts: Tensor, more: Tensor) -> None:
    """Add counted bins, both of shape (BINS,), int64, while no other thread does."""
    with _COUNTING:
        counts += more
