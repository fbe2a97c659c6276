"""Trains on three ranks whose weights come apart, or are meant to differ: python drifted.py FOLDER CASE ...

CASE is one of `CASES`. Saves the verdicts of rank 0, and the RMS of each weight on each rank after the last step.
"""

import copy
import importlib.util
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from toys import fit_in_transformers, trainer

from hookboard import HealthMonitor, watch

STEPS = 6
SPOILED_AFTER = 3
APART = ["a weight changes on one rank", "each rank trains alone", "each rank begins with its own"]
OWN = ["experts", "experts that begin alike", "experts that overflow", "experts that are added up", "split by hand"]
MEANT = ["healthy", "frozen in part", "ignored by DDP", "split into stages", *OWN]
IN_TRANSFORMERS = ["healthy in transformers", "a weight changes on one rank in transformers"]
HAS_TRANSFORMERS = all(map(importlib.util.find_spec, ["transformers", "accelerate"]))
CASES = [*APART, *MEANT, *(IN_TRANSFORMERS if HAS_TRANSFORMERS else [])]


class Net(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x))


class Stage(nn.Module):
    """A part of a model that no other rank has."""

    def __init__(self, rank):
        super().__init__()
        self.name = f"stage{rank}"
        self.add_module(self.name, Net(rank))

    def forward(self, x):
        return self.get_submodule(self.name)(x)


class ForTransformers(nn.Module):
    """Has a layer that it does not run, which DDP looks for."""

    def __init__(self, case):
        super().__init__()
        self.net, self.unused, self.calls = Net(), nn.Linear(4, 4), 0
        self.spoils = case.startswith("a weight changes") and dist.get_rank() == 1

    def forward(self, x):
        if self.spoils and self.calls == SPOILED_AFTER:
            with torch.no_grad():
                self.net.head.weight.mul_(3.4)
        self.calls += 1
        return {"loss": self.net(x).square().mean()}


class Model(LightningModule):
    def __init__(self, case):
        super().__init__()
        self.case, self.net = case, Net()
        if case == "frozen in part":
            self.net.body[0].requires_grad_(False)
        if case == "ignored by DDP":
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self, ["net.head.weight"])

    def training_step(self, batch):
        return self.net(batch).square().mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.case == "a weight changes on one rank" and self.global_rank == 1 and batch_idx == SPOILED_AFTER:
            with torch.no_grad():
                self.net.head.weight.mul_(3.4)

    def configure_optimizers(self):
        return torch.optim.Adam((p for p in self.parameters() if p.requires_grad), lr=0.01)


def batches(rank):
    return torch.randn(STEPS, 16, 8, generator=torch.Generator().manual_seed(rank))


def in_a_trainer(folder, case, monitor):
    run, model = trainer(folder, monitor, devices=3, strategy="ddp", use_distributed_sampler=False), Model(case)
    run.fit(model, DataLoader(batches(int(run.global_rank)), batch_size=None))
    return model.net


def in_transformers(folder, case, monitor):
    model = ForTransformers(case)
    options = {"ddp_backend": "gloo", "ddp_find_unused_parameters": True, "learning_rate": 0.01}
    everyones = torch.stack([batches(rank) for rank in range(dist.get_world_size())], 1).flatten(0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_in_transformers(Path(folder) / f"{case}.{dist.get_rank()}", model, list(everyones), monitor, **options)
    return model.net


def is_own(case, name):
    """Whether each rank has gradients of its own under this name."""
    has_gradients_of_all = case == "experts that are added up" and name == "head.bias"
    is_of_rank = case in OWN and name.startswith("head") and not has_gradients_of_all
    return case in ("each rank trains alone", "split into stages") or is_of_rank


def in_a_bare_loop(folder, case, monitor):
    rank = dist.get_rank()
    net = Net(seed=rank if case == "each rank begins with its own" else 0)
    if case == "split into stages":
        net = Stage(rank)
    if case in OWN and case != "experts that begin alike":
        torch.manual_seed(rank)
        net.head = nn.Linear(16, 4)
    if case == "split by hand":
        nn.init.zeros_(net.head.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with watch(net, optimizer, monitor, log_every_n_steps=1) as run:
        for number, batch in enumerate(batches(rank)):
            with run.step(batch):
                net(batch).square().mean().backward()
                for name, parameter in net.named_parameters():
                    if not is_own(case, name):
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= dist.get_world_size()
                overflows = case == "experts that overflow" and number == 0
                if overflows:
                    kept = copy.deepcopy(net.state_dict())
                    for parameter in net.head.parameters():
                        parameter.grad.fill_(torch.nan)
                optimizer.step()
                if overflows:  # as a GradScaler does, which leaves the step out
                    net.load_state_dict(kept)
                optimizer.zero_grad()
    return net


def main(folder, *cases):
    rank, size = (int(os.environ[name]) for name in ("LOCAL_RANK", "WORLD_SIZE"))
    os.environ["RANK"] = str(rank)  # which Accelerate asks for
    dist.init_process_group("gloo", rank=rank, world_size=size)
    for case in cases:
        monitor = HealthMonitor(every_n_steps=1)
        is_of_lightning = case in ("a weight changes on one rank", "healthy", "frozen in part", "ignored by DDP")
        loop = in_transformers if case in IN_TRANSFORMERS else in_a_trainer if is_of_lightning else in_a_bare_loop
        net = loop(folder, case, monitor)
        rms = {name: float(p.detach().double().square().mean().sqrt()) for name, p in net.named_parameters()}
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, rms)
        if dist.get_rank() == 0:
            torch.save((list(monitor.verdicts), everyones), Path(folder) / case)


if __name__ == "__main__":
    main(*sys.argv[1:])
