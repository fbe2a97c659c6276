"""Any tensor as one flat run of real numbers, which is what the statistics are taken over."""

import torch
from torch import Tensor

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def real_values(tensor: Tensor) -> tuple[Tensor, int]:
    """The numbers in `tensor`, flat, in any order, and how many zeros a sparse tensor leaves unwritten.

    Real dense tensors of any dtype keep it; nothing is copied unless the memory has gaps. A complex tensor is
    measured by its modulus. A sparse tensor gives its explicit values and the count of implicit zeros, a
    jagged nested tensor its values, other layouts and quantized tensors their dense form.

    >>> real_values(torch.tensor([[3 + 4j, 0]]))
    (tensor([5., 0.]), 0)
    >>> real_values(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
    (tensor([2.]), 3)
    """
    if tensor.layout is torch.strided and not (tensor.is_complex() or tensor.is_nested or tensor.is_quantized):
        return _flat(tensor.resolve_neg()), 0
    whole = tensor.numel()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout in _COMPRESSED or tensor.is_nested:
        is_sparse = not tensor.is_nested
        tensor = tensor.values()
        whole = whole if is_sparse else tensor.numel()
    elif tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = tensor.abs()
    return _flat(tensor), whole - tensor.numel()


def _flat(tensor: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return tensor.view(-1)
    # In the order of its strides a dense tensor of any memory format is one run.
    by_stride = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(by_stride).reshape(-1)
