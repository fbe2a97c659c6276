"""Trains the faults of `test_loops.py` on two ranks, in loops without a Lightning Trainer, with a monitor and without.

python two_ranks_looped.py FOLDER LOOP ...

LOOP is `ddp` or `fsdp` (a bare loop with DDP or FSDP2), `fabric`, `accelerate` or `transformers`. Each rank saves in
FOLDER/LOOP.CASE.RANK whether weights and random state are the same with a monitor, the verdicts, and what was said.
"""

import functools
import itertools
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
import test_loops as loops
from two_ranks import heard

from hookboard import HealthMonitor
from hookboard.base.ranks import local


def in_ddp(folder, model, *others):
    loops.bare(folder, DistributedDataParallel(model, find_unused_parameters=True), *others)


def in_fsdp(folder, model, *others):
    for layer in [layer for layer in model.net if list(layer.parameters())] + [model]:
        fully_shard(layer)
    loops.bare(folder, model, *others)


def in_fabric(folder, *others):
    loops.fabric(folder, *others, devices=2, strategy=DDPStrategy(find_unused_parameters=True))


def in_accelerate(folder, *others):
    from accelerate import DistributedDataParallelKwargs

    loops.accelerated(folder, *others, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])


CASES = (
    "Healthy",
    "Broadcasts",
    "KeepsALayerInAList",
    "StaysInEvaluation",
    "SeesLaterTokens",
)


LOOPS = {
    "ddp": in_ddp,
    "fsdp": in_fsdp,
    "fabric": in_fabric,
    "accelerate": in_accelerate,
    "transformers": loops.hugging_face,
}


def trained(loop, folder, kind, data, monitor=None):
    x, labels = (rows.roll(dist.get_rank(), 0) for rows in data)
    weights = loops.trained(LOOPS[loop], folder, kind, x, labels, monitor)
    return [local(value).clone() for value in weights.values()] + [torch.get_rng_state()]


def main(folder, *names):
    rank = int(os.environ["LOCAL_RANK"])
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo")
    for loop, case in itertools.product(names, CASES):
        kind, _, *data = loops.FAULTS[case]
        train = functools.partial(trained, loop, Path(folder) / loop, kind, data)
        bare, monitor = train(), HealthMonitor(every_n_steps=1)
        with heard() as texts:
            watched = train(monitor)
        is_same = all(one.equal(other) for one, other in zip(bare, watched, strict=True))
        torch.save((is_same, monitor.verdicts, texts), Path(folder) / f"{loop}.{case}.{rank}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(*sys.argv[1:])
