"""Several processes (ranks) that train one model: which of them measures a tensor, and how they merge the results."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from hookboard.base.torch_private import set_timeout, waited

T = TypeVar("T")

CONNECT_TIMEOUT, ANSWER_TIMEOUT = timedelta(minutes=1), timedelta(minutes=30)
"""How long a rank waits for the others: while they connect, and in an exchange, for which a rank that saves a
checkpoint is late."""

_HAS_LEFT = "another rank has stopped measuring or has exited"
_ARE_APART = "the ranks are no longer at the same point of the run"

_given_up: list[object] = []
"""Groups that this process has left, with the exchange in which it told so: freeing them would wait for its end."""


class RanksLostError(RuntimeError):
    """Another rank no longer takes part in what the ranks do together."""


has_process_group: Callable[[], bool] = dist.is_initialized
"""Returns True if torch.distributed is initialized: ranks can then exchange data."""


def gathered(mine: T, device: torch.device) -> list[T]:
    """Return the objects of all ranks, in rank order, over the default process group. Every rank must call this."""
    everyones = [mine] * dist.get_world_size()
    # NCCL sends them by way of the current device, which for a program that sets none is the first one on every rank.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        dist.all_gather_object(everyones, mine)
    return everyones


class Ranks:
    """Connects the processes of the default group by one of our own. Every rank must make a `Ranks`.

    Every rank must exchange the same in the same order, inside `at`. An exchange waits for the others, on the host, and
    raises a `RanksLostError` if one has left, has died or does not answer.
    """

    def __init__(self) -> None:
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        # What serves tensors on the host in the default group, if anything does.
        backend = dict(kind.split(":") for kind in dist.get_backend_config().split(",")).get("cpu", "gloo")
        try:
            group: Any = dist.new_group(timeout=CONNECT_TIMEOUT, backend=backend)
            set_timeout(ANSWER_TIMEOUT, group)
        except Exception as error:
            raise RuntimeError(
                "the processes could not connect to merge their measurements. Set GLOO_SOCKET_IFNAME to the network "
                f"interface that they share, or pass sync_dist=False ({error})"
            ) from error
        self._group: dist.ProcessGroup | None = group

    @contextmanager
    def at(self, point: str) -> Iterator[None]:
        """Check that all ranks have given the same name as `point`; what they exchange belongs inside the context."""
        try:
            number = zlib.crc32(point.encode())
            numbers = torch.tensor([0, number, -number], dtype=torch.float64, device="cpu")  # 1 at first: see `leave`
            has_left, highest, lowest = self.max(numbers).tolist()
            if has_left or highest != -lowest:
                raise RanksLostError(_HAS_LEFT if has_left else _ARE_APART)
            yield
        except BaseException:
            # What this rank would exchange next would not be what the others do; gloo aborts who receives more than
            # expected.
            self.close()
            raise

    def sum(self, numbers: Tensor) -> Tensor:
        """Return the sum over the ranks of each number: the same on every rank to the bit."""
        return self._combined(numbers, dist.ReduceOp.SUM)

    def max(self, numbers: Tensor) -> Tensor:
        """Return the largest of each number on any rank; none may be NaN."""
        return self._combined(numbers, dist.ReduceOp.MAX)

    def gather(self, mine: T) -> list[T]:
        """Return the objects of all ranks, in rank order. Meant for what is small and rare."""
        everyones = [mine] * self.size
        self._exchange(dist.all_gather_object, everyones, mine)
        return everyones

    def union(self, mine: Iterable[T]) -> list[T]:
        """Return the items of all ranks, each once, in the same order on every rank."""
        return list(dict.fromkeys(item for items in self.gather(list(mine)) for item in items))

    def _combined(self, numbers: Tensor, how: Any) -> Tensor:
        with torch.inference_mode(False):  # what is made in it could not be changed outside of it
            combined = numbers.contiguous().clone()
        self._exchange(dist.all_reduce, combined, how)
        return combined

    def _exchange(self, collective: Callable[..., Any], *arguments: Any) -> None:
        if self._group is None:
            raise RanksLostError("this rank no longer takes part")
        try:
            collective(*arguments, group=self._group)
        except RuntimeError as error:
            is_late = "imed out" in str(error)  # with a small or a capital t
            late = f"another rank has not answered for {ANSWER_TIMEOUT}"
            raise RanksLostError(late if is_late else _HAS_LEFT) from error

    def leave(self) -> None:
        """Take no further part, and tell the others without waiting: their next `at` raises a `RanksLostError`."""
        if self._group is not None:
            # Closing is not enough: connections stay open while a process that this one has forked, such as a
            # DataLoader's worker, is alive.
            left = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64, device="cpu")
            with suppress(Exception):  # whoever has gone need not be told
                work = dist.all_reduce(left, dist.ReduceOp.MAX, group=self._group, async_op=True)
                _given_up.append((self._group, work))
        self.close()

    def close(self) -> None:
        """Take no further part, and close the connections."""
        group, self._group = self._group, None
        if group is not None:
            with suppress(ValueError, AssertionError):  # the default group has ended, and all others with it
                dist.destroy_process_group(group)


def own_part(tensor: Tensor, *, of_parameter: bool) -> Tensor | None:
    """Return what this rank measures of a tensor: of a DTensor its part, or None where another rank measures it."""
    if not isinstance(tensor, DTensor):
        return waited(tensor)
    mesh, placements = tensor.device_mesh, tensor.placements
    if of_parameter and 0 not in mesh.mesh:  # only one mesh measures its own
        return None
    if any(placement.is_partial() for placement in placements):
        # Adding them up takes a collective, which would hang the training if one rank has stopped measuring.
        raise RuntimeError("the tensor holds partial sums, which can be read only by all ranks together")
    if any(placement.is_replicate() and mesh.get_local_rank(i) for i, placement in enumerate(placements)):
        return None
    return waited(tensor.to_local())


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. For a DTensor this is a collective: every rank of its mesh must call it."""
    return waited(tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that is on this rank, as a plain tensor; any other tensor itself."""
    return waited(tensor.to_local()) if isinstance(tensor, DTensor) else tensor
