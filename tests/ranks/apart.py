"""Exchanges on two ranks until they come apart, and saves how each of them learns it: python apart.py FOLDER CASE ...

CASE is `elsewhere` (the ranks are at different points, where they exchange blocks of other sizes), `broken` (the second
has a fault in the middle of an exchange, and goes on to the next), or `left` (the second leaves, and a
process that it has forked lives on).

python apart.py exits STORE RANK ends in the middle of an exchange, in which it tells that it leaves. The other rank
goes while the interpreter ends. The exit status of rank 0 tells whether it has survived that.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from hookboard.base.ranks import Ranks, RanksLostError


class BrokenOnPurposeError(Exception):
    pass


def merged(ranks: Ranks, *sizes: int) -> Callable[[], None]:
    def merge() -> None:
        for rows in sizes:
            ranks.sum(torch.ones(rows, 1, dtype=torch.float64))

    return merge


def breaks(ranks: Ranks) -> Callable[[], None]:
    def merge() -> None:
        merged(ranks, 1)()
        raise BrokenOnPurposeError

    return merge


def lives_on(ranks: Ranks) -> int:
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    ranks.leave()
    return child


def fault_at(ranks: Ranks, point: str, exchange: Callable[[], None]) -> str:
    try:
        with ranks.at(point):
            exchange()
    except (RanksLostError, BrokenOnPurposeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def come_apart(case: str, ranks: Ranks) -> list[str]:
    fault_at(ranks, "start", merged(ranks, 3))
    is_second, child = ranks.rank == 1, None
    faults: list[str] = []
    if case == "left" and is_second:
        child = lives_on(ranks)
    else:
        points = [("one", merged(ranks, 5)), ("other", merged(ranks, 2))]
        if case == "elsewhere" and is_second:
            points.reverse()
        if case == "broken":
            points[0] = ("one", breaks(ranks) if is_second else merged(ranks, 1, 5))
        faults = [fault_at(ranks, point, exchange) for point, exchange in points]
    dist.barrier()
    if child is not None:
        os.kill(child, signal.SIGKILL)
    return faults


def main(folder: str, *cases: str) -> None:
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for case in cases:
        start = time.perf_counter()
        faults = come_apart(case, Ranks())
        torch.save((faults, time.perf_counter() - start), Path(folder) / f"{case}.{rank}")
    dist.destroy_process_group()


class Late:
    """Is deleted when the interpreter ends, and takes its time."""

    def __del__(self):
        self.sleep(3)

    sleep = staticmethod(time.sleep)


def exits(store: str, rank: int) -> Late | None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ranks = Ranks()
    if not rank:
        ranks.leave()  # which the other one never meets
        time.sleep(0.5)
        return Late()
    time.sleep(2)
    ranks.close()
    time.sleep(5)
    return None


if __name__ == "__main__":
    if sys.argv[1] == "exits":
        late = exits(sys.argv[2], int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
