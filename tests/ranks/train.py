"""Trains a toy on any strategy, once for each of several runs, and saves what each rank read.

python train.py DEVICES FOLDER STRATEGY:HOW ...

STRATEGY is one of Lightning's, `fsdp` (FSDP2) or `tensor` (tensor parallelism). HOW is `sync`, `alone`, `faults`,
`replaced`, `unequal`, `sharded`, `pictures`, `headed` or `collective`. The files of a run begin with
FOLDER/STRATEGY:HOW. All runs share the processes of the first: to start them takes longer than the training.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import toys
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, IterableDataset

from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HookboardWarning,
    KernelLogger,
    ParameterLogger,
    Statistic,
)
from hookboard.measure.statistics import DERIVED, FORMULAS

SIZES = {0: [3, 4, 2], 1: [5, 1, 6]}
"""Rows of each rank's batches."""


def near_zero(x: Tensor) -> Tensor:
    return (x.abs() < 0.5).double().mean()


NEAR_ZERO = Statistic("near_zero", near_zero, merge="mean")


class Ways(nn.Module):
    """Returns its input under the name that it is given."""

    def forward(self, x: Tensor, way: str) -> dict[str, Tensor]:
        return {way: 2 * x}


class Branches(nn.Module):
    """Rank 1 alone takes the branch, where there is one."""

    def __init__(self, has_branch: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.squash = nn.Tanh()
        self.ways = Ways()
        self.first = nn.Linear(4, 8)
        self.relu = nn.ReLU(inplace=True)
        self.branch = nn.LSTM(8, 8) if has_branch else None
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        ordinary, special = x[x[:, 0] < 100], x[x[:, 0] >= 100]
        named = [("ordinary", ordinary), ("special", special)]
        x = torch.cat([self.ways(part % 100, way)[way] for way, part in named if len(part)])
        y = self.relu(self.first(self.squash(x)))
        if len(special) and self.branch is not None:
            y = torch.cat([y[: len(ordinary)], self.branch(y[len(ordinary) :])[0]])
        return self.last(y)


class Model(LightningModule):
    def __init__(self, has_branch: bool, lr: float) -> None:
        super().__init__()
        self.net = Branches(has_branch)
        self.lr = lr

    def configure_model(self) -> None:
        if not isinstance(self.trainer.strategy, ModelParallelStrategy):
            return
        tensor, data = self.device_mesh["tensor_parallel"], self.device_mesh["data_parallel"]
        if tensor.size() > 1:
            # What `first` returns is a plain tensor, half of the whole; what `last` returns is a DTensor.
            plan = {"first": ColwiseParallel(), "last": RowwiseParallel(use_local_output=False)}
            parallelize_module(self.net, tensor, plan)
            self.net.relu.inplace = False  # torch forbids it behind what `first` returns
        else:
            fully_shard(self.net.first, mesh=data)
            fully_shard(self.net, mesh=data)

    def training_step(self, batch: Tensor) -> Tensor:
        y = self.net(batch)
        return (y.to_local() if isinstance(y, DTensor) else y).square().sum()

    def validation_step(self, batch: Tensor) -> None:
        self.net(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def loss_of(scores: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


class Pictures(toys.Toy):
    """A classifier of the same pictures on every rank."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        features = [nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
        super().__init__(nn.Sequential(*features, nn.Flatten(), nn.Linear(4, 5)), loss_of)

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.net[0], mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class Headed(Pictures):
    """Has its head in `forward` of the LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        *features, self.head = self.net
        self.net = nn.Sequential(*features[:3])

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.net(pictures).flatten(1))

    def training_step(self, batch: Tensor) -> Tensor:
        return loss_of(self(batch))

    def validation_step(self, batch: Tensor) -> None:
        self(batch)


class Shifted(nn.Sequential):
    """Its scores depend on what the other ranks have."""

    def forward(self, pictures: Tensor) -> Tensor:
        scores = super().forward(pictures)
        shift = scores.detach().mean(0)
        torch.distributed.all_reduce(shift)
        return scores - shift


class Batches(IterableDataset):
    """Those of this rank, or of both ranks as one batch."""

    def __init__(self, together: bool) -> None:
        self.together = together

    def __iter__(self):
        for step in range(3):
            parts = []
            for rank, sizes in SIZES.items():
                generator = torch.Generator().manual_seed(10 * step + rank)
                parts.append(torch.rand(sizes[step], 4, generator=generator) + 100 * (rank if step else 0))
            mine = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
            yield torch.cat(parts) if self.together else parts[mine]


def main(strategy: str, how: str, devices: int, file: str) -> None:
    warnings.simplefilter("ignore")
    sync = how != "alone"
    of_channels = {"dead_fraction"} if how == "sharded" else set()
    statistics = [name for name in (*FORMULAS, *DERIVED) if name not in of_channels] + [NEAR_ZERO]
    options = {"statistics": statistics, "histogram": True, "sync_dist": sync}
    callbacks: list[Any] = [
        ActivationLogger(roles=["output", "input"], stages=["train", "validate"], **options),
        GradientLogger(roles=["grad_output", "grad_input", "parameter_grad"], **options),
        ParameterLogger(statistics=[*statistics, "update_norm"], histogram=True, sync_dist=sync),
    ]
    if how == "faults":
        callbacks = [Faulty(), ActivationLogger(statistics=["mean", Statistic("faulty", fails_on_rank_one)])]
    if how == "replaced":
        callbacks.append(ReplacesOnRankOne())
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    of_pictures = how in ("pictures", "headed", "collective")
    if of_pictures:
        callbacks = [FeatureMapLogger(every_n_steps=1), KernelLogger(every_n_steps=1), CAMLogger(every_n_steps=1)]
    strategies: dict[str, Any] = {
        "fsdp": ModelParallelStrategy(data_parallel_size=devices, tensor_parallel_size=1),
        "tensor": ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2),
    }
    is_unequal = how == "unequal" and rank
    trainer = toys.trainer(
        None if is_unequal else Path(file + ".events"),
        *(callbacks if of_pictures else [*callbacks, Save(callbacks, file)]),
        strategy=strategies.get(strategy, strategy),
        devices=devices,
        log_every_n_steps=2 if is_unequal else 1,
        use_distributed_sampler=False,
        limit_val_batches=1.0,
        num_sanity_val_steps=0,
    )
    if of_pictures:
        generator = torch.Generator().manual_seed(0)
        pictures = DataLoader([torch.rand(2, 3, 8, 8, generator=generator) for _ in range(3)], batch_size=None)
        model = Headed() if how == "headed" else Pictures()
        if how == "collective":
            model.net = Shifted(*model.net)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", HookboardWarning)
            trainer.fit(model, pictures, pictures)
        said = [str(warning.message) for warning in said]
        torch.save((said, model.state_dict()), f"{file}.{trainer.global_rank}")
        return
    together = devices == 1 or strategy == "tensor"
    # The mean of the ranks' gradients is half of their sum, which one process has.
    lr = 0.01 if together else 0.02
    model = Model(has_branch=how != "sharded", lr=lr if how == "sharded" else 0.0)
    data = DataLoader(Batches(together), batch_size=None)
    trainer.fit(model, data, data)


class ReplacesOnRankOne(Callback):
    """Has another last layer there from the second step on."""

    readings = ()

    def finish(self) -> None:
        pass

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_rank == 1 and trainer.global_step == 1:
            pl_module.net.last = nn.Linear(8, 3)


class Faulty(ParameterLogger):
    """Breaks on rank 1 in the second step."""

    def _measure_after_step(self, trainer: Trainer, watch: Any) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 2 and torch.distributed.get_rank() == 1:
            raise RuntimeError("broken on purpose")
        super()._measure_after_step(trainer, watch)


def fails_on_rank_one(x: Tensor) -> float:
    if torch.distributed.get_rank() == 1 and x.shape[-1] == 3:
        raise RuntimeError("broken on purpose")
    return 0.0


class Save(Callback):
    def __init__(self, watched, file: str) -> None:
        self.watched, self.file = watched, file
        self.steps, self.validation = [], []

    def _finish(self) -> None:
        for callback in self.watched:
            callback.finish()  # on all ranks; a single one is not waited for where it asks for readings

    def on_train_batch_end(self, *args) -> None:
        self._finish()
        self.steps.append([reading for callback in self.watched for reading in callback.readings])

    def on_validation_end(self, *args) -> None:
        self._finish()
        self.validation = [r for callback in self.watched for r in callback.readings if r.stage == "validate"]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        torch.save((self.steps, self.validation), f"{self.file}.{trainer.global_rank}")


if __name__ == "__main__":
    for job in sys.argv[3:]:
        print(job, file=sys.stderr, flush=True)  # a failure is that of the last one printed
        main(*job.split(":"), int(sys.argv[1]), f"{sys.argv[2]}/{job}")
