"""Records channels in two processes that share no model, and saves what each has read: python channels.py FOLDER."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hookboard.base.ranks import Ranks
from hookboard.measure import FORMULAS, Recorder, plan
from hookboard.model.sites import Site

LAYER, WEIGHT, LONELY, LATE = (
    Site("layer", "output"),
    Site("layer.weight", "parameter"),
    Site("lonely", "output"),
    Site("late", "output"),
)
UNLIKE, COUNTED, RESIZED = Site("unlike", "output"), Site("counted", "output"), Site("resized", "output")
WIDE, WIDE_UNLIKE = Site("wide", "output"), Site("wide and unlike", "output")

Step = dict[Site, list[Tensor]]


def steps_of(rank: int) -> list[Step]:
    """What a rank gives its recorder, by step and site."""
    generator = torch.Generator().manual_seed(rank)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    shared = torch.arange(12.0).view(3, 4)
    first: Step = {LAYER: [normal(4 + rank, 5), normal(2, 5) + 100], WEIGHT: [shared], COUNTED: [normal(3, 2)]}
    second: Step = {LAYER: [normal(3, 5, 2, 2)], UNLIKE: [normal(3, 4 + rank)], COUNTED: [normal(3, 2)]}
    third: Step = {LAYER: [normal(2, 5)], UNLIKE: [normal(3, 4)], LATE: [normal(3, 6)] if rank else [normal(3)]}
    first[WIDE], first[WIDE_UNLIKE] = [normal(3 + rank, 14_336)], [normal(3, 5000 - rank)]
    if rank:
        second[LONELY] = [normal(6, 3)]
        third[LONELY] = [normal(2, 3), normal(2, 4)]
    first[RESIZED], third[RESIZED] = [normal(3, 4)], [normal(3, 6)]
    return [first, second, third]


def channels(site: Site, tensor: Tensor) -> int | None:
    if tensor.dim() < 2:
        return None
    return 0 if site.role == "parameter" else 1


def run(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    recorder = Recorder(
        plan(tuple(FORMULAS)),
        torch.device("cpu"),
        ranks=Ranks(),
        channels=channels,
        histogram=lambda site, tensor: site == COUNTED or (site == LAYER and rank == 0),
    )
    read = []
    for step in steps_of(rank):
        for site, tensors in step.items():
            for tensor in tensors:
                recorder.open(site)(tensor)
        read.append({reading.site: reading for reading in recorder.flush().values()})
    torch.save(read, Path(folder) / str(rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    run(int(os.environ["LOCAL_RANK"]), sys.argv[1])
