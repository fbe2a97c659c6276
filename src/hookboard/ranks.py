"""Several processes (ranks) that train one model: which rank measures which tensor, and their collectives."""

from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from hookboard.torch_private import waited

T = TypeVar("T")


def has_process_group() -> bool:
    """Whether this process can reach other ranks."""
    return dist.is_available() and dist.is_initialized()


class Ranks:
    """The processes of the default process group."""

    def __init__(self) -> None:
        self.size = dist.get_world_size()
        self.rank = dist.get_rank()

    def gather_and_sum(self, mine: Tensor, summed: Tensor) -> tuple[Tensor, Tensor]:
        """What each rank has, and what all have together: by one collective, which every rank must enter.

        Args:
            mine: shape (n,), floating point.
            summed: shape (m,), of the same type.

        Returns:
            Each rank's `mine`, shape (size, n), and the sum of everyone's `summed`, shape (m,).
        """
        each = mine.new_zeros(self.size, len(mine))
        each[self.rank] = mine
        # To add zeros to what the others leave open is exact, and one collective serves both.
        packed = torch.cat([each.flatten(), summed])
        dist.all_reduce(packed)
        return packed[: each.numel()].view_as(each), packed[each.numel() :]

    def gathered(self, mine: T) -> list[T]:
        """The object of every rank, in their order. Every rank must call this."""
        everyones = [mine] * self.size
        dist.all_gather_object(everyones, mine)
        return everyones

    def union(self, mine: Iterable[T]) -> list[T]:
        """The items of every rank, each once, in an order that is the same everywhere."""
        return list(dict.fromkeys(item for items in self.gathered(list(mine)) for item in items))


def own_part(tensor: Tensor, *, is_replicated: bool, rank: int, is_merged: bool) -> Tensor | None:
    """The part of a tensor that this rank measures, so that all ranks together measure each number once.

    Args:
        tensor: plain, or a DTensor.
        is_replicated: whether a plain tensor is the same on all ranks, as a parameter is. Otherwise it comes from this
            rank's own data.
        rank: the number of this process.
        is_merged: whether all ranks measure, and merge what they measured.

    Returns:
        A plain tensor; None where another rank measures it.

    Raises:
        RuntimeError: a DTensor holds partial sums, and the other ranks do not take part.
    """
    if type(tensor) is Tensor:  # nearly all are; to ask for the others costs more than all that follows here
        return None if is_replicated and rank else tensor
    if not isinstance(tensor, DTensor):
        return None if is_replicated and rank else waited(tensor)
    mesh, placements = tensor.device_mesh, tensor.placements
    if is_replicated and 0 not in mesh.mesh:
        return None
    if any(placement.is_partial() for placement in placements):
        if not is_merged:
            raise RuntimeError("it holds partial sums, which only all ranks together can read: set sync_dist=True")
        placements = tuple(Replicate() if placement.is_partial() else placement for placement in placements)
        tensor = tensor.redistribute(placements=placements)
    if any(placement.is_replicate() and mesh.get_local_rank(i) for i, placement in enumerate(placements)):
        return None
    return waited(tensor.to_local())


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on this rank. For a DTensor this is a collective: every rank must call it."""
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return waited(full)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies on this rank."""
    return waited(tensor.to_local()) if isinstance(tensor, DTensor) else tensor
