"""The compiled kernel. Only this file passes memory addresses of tensors to it."""

import math
import threading

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
    kind = type(tensor)
    if not (
        _native is not None
        and (kind is Tensor or kind is nn.Parameter)
        and tensor.dtype is torch.float32
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and (tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)))
        and not tensor.is_neg()
    ):
        return False
    try:
        needed = 4 * (tensor.storage_offset() + tensor.numel())
        return tensor.untyped_storage().nbytes() >= needed and tensor.data_ptr() != 0
    except RuntimeError:  # a tensor inside torch.func
        return False


def row_of(tensor: Tensor, *, with_abs_mean: bool) -> list[float]:
    """The row of a tensor that `can_read` has passed; `abs_mean` may be left 0."""
    return _native.measure(tensor.data_ptr(), tensor.numel(), with_abs_mean)


def rows_of_channels(tensor: Tensor, dim: int, *, with_abs_mean: bool) -> tuple[list[float], np.ndarray]:
    """The rows of a tensor that `can_read` has passed, and of its channels; `abs_mean` may be left 0.

    Args:
        tensor: the values.
        dim: the dimension of the channels, not negative.
        with_abs_mean: whether to fill that column.

    Returns:
        The row of the whole tensor, and those of the channels, shape (channels, WIDTH), float64.
    """
    shape: tuple[int, ...] = tensor.shape
    channels = shape[dim]
    if not tensor.is_contiguous():  # channels last: in memory they are the last dimension
        shape, dim = (shape[0], shape[2], shape[3], shape[1]), (0, 3, 1, 2)[dim]
    outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    row, rows = _native.measure_channels(tensor.data_ptr(), outer, channels, inner, with_abs_mean)
    return row, np.frombuffer(rows).reshape(channels, WIDTH)


def count_into(counts: Tensor, tensor: Tensor) -> None:
    """Add the bins of a tensor that `can_read` has passed.

    Args:
        counts: shape (BINS,), int64, contiguous, on the CPU; changed in place.
        tensor: the values.
    """
    with _COUNTING:
        _native.count_into(counts.data_ptr(), tensor.data_ptr(), tensor.numel())


def add_counts(counts: Tensor, more: Tensor) -> None:
    """Add counted bins, both of shape (BINS,), int64, while no other thread does."""
    with _COUNTING:
        counts += more
