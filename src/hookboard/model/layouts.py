"""Shapes and stored values of tensors of any layout: strided, sparse or nested."""

import torch
from torch import Tensor

from hookboard.base.torch_private import explicit_values


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """Return a tensor's shape; None for a nested tensor.

    >>> import torch
    >>> shape_of(torch.zeros(2, 3))
    (2, 3)
    """
    return None if tensor.is_nested else tuple(tensor.shape)


def shape_in_words(tensor: Tensor) -> str:
    """Write a tensor's shape; for a nested tensor, the shapes of its parts.

    >>> import torch
    >>> shape_in_words(torch.zeros(2, 3))
    '(2, 3)'
    """
    shape = shape_of(tensor)
    return f"nested {[tuple(part.shape) for part in tensor.unbind()]}" if shape is None else str(shape)


def stored(gradient: Tensor) -> Tensor:
    """Return the values that a gradient holds in memory, as a strided tensor.

    A strided gradient is returned itself. Of a sparse one these are only the stored values, and of a nested one all
    values in one dimension. Several values that a sparse gradient stores for one position are not added up, because
    that would make the host wait for the device; if one of them is not finite, neither is their sum.

    >>> import torch
    >>> stored(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
    tensor([2.])
    """
    if gradient.is_nested:
        return torch.cat([part.flatten() for part in gradient.unbind()])
    return gradient if gradient.layout is torch.strided else explicit_values(gradient)


def bytes_of(tensor: Tensor) -> int:
    """Return how many bytes the values of a tensor take, of a sparse one those that it stores; 0 for a nested one.

    >>> import torch
    >>> bytes_of(torch.zeros(4)), bytes_of(torch.eye(4).to_sparse())
    (16, 16)
    """
    return 0 if tensor.is_nested else stored(tensor).nbytes
