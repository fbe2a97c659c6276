"""Trains on two ranks in several loops and saves the verdicts of each rank: python looped.py FOLDER LOOP ...

LOOP is `trainer` or `trainer_fsdp` (a Lightning Trainer), `ddp` or `fsdp` (a bare loop with DDP or FSDP2), `fabric`,
`fabric_fp16` and `trainer_fp16`, or `transformers`. Only rank 0 has NaN as input, and only in the last batch.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricMixedPrecision
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from same_logs import everything
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter
from toys import Toy, batches, fit, fit_in_transformers, mlp

from hookboard import watch

RANK = int(os.environ.get("LOCAL_RANK", 0))
STEPS = 6


class Plain(nn.Module):
    """Has the layers of a `Toy`, under the same names, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x).square().mean()


class Output(Plain):
    def forward(self, x):
        return {"loss": super().forward(x)}


class Sharded(Toy):
    def configure_model(self):
        shard(self.net)


def shard(net):
    for layer in (net[0], net[2], net):
        fully_shard(layer)


def data_of(rank):
    data = batches(*[4] * 2 * STEPS)[rank::2]
    if rank == 0:
        data[-1] = torch.full_like(data[-1], torch.nan)
    return data


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**8)


def in_a_trainer(folder, loop, callbacks):
    options = {"strategy": "ddp", "devices": 2}
    if loop == "trainer_fsdp":
        options["strategy"] = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    if loop == "trainer_fp16":
        options["plugins"] = MixedPrecision("16-mixed", "cpu", scaler())
    model = Sharded(mlp()) if loop == "trainer_fsdp" else Toy(mlp())
    fit(folder, model, data_of(RANK), *callbacks, use_distributed_sampler=False, **options)


def train(fabric, model, optimizer, folder, callbacks):
    with SummaryWriter(folder) as writer, watch(model, optimizer, callbacks, writer, log_every_n_steps=1) as run:
        for batch in data_of(RANK):
            with run.step(batch):
                loss = model(batch)
                loss.backward() if fabric is None else fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()


def in_a_bare_loop(folder, loop, callbacks):
    model = Plain()
    if loop == "fsdp":
        shard(model.net)
    else:
        model = DistributedDataParallel(model)
    train(None, model, torch.optim.SGD(model.parameters(), lr=0.01), folder, callbacks)


def in_fabric(folder, loop, callbacks):
    plugins = FabricMixedPrecision("16-mixed", "cpu", scaler()) if loop == "fabric_fp16" else []
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", plugins=plugins)
    fabric.launch()
    model = Plain()
    train(fabric, *fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.01)), folder, callbacks)


def in_transformers(folder, loop, callbacks):
    everyones = [batch for pair in zip(data_of(0), data_of(1), strict=True) for batch in pair]
    options = {"optim": "sgd", "learning_rate": 0.01, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    fit_in_transformers(folder, Output(), everyones, callbacks, logging_steps=1, ddp_backend="gloo", **options)


def main(folder, *loops):
    warnings.simplefilter("ignore")
    os.environ["RANK"] = str(RANK)
    torch.distributed.init_process_group("gloo")
    run = {"trainer": in_a_trainer, "fabric": in_fabric, "transformers": in_transformers}
    for loop in loops:
        callbacks, backward = everything(), torch.autograd.backward
        run.get(loop.split("_")[0], in_a_bare_loop)(Path(folder) / loop / str(RANK), loop, callbacks)
        assert torch.autograd.backward is backward
        said = [(v.severity, v.rule, v.module, v.since) for v in callbacks[-1].verdicts]
        torch.save(said, Path(folder) / f"{loop}.{RANK}")


if __name__ == "__main__":
    main(*sys.argv[1:])
