"""Large tensors in blocks: what is computed of a block is a temporary that does not grow with the tensor."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

MOST_AT_ONCE = 1 << 22
"""Values in a block: 16 MB in float32, which few weights of a usual net exceed (a choice)."""


def blocks_of(one: Tensor, other: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the same blocks of two tensors of one shape, whose rows merge to that of the whole.

    Those of strided tensors are views. Subclasses, such as a `DTensor`, and nested tensors come whole: only their own
    operations know where their values are.

    >>> [len(block) for block, _ in blocks_of(torch.zeros(5, 1 << 21), torch.zeros(5, 1 << 21))]
    [2, 1, 2]
    """
    if one.numel() <= MOST_AT_ONCE or not (_can_be_cut(one) and _can_be_cut(other)) or one.shape != other.shape:
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
