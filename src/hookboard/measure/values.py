"""Reads the real numbers in a tensor, however it holds them."""

import torch
from torch import Tensor, nn

from hookboard.base.torch_private import as_plain, is_inside_transform


def values_of(tensor: Tensor) -> Tensor:
    """Return the numbers in a detached tensor, real and dense.

    - A dense real tensor gives itself, a complex one the modulus of its numbers, in float64.
    - A sparse tensor gives the values that it holds, a nested one what lies within its lengths, shape (n,).

    Raises:
        TypeError: the tensor has no values, or holds them in a way of its own; the message says why.

    Examples:
        >>> values_of(torch.tensor([[3 + 4j, 0]]))
        tensor([[5., 0.]], dtype=torch.float64)
    """
    kind = type(tensor)
    if nn.parameter.is_lazy(tensor):
        raise TypeError("a lazy parameter has no values before the first forward pass")
    if tensor.is_meta:
        raise TypeError("a meta tensor has no values")
    if tensor.is_nested:
        if tensor.layout is torch.strided:
            tensor = tensor.contiguous()
        elif tensor.lengths() is not None:  # type: ignore[attr-defined]  # torch has no types for it
            raise TypeError("a nested tensor with holes cannot be measured")
        return _real(tensor.values()).flatten()
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
        return _real(with_memory(tensor))
    # No dense copy: the gradient of a large embedding would take as much memory as its weight.
    return _real(with_memory((tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values())).flatten()


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
    if (tensor.is_cpu or tensor.is_cuda) and tensor.numel() and not tensor.untyped_storage().nbytes():
        raise TypeError("its memory has been freed")
    return tensor


def widened(tensor: Tensor) -> Tensor:
    """Convert to float32 if that represents all values of the dtype, otherwise to float64; complex stays complex.

    >>> widened(torch.ones(1, dtype=torch.bfloat16)).dtype, widened(torch.ones(1, dtype=torch.int64)).dtype
    (torch.float32, torch.float64)
    """
    if tensor.is_complex():
        return tensor.to(torch.promote_types(tensor.dtype, torch.complex64))
    is_small = tensor.dtype.itemsize <= 2 or tensor.dtype is torch.float32
    return tensor.to(torch.float32 if is_small else torch.float64)
