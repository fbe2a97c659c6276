"""The shape of a tensor, where it has one: the parts of a nested tensor differ in size."""

from torch import Tensor


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
