"""The compiled kernel. Only this file passes memory addresses of tensors to it.

Large tensors are measured by as many threads as torch uses, which are torch's own. The numbers do not depend on how
many there are.
"""

import functools
import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hookboard.measure.row import WIDTH, every_of, has_channels
from hookboard.messages import inform

try:
    import hookboard.measure._native as _native
except ImportError:  # there was no C compiler when hookboard was installed
    _native = None  # type: ignore[assignment]

_TYPES = {torch.float32: (0, 4), torch.float64: (1, 8), torch.bfloat16: (2, 2), torch.float16: (3, 2)}
"""What the kernel reads: the number that it has for a type, and the bytes of a value."""

_COUNTING = threading.Lock()
"""Held while bins are added: the kernel may run without the interpreter's lock."""


@functools.cache
def tell_of_missing_kernel() -> None:
    """Say once, where the CPU measures, that there is no compiled kernel, what that costs and how to get it."""
    if _native is None:
        inform(
            "its compiled kernel is missing, as there was no C compiler at installation. Measuring on the CPU gives "
            "the same numbers without it but takes 4 to 17 times as long. To get it, install a C compiler and then "
            "hookboard again, with `pip install --force-reinstall --no-deps --no-cache-dir` (this is said once)"
        )


class Form(NamedTuple):
    """How the kernel reads every tensor of one shape, one stride and one type, wherever it lies.

    Args:
        shape: of the tensor.
        stride: of the tensor.
        dtype: of the tensor.
        dim: the dimension of the channels whose rows are wanted, not negative; None for the whole alone.
        channels: how many there are; 0 if their rows are not wanted.
        reach: how many values lie in memory from its first to its last, gaps included.
        given: what the kernel takes, see `Job` in `_native.c`: type, outer, channels, inner, apart.
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
            more channels than get a row each is not read, see `every_of`; with gaps only dimension 0 is.
    """
    if not is_readable(tensor):
        return None
    dim = dim % tensor.dim() if dim is not None and has_channels(tensor, dim) else None
    if dim is not None and every_of(tensor.shape[dim]) > 1:
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
    """Return whether `form_of` would give this form again, with the same arguments; it takes a fraction of the time."""
    return (
        tensor.dtype is form.dtype
        and is_readable(tensor, form.reach)
        and tensor.shape == form.shape
        and tensor.stride() == form.stride
    )


def can_subtract(minus: Tensor, form: Form) -> bool:
    """Return whether `minus` can be subtracted from a tensor of this form: no channels; same order, without gaps."""
    values, stride = minus.numel(), form.stride
    if form.channels or minus.dtype is not form.dtype or not is_readable(minus, values) or minus.shape != form.shape:
        return False
    if form.reach != values:  # only between the parts of the first dimension
        stride = (values // len(minus), *stride[1:])
    strides = zip(minus.shape, minus.stride(), stride, strict=True)
    return minus.stride() == stride or all(size == 1 or own == wanted for size, own, wanted in strides)


def is_readable(tensor: Tensor, values: int = 0) -> bool:
    """Return whether it is a tensor of torch's own, of a type that the kernel reads, and still in memory.

    Args:
        tensor: the tensor.
        values: how many its memory must hold, from its first one on.
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
    """Return whether the parts of the first dimension have no gaps, and do not overlap."""
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
    """Return the row of a tensor, and those of its channels; `abs_mean` may be left 0.

    Args:
        tensor: the values.
        form: of the tensor.
        with_abs_mean: whether `abs_mean` is wanted.
        counts: the bins of the values are added to this, shape (BINS,), int64, contiguous, on the CPU.
        minus: is subtracted first, in float32 at least; it must have passed `can_subtract`.

    Returns:
        The row, and the rows of the channels, shape (channels, WIDTH), float64; None if they are not wanted. If squares
        of float64 values leave the range of float64, in any channel, the row is None, the rows of the channels are
        wrong, and only the bins were added.
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
    """Return the shape (outer, channels, inner) of the tensor in memory, where `dim` is that of the channels."""
    shape: tuple[int, ...] = tensor.shape
    channels = shape[dim]
    if not tensor.is_contiguous():  # channels last: in memory they are the last dimension
        shape, dim = (shape[0], shape[2], shape[3], shape[1]), (0, 3, 1, 2)[dim]
    return math.prod(shape[:dim]), channels, math.prod(shape[dim + 1 :])


def can_merge(rows: Tensor, owner: Tensor) -> bool:
    """Return whether `merged` takes these rows."""
    return _native is not None and rows.is_cpu and rows.is_contiguous() and owner.dtype is torch.long


def merged(rows: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Merge rows that `can_merge` has passed, as `merge` of merge.py does."""
    owner = owner.contiguous()
    memory = _native.merge_all(rows.data_ptr(), owner.data_ptr(), len(rows), owners)
    return torch.from_numpy(np.ndarray((owners, WIDTH), np.float64, memory))


def add_counts(counts: Tensor, more: Tensor) -> None:
    """Add counted bins, both of shape (BINS,), int64, while no other thread does."""
    with _COUNTING:
        counts += more


def sums_of_bins(counts: Sequence[np.ndarray], places: np.ndarray) -> np.ndarray | None:
    """Return the sums of bins between places in the order of values, float64; None if the kernel cannot add them.

    Args:
        counts: of each site, shape (BINS,), all int64 or all float64.
        places: of each site, ascending, shape (sites, parts + 1).

    Returns:
        Shape (sites, parts).
    """
    kinds = {each.dtype for each in counts}
    if _native is None or kinds not in ({np.dtype(np.int64)}, {np.dtype(np.float64)}):
        return None
    if not all(each.flags.c_contiguous for each in counts):
        return None
    places = np.ascontiguousarray(places, np.int64)
    addresses = [each.__array_interface__["data"][0] for each in counts]
    parts = places.shape[1] - 1
    memory = _native.sum_bins(addresses, kinds == {np.dtype(np.float64)}, places.__array_interface__["data"][0], parts)
    return np.frombuffer(memory).reshape(-1, parts)
