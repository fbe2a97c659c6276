"""Several processes (ranks) that train one model: which of them measures a tensor, and how they merge the results."""

import math
import pickle
import zlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from hookboard.base.jobs import Steps
from hookboard.base.rounds import Kind, Merging, Part, once, parts_of
from hookboard.base.torch_private import set_timeout, waited

T = TypeVar("T")

CONNECT_TIMEOUT, ANSWER_TIMEOUT = timedelta(minutes=1), timedelta(minutes=30)
"""How long a rank waits for the others: while they connect, and in an exchange, for which a rank that saves a
checkpoint is late."""

MAX_WAIT_SECONDS = 60.0
"""How many seconds a rank's training thread waits for the others, at the end of a run or when they are several
exchanges behind. Then it goes on without them.
"""


_HAS_LEFT = "another rank has stopped measuring or has exited"
_ARE_APART = "the ranks are no longer at the same point of the run"

_given_up: list[tuple[dist.ProcessGroup, list[Any]]] = []
"""Groups in which this process takes no further part, with their exchanges that may never end: freeing such a group
would wait for them."""


class RanksLostError(RuntimeError):
    """Another rank no longer takes part in what the ranks do together."""


def has_process_group() -> bool:
    """Return True if torch.distributed is initialized: ranks can then exchange data."""
    return dist.is_available() and dist.is_initialized()


def gathered(mine: T, device: torch.device) -> list[T]:
    """Return the objects of all ranks, in rank order, over the default process group. Every rank must call this."""
    everyones = [mine] * dist.get_world_size()
    # NCCL sends them by way of the current device, which for a program that sets none is the first one on every rank.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        dist.all_gather_object(everyones, mine)
    return everyones


class Ranks:
    """Connects the processes of the default process group by a group of our own. Every rank must make a `Ranks`.

    What they merge cannot mix with what the training sends in the default group. Nothing here waits: the methods
    return `Steps`, which yield until the others have sent what they have, and which all ranks must take in the same
    order. It happens on the host, whatever device trains, and takes no memory or time of an accelerator. An exchange
    with a rank that has left or died raises `RanksLostError`.

    Raises:
        RuntimeError: the ranks cannot be connected.
    """

    def __init__(self) -> None:
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self._is_exchanging = False
        self._works: list[Any] = []
        """The exchanges that were started last."""
        _given_up[:] = [each for each in _given_up if not _are_over(each[1])]
        # What serves tensors on the host in the default group, if anything does.
        backend = dict(kind.split(":") for kind in dist.get_backend_config().split(",")).get("cpu", "gloo")
        group = dist.new_group(timeout=CONNECT_TIMEOUT, backend=backend)
        assert isinstance(group, dist.ProcessGroup)
        set_timeout(group, ANSWER_TIMEOUT)
        self._group: dist.ProcessGroup | None = group

    def at(self, point: str, exchange: Steps[T]) -> Steps[T]:
        """Take the steps of `exchange`, after checking that all ranks have given the same name as `point`.

        If it fails, with a `RanksLostError`, this rank takes no further part: what it would exchange next would not be
        what the others exchange, and gloo aborts a process that receives more than it expects.
        """
        self._is_exchanging = True
        try:
            yield from self._meet(zlib.crc32(point.encode()))
            found = yield from exchange
        except BaseException:  # also GeneratorExit, where a job is dropped before its end
            self.close()
            raise
        self._is_exchanging = False
        return found

    def _meet(self, number: float) -> Steps[None]:
        highest, lowest = yield from self._largest(number, -number)
        if highest != -lowest:
            raise RanksLostError(_HAS_LEFT if highest == math.inf else _ARE_APART)

    def _largest(self, *numbers: float) -> Steps[list[float]]:
        own = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        return (yield from self.merge(once("max", own))).tolist()

    def merge(self, merging: Merging[T]) -> Steps[T]:
        """Run a merge over all ranks: the parts of each, of equal shape, are combined element by element.

        The result is the same on every rank to the bit. A rank sends, receives and holds about twice its own numbers,
        however many ranks there are.
        """
        parts, found = parts_of(merging, None)
        while parts is not None:
            parts, found = parts_of(merging, (yield from self._combined(parts)))
        return found  # type: ignore[return-value]  # after the last round it is there

    def _combined(self, parts: Sequence[Part]) -> Steps[list[Tensor]]:
        """Combine parts over the ranks, in one exchange for all parts of a kind."""
        kinds: dict[Kind, list[Tensor]] = {}
        for kind, numbers in parts:
            kinds.setdefault(kind, []).append(numbers.reshape(-1))
        with torch.inference_mode(False):  # what is made in it could not be changed outside of it
            blocks = {kind: torch.cat(each) for kind, each in kinds.items()}
        how = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
        group = self._connected()
        self._works = [
            dist.all_reduce(block, how[kind], group=group, async_op=True)
            for kind, block in blocks.items()
            if block.numel()
        ]
        yield from self._ended()
        combined = {kind: iter(blocks[kind].split([len(one) for one in each])) for kind, each in kinds.items()}
        return [next(combined[kind]).view(numbers.shape) for kind, numbers in parts]

    def _ended(self) -> Steps[None]:
        """Yield until the exchanges that were started last have ended."""
        try:
            for work in self._works:
                while not work.is_completed():
                    yield
                work.wait()  # which raises the error if there was one
        except RuntimeError as error:
            raise _lost(error) from error
        self._works = []  # they hold what was exchanged
        self._connected()  # raises if this rank has left meanwhile

    def gather(self, mine: T) -> Steps[list[T]]:
        """Return the objects of all ranks, in rank order. Meant for what is small and rare."""
        own = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        (longest,) = yield from self._largest(len(own))
        padded = torch.cat([own, own.new_zeros(int(longest) - len(own))])
        everyones = [torch.empty_like(padded) for _ in range(self.size)]
        self._works = [dist.all_gather(everyones, padded, group=self._connected(), async_op=True)]
        yield from self._ended()
        return [pickle.loads(each.numpy().tobytes()) for each in everyones]  # which ignores what follows the object

    def is_any(self, mine: bool) -> Steps[bool]:
        """Return True if `mine` is True on any rank."""
        return bool((yield from self._largest(mine))[0])

    def union(self, mine: Iterable[T]) -> Steps[list[T]]:
        """Return the items of all ranks, each once, in the same order on every rank."""
        mine = list(mine)
        number = zlib.crc32(pickle.dumps(mine))
        highest, lowest = yield from self._largest(number, -number)
        # Most often all have the same, and what each has need not be sent to each.
        lists = [mine] if highest == -lowest else (yield from self.gather(mine))
        return list(dict.fromkeys(item for items in lists for item in items))

    def _connected(self) -> dist.ProcessGroup:
        if self._group is None:
            raise RanksLostError("this rank no longer takes part")
        return self._group

    def leave(self) -> None:
        """Take no further part, and tell the other ranks, without waiting: their next `at` raises a `RanksLostError`.

        Closing the connections is not enough: they stay open while a process that this one has forked, such as a
        DataLoader's worker, is alive.
        """
        if not self._is_exchanging:  # otherwise the others would not meet it
            with suppress(Exception):  # whoever has gone need not be told
                # The first step starts the exchange; nobody waits for the others.
                next(self._meet(math.inf))
        self.close()

    def close(self) -> None:
        """Take no further part, and close the connections once nothing is exchanged over them."""
        group, self._group = self._group, None
        works, self._works = self._works, []  # they too hold the connections
        if group is None:
            return
        with suppress(ValueError, AssertionError):  # the default group has ended, and all others with it
            dist.destroy_process_group(group)
        if not _are_over(works):
            _given_up.append((group, works))


def _are_over(works: Iterable[Any]) -> bool:
    return all(work.is_completed() for work in works)


def connected(device: torch.device) -> tuple[Ranks | None, str]:
    """Connect the ranks. Every rank must call this.

    Returns them and ""; if not every rank could be connected, None and the reason, the same on every rank.
    """
    ranks, fault = None, ""
    try:
        ranks = Ranks()
    except Exception as error:  # told to all in `gathered`, which every rank must reach
        fault = f"{type(error).__name__}: {error}"
    try:
        faults = [f"rank {rank}: {fault}" for rank, fault in enumerate(gathered(fault, device)) if fault]
    except Exception as error:  # a rank has ended, or the default group fails
        faults = [f"{type(error).__name__}: {error}"]
    if not faults:
        return ranks, ""
    if ranks is not None:
        ranks.close()
    return None, (
        "the processes could not connect to merge their measurements. Set GLOO_SOCKET_IFNAME to the network "
        f"interface that they share, or pass sync_dist=False ({faults[0]})"
    )


def _lost(error: RuntimeError) -> RanksLostError:
    minutes = ANSWER_TIMEOUT.total_seconds() / 60
    is_late = "imed out" in str(error)  # with a small or a capital t
    return RanksLostError(f"another rank has not answered for {minutes:.0f} minutes" if is_late else _HAS_LEFT)


def own_part(tensor: Tensor, *, is_replicated: bool, rank: int) -> Tensor | None:
    """Return the part of a tensor that this rank measures, so that all ranks together measure each element once.

    A plain tensor that `is_replicated` is the same on all ranks, as a parameter is; otherwise it is of this rank's own
    data. None if another rank measures it.

    Raises:
        RuntimeError: a DTensor holds partial sums. Adding them up takes a collective in the middle of the model, which
            would hang the training if one rank has stopped measuring.
    """
    if type(tensor) is Tensor:  # nearly all are; to ask for the others costs more than all that follows here
        return None if is_replicated and rank else tensor
    if not isinstance(tensor, DTensor):
        return None if is_replicated and rank else waited(tensor)
    mesh, placements = tensor.device_mesh, tensor.placements
    if is_replicated and 0 not in mesh.mesh:
        return None
    if any(placement.is_partial() for placement in placements):
        raise RuntimeError("the tensor holds partial sums, which can be read only by all ranks together")
    if any(placement.is_replicate() and mesh.get_local_rank(i) for i, placement in enumerate(placements)):
        return None
    return waited(tensor.to_local())


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. For a DTensor this is a collective: every rank of its mesh must call it."""
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return waited(full)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that is on this rank, as a plain tensor; any other tensor itself."""
    return waited(tensor.to_local()) if isinstance(tensor, DTensor) else tensor
