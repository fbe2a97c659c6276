"""Reads the real numbers in any tensor, and measures them by torch's operations. The host waits for no device."""

import math

import torch
from torch import Tensor, nn

from hookboard.base.torch_private import as_plain, is_inside_transform
from hookboard.measure.row import BINS, EMPTY, Moments, as_single, bins_of, channel_stride, merge


def values_of(tensor: Tensor) -> Tensor:
    """Return the numbers in a detached tensor, real and dense; a TypeError says why it has none, or hides them.

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
    """Return the tensor itself; a TypeError if its memory was freed, as FSDP does with sharded parameters."""
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


BLOCK = 1 << 21  # values that are measured at once; bounds the memory of temporaries to some 80 MB


def rows_of(tensor: Tensor, dim: int | None) -> Tensor:
    """Return the row of a dense real tensor, then those of its channels along `dim`: (rows, WIDTH), float64."""
    if dim is None:
        return _rows(tensor.reshape(1, -1), 0)
    each = _rows(tensor, dim)
    whole = each
    while len(whole) > 1:  # halves that lie side by side are merged until one is left
        odd = whole[len(whole) // 2 * 2 :]
        whole = torch.cat([merge(whole[0 : len(whole) - len(odd) : 2], whole[1::2]), odd])
    return torch.cat([whole, each[:: channel_stride(len(each))]])


def moments_of(tensor: Tensor) -> Moments:
    """Return the moments of one detached tensor, `abs_mean` too; a TypeError as of `values_of`.

    >>> moments_of(torch.tensor([1.0, 3.0, float("nan")])).mean
    2.0
    """
    values = values_of(tensor)
    return Moments(*(rows_of(values, None)[0].tolist() if values.numel() else EMPTY))


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """Return the row of each channel along a dimension, shape (channels, WIDTH), in float64 and two passes."""
    if tensor.numel() > BLOCK:
        along = max((d for d in range(tensor.dim()) if d != dim), key=tensor.size)
        if tensor.shape[along] > 1:
            first, second = tensor.tensor_split(2, along)
            return merge(_rows(first, dim), _rows(second, dim))
    values = tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1).double()
    finite = values.isfinite()
    count = finite.sum(1, keepdim=True).double()
    at_least_one, clean = count.clamp(min=1), values.where(finite, 0)
    mean = clean.sum(1, keepdim=True) / at_least_one
    deviation = ((values - mean).where(finite, 0).square().sum(1, keepdim=True) / at_least_one).sqrt()
    abs_mean = clean.abs().sum(1, keepdim=True) / at_least_one
    kinds = (values == 0, values.isnan(), values == math.inf, values == -math.inf)
    counts = [found.sum(1, keepdim=True).double() for found in kinds]
    low = values.where(finite, math.inf).amin(1, keepdim=True)
    high = values.where(finite, -math.inf).amax(1, keepdim=True)
    return torch.cat([count, mean, deviation, abs_mean, *counts, low, high], 1)


def count_into(counts: Tensor, values: Tensor) -> None:
    """Add the bins of the values to `counts`, shape (BINS,), int64, on their device."""
    for block in values.flatten().split(BLOCK):
        bins = bins_of(as_single(block))
        # `bincount` would make the host wait; `index_add_` adds to one bin after the other, which took 13 to 33 times
        # as long on an H200. Counts are the same in any order, but torch refuses `histc` if all must be deterministic.
        if counts.is_cpu:
            counts += torch.bincount(bins, minlength=BINS)
        elif counts.is_cuda and not torch.are_deterministic_algorithms_enabled():
            counts += torch.histc(bins, BINS, 0, BINS)
        else:
            counts.index_add_(0, bins, counts.new_ones(1).expand(bins.numel()))
