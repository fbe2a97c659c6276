"""Reads the real numbers in any kind of tensor as one flat tensor, which statistics are computed from."""

import math
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.masked import MaskedTensor

from hookboard.base.torch_private import as_plain, is_fake, is_inside_transform

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}

_UNWRITTEN = 0x7FF8_5EED_5EED_5EED
"""The bits of a NaN that no computation gives."""

_WRITES_ALL: weakref.WeakSet[type] = weakref.WeakSet()
"""The subclasses that are known to write all their numbers when they are copied into a plain tensor."""

MAX_BLOCK_VALUES = 1 << 22
"""Maximum number of values in a block of `blocks_of`: 16 MB in float32, which few weights of a usual model exceed."""


class Values(NamedTuple):
    """The numbers in a tensor.

    Args:
        numbers: shape (n,), real, plain, in any order.
        zeros: the number of implicit zeros of a sparse tensor.
        holes: the number of `numbers` that do not belong to the tensor and were set to NaN, shape (); or None.
    """

    numbers: Tensor
    zeros: int = 0
    holes: Tensor | None = None


def values_of(tensor: Tensor, *, may_wait: bool | None = None) -> Values:
    """Return the numbers in a detached tensor of any dtype, layout, subclass and device.

    - A dense real tensor keeps its dtype and is copied only if its memory has gaps.
    - A complex tensor gives the modulus of its numbers, in float64.
    - A sparse tensor gives its explicit values and the count of implicit zeros.
    - A nested tensor gives what lies within its lengths, a MaskedTensor what its mask lets through.
    - Quantized tensors and other layouts give their dense form.
    - A subclass that wraps other tensors is copied by its own operation.

    The host waits for the device only if it `may_wait`; by default if the device is the CPU.

    Raises:
        TypeError: the tensor has no values, or does not let them be read; the message says why.

    Examples:
        >>> values_of(torch.tensor([[3 + 4j, 0]])).numbers
        tensor([5., 0.], dtype=torch.float64)
        >>> values_of(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
        Values(numbers=tensor([2.]), zeros=3, holes=None)
    """
    kind = type(tensor)
    is_subclass = kind is not Tensor and kind is not nn.Parameter
    if is_subclass:
        if nn.parameter.is_lazy(tensor):
            raise TypeError("a lazy parameter has no values before the first forward pass")
        if is_fake(tensor):
            raise TypeError("a fake tensor has no values")
        if issubclass(kind, nn.Parameter) and not (tensor.is_floating_point() or tensor.is_complex()):
            # As those of bitsandbytes, which hold numbers of 4 and 8 bits.
            raise TypeError(
                f"the {tensor.dtype} in a {kind.__name__} holds packed values that only the module itself can unpack"
            )
        if kind.__torch_dispatch__ is Tensor.__torch_dispatch__:
            # It may give torch's functions a meaning of its own; its memory is that of any tensor.
            tensor = as_plain(tensor)
    if is_inside_transform(tensor):
        raise TypeError("inside torch.func (vmap, grad, jvp, functionalize) the values of a tensor cannot be read")
    if tensor.is_meta:
        raise TypeError("a meta tensor has no values")
    may_wait = tensor.is_cpu if may_wait is None else may_wait
    if is_subclass and isinstance(tensor, MaskedTensor):
        return _masked(tensor, may_wait)
    if tensor.is_nested:
        return _nested(tensor, may_wait)
    tensor = _plain(tensor) if is_subclass else with_memory(tensor)
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is torch.strided:
        return Values(_flat(_real(tensor)))
    if tensor.layout is torch.sparse_coo:
        explicit = tensor.coalesce().values()
    elif tensor.layout in _COMPRESSED:
        explicit = tensor.values()
    else:
        return values_of(tensor.to_dense(), may_wait=may_wait)
    return Values(_flat(_real(with_memory(explicit))), tensor.numel() - explicit.numel())


def unscaled(gradient: Tensor, scale: Tensor) -> Tensor:
    """Return a gradient divided by the scale of a GradScaler, in float32 or wider: half precision could underflow."""
    gradient = with_memory(gradient) if type(gradient) is Tensor else gradient
    return gradient.to(single_at_least(gradient.dtype)) / scale.to(gradient.device)


def single_at_least(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for computing with tensors of this dtype: the dtype itself if it is a wider float, else float32.

    Complex dtypes become complex64 at least.

    >>> single_at_least(torch.bfloat16), single_at_least(torch.int64), single_at_least(torch.float64)
    (torch.float32, torch.float32, torch.float64)
    """
    # The types of 8 bits and less promote to nothing.
    return (
        torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else torch.promote_types(dtype, torch.float32)
    )


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor of any subclass as a plain one with its values in memory; TypeError if that cannot be."""
    if type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__:
        return with_memory(tensor)
    if isinstance(tensor, DTensor):
        if tensor.device_mesh.size() > 1:
            raise TypeError(f"a DTensor over {tensor.device_mesh.size()} processes: measure the local part of each")
        local: Tensor = tensor.to_local()
        return _plain(local)
    return _copied(tensor)


def with_memory(tensor: Tensor) -> Tensor:
    """Return the tensor itself; TypeError if its memory was freed, as FSDP does with parameters that it has sharded."""
    if tensor.layout is torch.strided and tensor.numel() and (tensor.is_cpu or tensor.is_cuda):
        reach = tensor.numel() - 1
        if not tensor.is_contiguous():
            reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        needed = (tensor.storage_offset() + reach + 1) * tensor.element_size()
        if tensor.untyped_storage().nbytes() < needed:
            raise TypeError("its memory has been freed")
        if tensor.data_ptr() == 0:
            raise TypeError("it has no memory of its own")
    return tensor


def _copied(tensor: Tensor) -> Tensor:
    """Copy a tensor of a subclass with `__torch_dispatch__` into a plain float64 or complex128 one; or raise TypeError.

    With the first tensor of a class the host waits for the device, to check that every number of the copy was written.
    """
    kind = type(tensor).__name__
    shape = (*tensor.shape, 2) if tensor.is_complex() else tensor.shape
    bits = torch.full(shape, _UNWRITTEN, dtype=torch.int64, device=tensor.device)
    copy = bits.view(torch.float64)
    try:
        (torch.view_as_complex(copy) if tensor.is_complex() else copy).copy_(tensor)
    except Exception as error:  # the subclass copies itself, by code that may raise anything
        raise TypeError(f"a {kind} that cannot be copied into a plain tensor: {error}") from error
    is_known = type(tensor) in _WRITES_ALL
    if type(copy) is not Tensor or (not is_known and (bits == _UNWRITTEN).any().item()):
        raise TypeError(f"a {kind} that loses values when it is copied into a plain tensor")
    _WRITES_ALL.add(type(tensor))
    return torch.view_as_complex(copy) if tensor.is_complex() else copy


def _masked(tensor: MaskedTensor, may_wait: bool) -> Values:
    """Return the values of a MaskedTensor where its mask is True; TypeError if it is sparse or cannot be read."""
    data, mask = tensor.get_data(), tensor.get_mask()
    if data.layout is not torch.strided:
        raise TypeError("a sparse MaskedTensor cannot be measured")
    return _only(_real(_plain(data)), _plain(mask), may_wait)


def _nested(tensor: Tensor, may_wait: bool) -> Values:
    """Return the values within the lengths of a nested tensor; its memory may hold others if it was narrowed."""
    if tensor.layout is torch.strided:
        parts = [tensor.values()] if tensor.is_contiguous() else tensor.unbind()
        return Values(torch.cat([_flat(_real(_plain(part))) for part in parts]))
    jagged: Any = tensor  # torch has no types for it
    values, offsets, lengths = _plain(jagged.values()), jagged.offsets(), jagged.lengths()
    if lengths is None:
        lengths = offsets.diff()
    # The ragged dimension has no size that is a number. The memory has one dimension less: the batch's.
    ragged = next(dim for dim, size in enumerate(tensor.shape) if not isinstance(size, int)) - 1
    place = torch.arange(values.shape[ragged], device=values.device)
    part = torch.bucketize(place, offsets[:-1].contiguous(), right=True) - 1
    is_inside = (part >= 0) & (place - offsets[part] < lengths[part])
    shape = [-1 if dim == ragged else 1 for dim in range(values.dim())]
    return _only(_real(values), is_inside.view(shape).expand(values.shape), may_wait)


def _only(values: Tensor, belongs: Tensor, may_wait: bool) -> Values:
    """Return the values where `belongs` is True.

    If `may_wait` is False, the others stay as NaN, counted in `holes`: the host must not wait to learn their number.
    """
    if may_wait:
        return Values(values[belongs])
    values = values if values.dtype.is_floating_point else values.double()
    return Values(_flat(values.where(belongs, math.nan)), holes=(~belongs).sum())


def _real(tensor: Tensor) -> Tensor:
    """Return a real tensor itself, with its negative bit resolved; of a complex one the modulus, in float64."""
    if tensor.is_complex():
        return torch.hypot(tensor.real.double(), tensor.imag.double())
    return tensor.resolve_neg()


def _flat(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return tensor.view(-1)
    # In the order of its strides a dense tensor of any memory format is one run.
    by_stride = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(by_stride).reshape(-1)


def blocks_of(one: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield corresponding blocks of two tensors of equal shape, of at most `MAX_BLOCK_VALUES` values each.

    Together the blocks hold every value once. Blocks of strided tensors are views, those of COO tensors are copies. All
    other layouts, nested tensors and subclasses, such as a `DTensor`, are yielded whole, however large.

    >>> [len(block) for block, _ in blocks_of(torch.zeros(5, 1 << 21), torch.zeros(5, 1 << 21))]
    [2, 1, 2]
    """
    if one.numel() <= MAX_BLOCK_VALUES or not (_can_be_cut(one) and _can_be_cut(other)) or one.shape != other.shape:
        yield one, other
        return
    dim = next(dim for dim, size in enumerate(one.shape) if size > 1)
    half = -(-one.shape[dim] // 2)
    yield from blocks_of(_part(one, dim, 0, half), _part(other, dim, 0, half))
    rest = one.shape[dim] - half
    yield from blocks_of(_part(one, dim, half, rest), _part(other, dim, half, rest))


def _can_be_cut(tensor: Tensor) -> bool:
    is_plain = type(tensor) is Tensor or type(tensor) is nn.Parameter
    return is_plain and not tensor.is_nested and tensor.layout in (torch.strided, torch.sparse_coo)


def _part(tensor: Tensor, dim: int, start: int, size: int) -> Tensor:
    return tensor.narrow_copy(dim, start, size) if tensor.is_sparse else tensor.narrow(dim, start, size)
