"""Trains on two ranks, steps after the last look too; saves each rank's losses and the judge's: ended.py FOLDER."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from hookboard import HealthMonitor, watch

STEPS = 6


def main(folder):
    rank, size = (int(os.environ[name]) for name in ("LOCAL_RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(0)
    net, monitor, losses = nn.Sequential(nn.Linear(4, 2)), HealthMonitor(every_n_steps=4), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with watch(net, optimizer, monitor, log_every_n_steps=1) as run:
        for step in range(STEPS):
            with run.step():
                loss = net(torch.randn(8, 4)).square().mean() + 10 * rank + step
                loss.backward()
                losses.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
    judged = [(one.step, one.value) for one in monitor._run.losses.recent] if rank == 0 else None
    torch.save((losses, judged), Path(folder) / str(rank))


if __name__ == "__main__":
    main(*sys.argv[1:])
