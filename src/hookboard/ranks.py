"""Several processes (ranks) that train one model: which of them measures a tensor, and how they merge the results."""

import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from hookboard.torch_private import set_timeout, waited

T = TypeVar("T")

MAX_PEERS = 64
"""Up to this many ranks, each talks to every other. More form a grid, which merges along its rows and then its columns:
each of 1,024 ranks then has 62 connections instead of 1,023.
"""

MAX_MERGE_BYTES = 1 << 24
"""Maximum size of the part of a block that is merged at a time: a rank holds a few times this besides the block."""

CONNECT_TIMEOUT, ANSWER_TIMEOUT = timedelta(minutes=1), timedelta(minutes=30)
"""How long a rank waits for the others: while they connect, and in an exchange, for which a rank that saves a
checkpoint is late."""

MAX_WAIT_SECONDS = 60.0
"""How many seconds a rank's training thread waits for the others, at the end of a run or when they are several
exchanges behind. Then it goes on without them.
"""


_HAS_LEFT = "another rank has stopped measuring, or has ended"
_ARE_APART = "the ranks are no longer at the same point of the run"


class RanksLostError(RuntimeError):
    """Another rank no longer takes part in what the ranks do together."""


def has_process_group() -> bool:
    """Return True if torch.distributed is initialized: ranks can then exchange data."""
    return dist.is_available() and dist.is_initialized()


def gathered(mine: T, device: torch.device) -> list[T]:
    """Return the objects of all ranks, in rank order, over the default process group. Every rank must call this.

    Args:
        mine: the object of this rank.
        device: the device that this rank trains on.
    """
    everyones = [mine] * dist.get_world_size()
    # NCCL sends them by way of the current device, which for a program that sets none is the first one on every rank.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        dist.all_gather_object(everyones, mine)
    return everyones


class Level(NamedTuple):
    """A group of ranks that exchange with each other, the present process among them.

    Args:
        group: the process group.
        size: the number of ranks in it.
        rank: the number of this rank in it.
    """

    group: dist.ProcessGroup
    size: int
    rank: int


class Ranks:
    """Connects the processes of the default process group by process groups of our own. Every rank must make a `Ranks`.

    What they merge cannot mix with what the training sends in the default group, so one thread of each rank may merge
    while training goes on, all ranks in the same order. It happens on the host, whatever device trains, and takes no
    memory or time of an accelerator. An exchange with a rank that has left or died raises `RanksLostError`.

    Args:
        most_peers: maximum number of ranks that talk to each other directly, see `MAX_PEERS`.

    Raises:
        RuntimeError: the ranks cannot be connected.
    """

    def __init__(self, most_peers: int = MAX_PEERS) -> None:
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self._levels: list[Level] = []
        self._is_exchanging = False
        columns = 1 if self.size <= most_peers else _divisor(self.size)
        within = self.size // columns
        # The larger level comes first: after it a rank has so much less to send.
        rows = [range(start, start + within) for start in range(0, self.size, within)]
        self._connect(rows)
        if columns > 1:
            self._connect([range(start, self.size, within) for start in range(within)])

    def _connect(self, groups: Iterable[range]) -> None:
        # What serves tensors on the host in the default group, if anything does.
        backend = dict(kind.split(":") for kind in dist.get_backend_config().split(",")).get("cpu", "gloo")
        for ranks in groups:  # every rank must make each of them
            group = dist.new_group(list(ranks), timeout=CONNECT_TIMEOUT, backend=backend)
            if self.rank in ranks:
                assert isinstance(group, dist.ProcessGroup)
                self._levels.append(Level(group, len(ranks), ranks.index(self.rank)))
                set_timeout(group, ANSWER_TIMEOUT)

    def at(self, point: str, exchange: Callable[[], T]) -> T:
        """Return what `exchange` returns, after checking that all ranks have given the same name as `point`.

        Every rank must call it. If it fails, this rank takes no further part: what it would exchange next would not be
        what the others exchange, and gloo aborts a process that receives more than it expects.

        Raises:
            RanksLostError: a rank does not take part, or is at another point.
        """
        self._is_exchanging = True
        try:
            self._meet(zlib.crc32(point.encode()))
            found = exchange()
        except BaseException:
            self.close()
            raise
        self._is_exchanging = False
        return found

    def _meet(self, number: float) -> None:
        ends = torch.tensor([[number, -number]], dtype=torch.float64, device="cpu")
        highest, lowest = self.merge(ends, lambda parts: parts.amax(0))[0].tolist()
        if highest != -lowest:
            raise RanksLostError(_HAS_LEFT if highest == math.inf else _ARE_APART)

    def merge(self, block: Tensor, merge: Callable[[Tensor], Tensor]) -> Tensor:
        """Merge a block of rows over all ranks. Every rank must call this, with an equal shape.

        Each rank merges a share of the rows and sends it to all others. So the result is the same on every rank to the
        bit, and a rank sends, receives and holds about twice the block, however many ranks there are.

        Args:
            block: shape (n, width), on the host.
            merge: takes rows of several ranks, shape (ranks, m, width), and returns them merged, shape (m, width).

        Returns:
            Shape (n, width).

        Raises:
            RanksLostError: a rank does not take part.
        """
        merged = torch.empty(block.shape, dtype=block.dtype, device=block.device)
        at_once = max(1, MAX_MERGE_BYTES // max(1, block.shape[1] * block.element_size()))
        for part, into in zip(block.split(at_once), merged.split(at_once), strict=True):
            into.copy_(self._merged(part, merge))
        return merged

    def _merged(self, rows: Tensor, merge: Callable[[Tensor], Tensor]) -> Tensor:
        shares: list[list[int]] = []
        levels = self._connected()
        for level in levels:
            share = [len(rows) // level.size + (other < len(rows) % level.size) for other in range(level.size)]
            shares.append(share)
            mine = share[level.rank]
            theirs = rows.new_zeros(level.size * mine, rows.shape[1])
            _exchange(level, theirs, rows, [mine] * level.size, share)
            rows = merge(theirs.view(level.size, mine, rows.shape[1])) if mine else theirs
        for level, share in reversed(list(zip(levels, shares, strict=True))):
            mine = share[level.rank]
            whole = rows.new_zeros(sum(share), rows.shape[1])
            _exchange(level, whole, rows.repeat(level.size, 1), share, [mine] * level.size)
            rows = whole
        self._connected()
        return rows

    def combine(self, mine: T, combine: Callable[[list[T]], T]) -> T:
        """Combine the objects of all ranks. Every rank must call it. Meant for what is small or rare.

        Args:
            mine: the object of this rank.
            combine: takes the objects of several ranks, in rank order, and returns one of the same kind. With many
                ranks it is called again with such results.

        Raises:
            RanksLostError: a rank does not take part.
        """
        for level in self._connected():
            everyones = [mine] * level.size
            try:
                dist.all_gather_object(everyones, mine, group=level.group)
            except RuntimeError as error:
                raise _lost(error) from error
            mine = combine(everyones)
        return mine

    def is_any(self, mine: bool) -> bool:
        """Return True if `mine` is True on any rank. Every rank must call this."""
        own = torch.tensor([[mine]], dtype=torch.float64, device="cpu")
        return bool(self.merge(own, lambda parts: parts.amax(0)).item())

    def union(self, mine: Iterable[T]) -> list[T]:
        """Return the items of all ranks, each once, in the same order on every rank."""
        return self.combine(list(mine), lambda lists: list(dict.fromkeys(item for items in lists for item in items)))

    def _connected(self) -> list[Level]:
        if not self._levels:
            raise RanksLostError("this rank takes part no longer")
        return self._levels

    def leave(self) -> None:
        """Take no further part; a thread tells the other ranks, whose next `at` raises a `RanksLostError`.

        Closing connections is not enough: they stay open while a process that this one has forked, such as a
        DataLoader's worker, is alive.
        """
        if self._is_exchanging:  # the others would not meet it
            self.close()
        else:
            threading.Thread(target=self._take_leave, name="hookboard leaves", daemon=True).start()

    def _take_leave(self) -> None:
        with suppress(Exception):  # whoever has gone need not be told
            self._meet(math.inf)
        self.close()

    def close(self) -> None:
        """Close the connections and take no further part."""
        levels, self._levels = self._levels, []
        for level in levels:
            with suppress(ValueError, AssertionError):  # the default group has ended, and all others with it
                dist.destroy_process_group(level.group)


def connected(device: torch.device, most_peers: int = MAX_PEERS) -> tuple[Ranks | None, str]:
    """Connect the ranks. Every rank must call this.

    Args:
        device: the device that this rank trains on.
        most_peers: see `Ranks`.

    Returns:
        The ranks and ""; if not every rank could be connected, None and the reason, the same on every rank.
    """
    ranks, fault = None, ""
    try:
        ranks = Ranks(most_peers)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    try:
        faults = [f"rank {rank}: {fault}" for rank, fault in enumerate(gathered(fault, device)) if fault]
    except Exception as error:
        faults = [f"{type(error).__name__}: {error}"]
    if not faults:
        return ranks, ""
    if ranks is not None:
        ranks.close()
    return None, (
        "the processes could not be connected to merge what they measure. Set GLOO_SOCKET_IFNAME to the network "
        f"interface they share, or sync_dist=False ({faults[0]})"
    )


def _divisor(size: int) -> int:
    """Return the largest divisor of `size` that is at most its square root."""
    return max(divisor for divisor in range(1, math.isqrt(size) + 1) if size % divisor == 0)


def _exchange(level: Level, into: Tensor, given: Tensor, received: list[int], sent: list[int]) -> None:
    pause = 1e-4
    try:
        work: Any = dist.all_to_all_single(into, given, received, sent, group=level.group, async_op=True)
        while not work.is_completed():
            # Not in `wait`: a thread that comes out of it while the interpreter ends would abort the process.
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        work.wait()
    except RuntimeError as error:
        raise _lost(error) from error


def _lost(error: RuntimeError) -> RanksLostError:
    minutes = ANSWER_TIMEOUT.total_seconds() / 60
    is_late = "imed out" in str(error)
    return RanksLostError(f"another rank has not answered for {minutes:.0f} minutes" if is_late else _HAS_LEFT)


def own_part(tensor: Tensor, *, is_replicated: bool, rank: int) -> Tensor | None:
    """Return the part of a tensor that this rank measures, so that all ranks together measure each element once.

    Args:
        tensor: a plain tensor or a DTensor.
        is_replicated: True if a plain tensor is the same on all ranks, as a parameter is; False if it comes from this
            rank's own data.
        rank: the number of this process.

    Returns:
        A plain tensor; None if another rank measures it.

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
        raise RuntimeError("it holds partial sums, which only all ranks together could read")
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
