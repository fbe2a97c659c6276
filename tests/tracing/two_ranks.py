"""Trains the faults of `test_loops.py` on two ranks, with a monitor and without.

python two_ranks.py FOLDER LOOP:CASE ...

LOOP is one of `LOOPS`. Each rank saves in FOLDER/LOOP:CASE.RANK whether weights and random state are the same with a
monitor, the verdicts, and what was said.
"""

import contextlib
import logging
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from tracing import test_loops as loops

from hookboard import HealthMonitor
from hookboard.base.ranks import local


def in_ddp(folder, model, *others):
    loops.bare(folder, DistributedDataParallel(model, find_unused_parameters=True), *others)


def in_fsdp(folder, model, *others):
    for layer in [layer for layer in model.net if list(layer.parameters())] + [model]:
        fully_shard(layer)
    loops.bare(folder, model, *others)


def in_fabric(folder, *others):
    loops.fabric(folder, *others, devices=2, strategy=FabricDDPStrategy(find_unused_parameters=True))


def in_accelerate(folder, *others):
    from accelerate import DistributedDataParallelKwargs

    loops.accelerated(folder, *others, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])


class Gathers(loops.InLightning):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss + 0 * self.all_gather(loss.detach()).sum()


class Manual(loops.InLightning):
    def __init__(self, model):
        super().__init__(model)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()


class Sharded(loops.InLightning):
    def configure_model(self):
        fully_shard(self.model.net, mesh=self.device_mesh["data_parallel"])


def in_lightning(kind, strategy, *others):
    loops.lightning(*others, kind=kind, devices=2, strategy=strategy(), use_distributed_sampler=False)


LOOPS = {
    "ddp": in_ddp,
    "fsdp": in_fsdp,
    "fabric": in_fabric,
    "accelerate": in_accelerate,
    "lightning": partial(in_lightning, loops.InLightning, DDPStrategy),
    "lightning that gathers": partial(in_lightning, Gathers, DDPStrategy),
    "lightning by hand": partial(in_lightning, Manual, DDPStrategy),
    "lightning with a static graph": partial(in_lightning, loops.InLightning, partial(DDPStrategy, static_graph=True)),
    "lightning with fsdp": partial(in_lightning, Sharded, partial(ModelParallelStrategy, 2, 1)),
}


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def heard():
    """What is logged and warned of inside the context; the warnings once it has ended."""
    handler, logger = Lines(), logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield handler.lines
    logger.removeHandler(handler)
    handler.lines += [str(warning.message) for warning in said]


def trained(folder, loop, case, monitor=None):
    kind, _, *data = loops.FAULTS[case]
    x, labels = (rows.roll(dist.get_rank(), 0) for rows in data)
    weights = loops.trained(LOOPS[loop], Path(folder) / loop, kind, x, labels, monitor)
    return [local(value).clone() for value in weights.values()] + [torch.get_rng_state()]


def main(folder, *jobs):
    rank = os.environ["RANK"] = os.environ["LOCAL_RANK"]
    dist.init_process_group("gloo")
    for job in jobs:
        print(job, file=sys.stderr, flush=True)  # a failure is that of the last one printed
        bare, monitor = trained(folder, *job.split(":")), HealthMonitor(every_n_steps=1)
        with heard() as texts:
            watched = trained(folder, *job.split(":"), monitor)
        is_same = all(one.equal(other) for one, other in zip(bare, watched, strict=True))
        torch.save((is_same, monitor.verdicts, texts), Path(folder) / f"{job}.{rank}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(*sys.argv[1:])
