"""Trains with a HealthMonitor on two ranks, or on one that sees the data of both, and saves what it says.

python judged.py FOLDER DEVICES STRATEGY:CASE ...

STRATEGY is one of Lightning's, `fsdp` (FSDP2) or `tensor` (tensor parallelism: both ranks see all the data). CASE is
one of `CASES`, or `resumed`: the training of `dead` in two parts, of which the second begins with the checkpoint of the
first. Everything is in float64, so that both trainings are the same but for rounding.
"""

import math
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, IterableDataset
from toys import trainer

from hookboard import HealthMonitor, HookboardWarning, Rule
from hookboard.base.ranks import local
from hookboard.health.page import Page

EACH, CUT = 64, 7
CASES = (
    "healthy",
    "dead",
    "dead on rank 0",
    "dead on rank 1",
    "nan",
    "late nan",
    "spike",
    "rare",
    "nan behind the last measured",
    "stop",
    "broken rule",
    "broken page and stop",
    "fault on rank 0",
    "fault on rank 1",
    "faults at each step on rank 1",
)

BARE = ("healthy", "dead")
"""What is trained without a monitor, too."""

SPLIT = ("healthy", "dead", "dead on rank 0", "rare", "nan")
"""What is trained in parts of layers and of weights, too."""


def steps_of(case):
    return 80 if case == "spike" else 14  # a spike needs a history


class Poison(nn.Module):
    is_on = False

    def forward(self, x):
        return x + math.nan if self.is_on else x


class Model(LightningModule):
    def __init__(self, case):
        super().__init__()
        torch.manual_seed(0)
        self.case = case
        hidden = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
        self.net = nn.Sequential(*hidden, Poison(), nn.Linear(16, 4)).double()
        with torch.no_grad():
            if case in ("dead", "stop", "broken page and stop"):
                self.net[2].bias.fill_(-50.0)
            if case.startswith("dead on"):  # the last feature of the batch decides: it is -1 on one rank
                self.net[2].bias.zero_()
                self.net[2].weight.zero_()
                self.net[2].weight[:, 0] = 1.0
                self.net[0].weight[0].zero_()
                self.net[0].weight[0, 7] = 1.0
                self.net[0].bias[0] = 0.0

    def configure_model(self):
        if not isinstance(self.trainer.strategy, ModelParallelStrategy):
            return
        tensor, data = self.device_mesh["tensor_parallel"], self.device_mesh["data_parallel"]
        if tensor.size() > 1:
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(), "7": RowwiseParallel()}
            parallelize_module(self.net, tensor, plan)
        else:
            for layer in (self.net[0], self.net[2], self.net[4], self.net[7], self.net):
                fully_shard(layer, mesh=data)

    def training_step(self, batch, batch_idx):
        x, y = batch
        is_mine = self.trainer.world_size == 1 or self.global_rank == 1
        at = steps_of(self.case) - 1 if self.case.endswith("last measured") else 5
        self.net[6].is_on = "nan" in self.case and batch_idx == at and is_mine
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def batch_of(case, step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(EACH, 8, generator=generator, dtype=torch.float64)
    y = (x[:, :4]).argmax(1)
    if case.startswith("dead on"):
        x[:, 7] = -1.0 if case.endswith(str(rank)) else x[:, 7].abs()
    if case == "spike" and step == steps_of(case) - 1 and rank == 1:
        y = (y + 1) % 4
        x = x * 100
    if case == "rare" and rank == 0:
        x[:, 5] = 0.0  # a column that is constant on one rank alone
    return x, y


class Data(IterableDataset):
    def __init__(self, case, is_whole, start):
        self.case, self.is_whole, self.start = case, is_whole, start

    def __iter__(self):
        for step in range(self.start, steps_of(self.case)):
            ranks = (0, 1) if self.is_whole else (dist.get_rank(),)
            parts = [batch_of(self.case, step, rank) for rank in ranks]
            yield tuple(torch.cat(each) for each in zip(*parts, strict=True))


class Faulty(HealthMonitor):
    """Has a fault of its own on one rank in the fourth step."""

    guilty, is_always = 0, False

    def _before_optimizer_step(self, loop, watch, optimizer):
        super()._before_optimizer_step(loop, watch, optimizer)
        model = loop.model
        if model.global_step == 3 and model.global_rank == self.guilty and not self.is_always:
            raise RuntimeError("broken on purpose")

    def _before_backward(self, loop, watch, loss):
        super()._before_backward(loop, watch, loss)
        if loop.model.global_step >= 3 and loop.model.global_rank == self.guilty and self.is_always:
            raise RuntimeError("broken on purpose")


class BrokenPage:
    """As long as it is entered, no page can be made."""

    def __enter__(self):
        self.entry, Page.entry = Page.entry, broken

    def __exit__(self, *args):
        Page.entry = self.entry


def broken(*args):
    raise RuntimeError("broken on purpose")


def monitor_of(case, looks):
    keep = Rule("keep", lambda run: looks.append(run.now) or ())
    given = ["dead_units", "no_gradient", "not_updated", "nonfinite", "input_scale", "spike", "collapsed", keep]
    given += ["activation_scale", "vanishing_gradient", "not_learning", "symmetric_units"]
    given += [Rule("broken", broken)] if case == "broken rule" else []
    options = {"rules": given, "every_n_steps": 1, "nonfinite": "late" if case == "late nan" else "exact"}
    if case in ("spike", "nan behind the last measured") or case.startswith("faults"):
        options["every_n_steps"] = 5
    if case.endswith("stop"):
        options["stop_on"] = "alarm"
    monitor = Faulty(**options) if case.startswith("fault") else HealthMonitor(**options)
    if case.startswith("fault"):
        monitor.guilty, monitor.is_always = int(case[-1]), case.startswith("faults")
    return monitor


def fit(model, devices, strategy, *callbacks, start=0, ckpt_path=None):
    strategies = {
        "fsdp": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        "tensor": lambda: ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2),
    }
    options = {"devices": devices, "strategy": strategies.get(strategy, lambda: strategy)()}
    run = trainer(None, *callbacks, use_distributed_sampler=False, **options)
    data = Data(model.case, devices == 1 or strategy == "tensor", start)
    run.fit(model, DataLoader(data, batch_size=None), ckpt_path=ckpt_path)
    return run.global_step


def train(case, devices, strategy):
    """What this rank has seen and said, and its weights."""
    looks, model = [], Model(case)
    monitor = monitor_of(case, looks)
    page = BrokenPage() if case.startswith("broken page") else nullcontext()
    with warnings.catch_warnings(record=True) as said, page:
        warnings.simplefilter("always", HookboardWarning)
        steps = fit(model, devices, strategy, monitor)
    texts = [str(warning.message) for warning in said if warning.category is HookboardWarning]
    losses = [(one.step, one.value) for one in monitor._run.losses.recent] if model.global_rank == 0 else []
    kept = {"verdicts": monitor.verdicts, "looks": looks, "losses": losses, "said": texts, "steps": steps}
    return SimpleNamespace(**kept, weights=bits_of(model))


def bits_of(model):
    """The weights of this rank, bit by bit."""
    return {name: local(value).detach().view(torch.int64).clone() for name, value in model.named_parameters()}


def train_bare(case, devices, strategy):
    """The weights of this rank after the same training without a monitor."""
    model = Model(case)
    fit(model, devices, strategy)
    return bits_of(model)


class Stops(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == CUT - 1:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def train_in_two_parts(path, devices, strategy):
    """The verdicts at the end."""
    fit(Model("dead"), devices, strategy, monitor_of("dead", []), Stops(path))
    monitor = monitor_of("dead", [])
    fit(Model("dead"), devices, strategy, monitor, start=CUT, ckpt_path=path)
    return monitor.verdicts


def main(folder, devices, *jobs):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for job in jobs:
        print(job, file=sys.stderr, flush=True)
        strategy, case = job.split(":")
        if case == "resumed":
            kept = train_in_two_parts(Path(folder) / f"{strategy}.checkpoint", int(devices), strategy)
        else:
            kept = train(case, int(devices), strategy)
            kept.bare = train_bare(case, int(devices), strategy) if case in BARE else None
        torch.save(kept, Path(folder) / f"{job}.{dist.get_rank() if dist.is_initialized() else 0}")


if __name__ == "__main__":
    main(*sys.argv[1:])
