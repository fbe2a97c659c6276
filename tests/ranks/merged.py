"""Records on several ranks that share no model, and saves what each has read: python merged.py FOLDER.

It counts what a rank hands to collectives. The last of the ranks then closes its groups, as one does that gives up.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hookboard import Statistic
from hookboard.base.ranks import Ranks, RanksLostError
from hookboard.measure.statistics import FORMULAS, plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

SITES = [Site(f"layer{number}", "output") for number in range(5)]
LONELY = Site("lonely", "output")
WEIGHT = Site("layer0.weight", "parameter")
UNLIKE, LATE, RESIZED = Site("unlike", "output"), Site("late", "output"), Site("resized", "output")
WIDE, WIDE_UNLIKE = Site("wide", "output"), Site("wide and unlike", "output")
STEPS = 3
STATISTICS = [
    *FORMULAS,
    "p50",
    Statistic("near_zero", lambda x: (x.abs() < 0.5).double().mean(), merge="mean"),
]


def given(rank: int, step: int) -> dict[Site, Tensor]:
    """What a rank gives its table in a step."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    sizes = enumerate(SITES)
    found = {site: torch.randn(3 + rank, 7 + 90 * k, generator=generator) * 10**k for k, site in sizes}
    found[WEIGHT] = torch.arange(12.0).view(3, 4)
    if step and rank == 1:
        found[LONELY] = torch.randn(6, 3, generator=generator) + 5
    return found


def odd(rank: int, step: int) -> dict[Site, Tensor]:
    """Sites of which the ranks do not have the same channels, or not in each step."""
    generator = torch.Generator().manual_seed(100 * rank + step)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    wide = {WIDE: normal(3 + rank, 14_336), WIDE_UNLIKE: normal(3, 5000 - rank)}
    return [
        {**wide, RESIZED: normal(3, 4)},
        {UNLIKE: normal(3, 4 + rank)},
        {UNLIKE: normal(3, 4), RESIZED: normal(3, 6), LATE: normal(3, 6) if rank else normal(3)},
    ][step]


def table(ranks: Ranks | None) -> Table:
    return Table(
        plan(STATISTICS),
        torch.device("cpu"),
        ranks=ranks,
        channels=lambda site, tensor: None if tensor.dim() < 2 else 0 if site == WEIGHT else 1,
        histogram=lambda site, tensor: site != WEIGHT,
    )


def flushed(mine: Table, tensors: dict[Site, Tensor]) -> dict:
    for site, tensor in tensors.items():
        mine.open(site)(tensor)
    return {reading.site: reading for reading in mine.send()().values()}


class Counted:
    """The bytes that this rank hands to collectives."""

    def __init__(self) -> None:
        self.bytes = 0
        c10d = dist.distributed_c10d  # where `all_gather_object` finds its `all_gather`
        reduce, gather = dist.all_reduce, c10d.all_gather

        def counted_reduce(given, *args, **kwargs):
            self.bytes += given.nbytes
            return reduce(given, *args, **kwargs)

        def counted_gather(into, given, *args, **kwargs):
            self.bytes += given.nbytes
            return gather(into, given, *args, **kwargs)

        dist.all_reduce, c10d.all_gather = counted_reduce, counted_gather

    def take(self) -> int:
        taken, self.bytes = self.bytes, 0
        return taken


def main(folder: str) -> None:
    rank, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    ranks, counted = Ranks(), Counted()
    mine, of_odd, read, handed = table(ranks), table(ranks), [], []
    for step in range(STEPS):
        read.append(flushed(mine, given(rank, step)))
        handed.append(counted.take())
        read[-1] |= flushed(of_odd, odd(rank, step))
        counted.take()
    lost = ""
    if rank == size - 1:
        ranks.leave()
    else:
        try:
            with ranks.at("the next look"):
                mine.send()()
        except RanksLostError as error:
            lost = str(error)
    torch.save((read, handed, lost), Path(folder) / str(rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
