"""Trains with DDP on two ranks that may skip a layer: python unused.py FOLDER CASE ...

CASE is one of `CASES`. Saves for each rank its verdicts, its warnings, and the error that DDP raised.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hookboard import HealthMonitor, watch

SKIPPING = {"all ranks skip it": (0, 1), "rank 1 skips it": (1,)}
MEANT = {"none skips it": (), "ddp looks for it": (0, 1), "ddp does not wait for it": (0, 1), "it is frozen": (0, 1)}
CASES = {**SKIPPING, **MEANT}


class Net(nn.Module):
    def __init__(self, skips):
        super().__init__()
        torch.manual_seed(0)
        self.skips = skips
        self.body, self.side, self.head = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 3)

    def forward(self, x):
        x = self.body(x).relu()
        return self.head(x if self.skips else x + self.side(x)).square().mean()


def train(case, rank):
    net = Net(rank in CASES[case])
    if case == "it is frozen":
        net.side.requires_grad_(False)
    if case == "ddp does not wait for it":
        names = [f"side.{name}" for name, _ in net.side.named_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, names)
    ddp = DistributedDataParallel(net, find_unused_parameters=case == "ddp looks for it")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    monitor, error = HealthMonitor(every_n_steps=1), ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with watch(ddp, optimizer, monitor, log_every_n_steps=1) as run:
                for _ in range(3):
                    with run.step():
                        ddp(torch.randn(4, 8)).backward()
                        optimizer.step()
                        optimizer.zero_grad()
        except RuntimeError as raised:
            error = str(raised)
    return list(monitor.verdicts), [str(one.message) for one in said], error


def main(folder, *cases):
    rank, size = (int(os.environ[name]) for name in ("LOCAL_RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    for case in cases:
        torch.save(train(case, rank), Path(folder) / f"{case}.{rank}")


if __name__ == "__main__":
    main(*sys.argv[1:])
