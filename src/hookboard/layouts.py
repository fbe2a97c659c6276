"""What not every layout of tensors has: a shape, and all values in memory."""

import torch
from torch import Tensor

from hookboard.torch_private import explicit_values


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """The shape; None for a nested tensor.

    >>> import torch
    >>> shape_of(torch.zeros(2, 3))
    (2, 3)
    """
    return None if tensor.is_nested else tuple(tensor.shape)


def shape_in_words(tensor: Tensor) -> str:
    """The shape, or those of the parts of a nested tensor.

    >>> import torch
    >>> shape_in_words(torch.zeros(2, 3))
    '(2, 3)'
    """
    shape = shape_of(tensor)
    return f"nested {[tuple(part.shape) for part in tensor.unbind()]}" if shape is None else str(shape)


def stored(gradient: Tensor) -> Tensor:
    """The numbers that a gradient keeps in memory, as a strided tensor: of a sparse one those that are not left out.

    Several numbers for one place are not added up, for which the host would wait for the device: if one of them is not
    finite, their sum is not either.

    >>> import torch
    >>> stored(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
    tensor([2.])
    """
    if gradient.is_nested:
        return torch.cat([part.flatten() for part in gradient.unbind()])
    return gradient if gradient.layout is torch.strided else explicit_values(gradient)
