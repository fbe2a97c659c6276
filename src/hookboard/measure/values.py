"""Reads the real numbers in a tensor, however it holds them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookboard.base.torch_private import as_plain, is_inside_transform

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class Values(NamedTuple):
    """The numbers in a tensor.

    Args:
        numbers: real and dense; of the tensor's shape if that is dense, otherwise of shape (n,), in any order.
        zeros: the number of implicit zeros of a sparse tensor.
    """

    numbers: Tensor
    zeros: int = 0


def values_of(tensor: Tensor) -> Values:
    """Return the numbers in a detached tensor.

    - A dense real tensor gives itself, a complex one the modulus of its numbers, in float64.
    - A sparse tensor gives its explicit values and the count of implicit zeros.
    - A nested tensor gives what lies within its lengths.

    Raises:
        TypeError: the tensor has no values, or holds them in a way of its own; the message says why.

    Examples:
        >>> values_of(torch.tensor([[3 + 4j, 0]])).numbers
        tensor([[5., 0.]], dtype=torch.float64)
        >>> values_of(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
        Values(numbers=tensor([2.]), zeros=3)
    """
    kind = type(tensor)
    if nn.parameter.is_lazy(tensor):
        raise TypeError("a lazy parameter has no values before the first forward pass")
    if tensor.is_meta:
        raise TypeError("a meta tensor has no values")
    if tensor.is_nested:
        if tensor.layout is not torch.strided:
            if tensor.lengths() is not None:  # type: ignore[attr-defined]  # torch has no types for it
                raise TypeError("a nested tensor with holes cannot be measured")
            return Values(_real(tensor.values()).flatten())
        parts = [_real(part).flatten() for part in tensor.unbind()]
        return Values(torch.cat(parts) if parts else torch.empty(0, device=tensor.device))
    if kind is not Tensor and kind is not nn.Parameter:
        if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise TypeError(f"a {kind.__name__} holds its values in a way of its own")
        if issubclass(kind, nn.Parameter) and not (tensor.is_floating_point() or tensor.is_complex()):
            # As those of bitsandbytes, which hold numbers of 4 and 8 bits.
            raise TypeError(f"the {tensor.dtype} in a {kind.__name__} holds values that only the module can unpack")
        tensor = as_plain(tensor)  # the subclass may give torch's functions a meaning of its own
    if is_inside_transform(tensor):
        raise TypeError("inside torch.func (vmap, grad, jvp, functionalize) the values of a tensor cannot be read")
    if tensor.is_quantized:
        raise TypeError("a quantized tensor holds its values in a way of its own")
    if tensor.layout is torch.strided:
        return Values(_real(with_memory(tensor)))
    if tensor.layout is torch.sparse_coo:
        explicit = tensor.coalesce().values()
    elif tensor.layout in _COMPRESSED:
        explicit = tensor.values()
    else:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be measured")
    return Values(_real(with_memory(explicit)).flatten(), tensor.numel() - explicit.numel())


def _real(tensor: Tensor) -> Tensor:
    """Return a real tensor itself, with its negative bit resolved; of a complex one the modulus, in float64."""
    if tensor.is_complex():
        return torch.hypot(tensor.real.double(), tensor.imag.double())
    return tensor.resolve_neg()


def with_memory(tensor: Tensor) -> Tensor:
    """Return the tensor itself.

    Raises:
        TypeError: its memory was freed, as FSDP does with parameters that it has sharded.
    """
    if tensor.numel() and (tensor.is_cpu or tensor.is_cuda):
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
        if not tensor.data_ptr() or tensor.untyped_storage().nbytes() < needed:
            raise TypeError("its memory has been freed")
    return tensor


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
