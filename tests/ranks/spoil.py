"""Trains on two ranks with a fault on rank 1 alone, with and without a black box, and saves what each rank has.

python spoil.py FOLDER FAULT ...

FAULT is `forward`, `backward`, `batch`, or `collective` (the step gathers from all ranks).
"""

import math
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from boxes import Box, bits
from torch import nn
from torch.utils.data import DataLoader
from toys import Toy, trainer

from hookboard.base.ranks import gathered


class Faulty(nn.Module):
    def forward(self, x):
        return self.fault(x) if self.is_sick else x


class Model(Toy):
    def __init__(self, fault):
        torch.manual_seed(0)
        faulty = Faulty()
        faulty.fault = (lambda x: torch.sqrt(x * 0) + x) if fault == "backward" else lambda x: x * math.nan
        super().__init__(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), faulty, nn.Dropout(0.2), nn.Linear(4, 2)))
        self.fault = fault

    def training_step(self, batch, batch_idx):
        is_sick = batch_idx == 2 and self.global_rank == 1
        self.net[2].is_sick = is_sick and self.fault != "batch"
        y = self.net(batch)
        if self.fault == "collective":
            y = y + 0 * self.all_gather(y.detach()).sum()
        loss = y.square().mean()
        self.log("loss", loss.nan_to_num(), sync_dist=True)
        return loss


def batches(fault):
    rank = dist.get_rank() if dist.is_initialized() else 0
    generator = torch.Generator().manual_seed(rank)
    data = [torch.randn(8, 4, generator=generator) for _ in range(4)]
    if fault == "batch" and rank == 1:
        data[2][3, 1] = math.nan
    return data


class Data(torch.utils.data.IterableDataset):
    def __init__(self, fault):
        self.fault = fault

    def __iter__(self):
        return iter(batches(self.fault))


def train(fault, *callbacks):
    model = Model(fault)
    torch.manual_seed(1)
    trainer(None, *callbacks, devices=2, strategy="ddp").fit(model, DataLoader(Data(fault), batch_size=None))
    return {name: bits(value) for name, value in model.state_dict().items()}, torch.get_rng_state()


def main(folder, *faults):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for fault in faults:
        box = Box()
        bare, watched = train(fault), train(fault, box)
        is_same = all(value.equal(watched[0][name]) for name, value in bare[0].items()) and bare[1].equal(watched[1])
        events = [event for part in gathered(box.box.events, torch.device("cpu")) for event in part]
        torch.save(
            (is_same, box.box.events, min(events, key=lambda event: event.order, default=None)),
            Path(folder) / f"{fault}.{dist.get_rank()}",
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
