"""Healthy trainings on several ranks, seed by seed: how often is it said that their weights have come apart?

    python benchmarks/healthy_ranks.py                     50 seeds of each kind on two processes (gloo)
    python benchmarks/healthy_ranks.py --seeds 5 --ranks 4

Printed is, for each kind, in how many trainings `ranks_differ` said anything, and which other alarms there were. Each
seed draws a network with dropout, its width, depth and activations, the optimizer, the rate and the batches.
"""

import argparse
import collections
import json
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from ranks import launch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from hookboard import HealthMonitor, watch

STEPS, WIDTH, CLASSES = 8, 12, 4


class SyncedNorm(nn.BatchNorm1d):
    """A batch norm with the statistics of all ranks, as torch's SyncBatchNorm, which runs on GPUs alone, has them."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        sums = torch.stack([torch.full_like(x[0], len(x)), x.sum(0), x.square().sum(0)])
        count, total, squares = dist.nn.functional.all_reduce(sums)  # type: ignore[attr-defined]  # torch does not type it
        mean = total / count
        variance = squares / count - mean.square()
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)  # type: ignore[union-attr, arg-type]  # it is tracked
            self.running_var.lerp_(variance, 0.1)  # type: ignore[union-attr, arg-type]  # it is tracked
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


def network(seed: int, norm: Callable[[int], nn.Module] | None = None) -> nn.Sequential:
    drawn = random.Random(seed)
    width, depth = 2 * drawn.randint(4, 12), drawn.randint(1, 3)
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for number in range(depth):
        layers.append(nn.Linear(width if number else WIDTH, width))
        layers += [norm(width)] if norm is not None else []
        layers += [drawn.choice([nn.ReLU, nn.GELU, nn.Tanh])(), nn.Dropout(drawn.choice([0.1, 0.5]))]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def in_ddp(seed: int) -> nn.Module:
    return DistributedDataParallel(network(seed, nn.BatchNorm1d))


def in_ddp_without_buffers(seed: int) -> nn.Module:
    """Each rank keeps the running statistics of its own batches."""
    return DistributedDataParallel(network(seed, nn.BatchNorm1d), broadcast_buffers=False)


def with_synced_norms(seed: int) -> nn.Module:
    return DistributedDataParallel(network(seed, SyncedNorm))


def frozen_in_part(seed: int) -> nn.Module:
    net = network(seed, nn.BatchNorm1d)
    net[0].requires_grad_(False)
    return DistributedDataParallel(net, find_unused_parameters=seed % 2 == 0)


def in_fsdp2(seed: int) -> nn.Module:
    net = network(seed, nn.LayerNorm)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)  # type: ignore[no-any-return]  # the module itself


def in_fsdp2_frozen_in_part(seed: int) -> nn.Module:
    net = in_fsdp2(seed)
    net[0].requires_grad_(False)  # type: ignore[index]  # a Sequential
    return net


def in_tensor_parallel(seed: int) -> nn.Module:
    """Every rank sees the same batches, and draws the same dropout."""
    net, mesh = network(seed), init_device_mesh("cpu", (dist.get_world_size(),))
    linear = [str(number) for number, layer in enumerate(net) if isinstance(layer, nn.Linear)]
    plan = {}
    for first, second in zip(linear[::2], linear[1::2], strict=False):
        plan |= {first: ColwiseParallel(), second: RowwiseParallel()}
    return parallelize_module(net, mesh, plan)


KINDS: dict[str, Callable[[int], nn.Module]] = {
    "DDP": in_ddp,
    "DDP, uneven batches": in_ddp,
    "DDP, buffers not broadcast": in_ddp_without_buffers,
    "DDP, synchronized batch norms": with_synced_norms,
    "DDP, frozen in part": frozen_in_part,
    "FSDP2": in_fsdp2,
    "FSDP2, uneven batches": in_fsdp2,
    "FSDP2, frozen in part": in_fsdp2_frozen_in_part,
    "tensor parallel": in_tensor_parallel,
    "DDP, spoiled on one rank": in_ddp,
}
"""The last one is sick, to show that the rest could have been found."""


def batches(kind: str, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    rank = 0 if kind == "tensor parallel" else dist.get_rank()
    torch.manual_seed(1000 * seed + rank)  # for dropout too
    teacher = torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(seed))
    for _ in range(STEPS):
        x = torch.randn(16 - 5 * rank * ("uneven" in kind), WIDTH)
        yield x, (x @ teacher).argmax(1)


def alarms_of(kind: str, seed: int) -> list[str]:
    """The rules that raise an alarm, and `ranks_differ` where it is only a note."""
    model = KINDS[kind](seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW][seed % 3](trained, lr=[0.01, 0.003][seed % 2])
    monitor = HealthMonitor(every_n_steps=1)
    with watch(model, optimizer, monitor, log_every_n_steps=1) as run:
        for x, y in batches(kind, seed):
            with run.step((x, y)):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            if "spoiled" in kind and dist.get_rank() == 1:
                trained[0].data[0] += 0.01
    return [one.rule for one in monitor.verdicts if one.severity == "alarm" or one.rule == "ranks_differ"]


def task(seeds: int) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    found = {kind: [alarms_of(kind, seed) for seed in range(seeds)] for kind in KINDS}
    print("\n" + json.dumps(found), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    if "LOCAL_RANK" in os.environ:
        return task(args.seeds)
    found = launch(__file__, ["--seeds", str(args.seeds)], args.ranks)[0]
    print(f"{args.ranks} processes, {args.seeds} seeds of {STEPS} steps, torch {torch.__version__}")
    for kind, runs in found.items():
        apart = sum("ranks_differ" in rules for rules in runs)
        others = collections.Counter(rule for rules in runs for rule in rules if rule != "ranks_differ")
        listed = ", ".join(f"{rule} {count}" for rule, count in others.items()) or "none"
        print(f"{kind:32} ranks_differ {apart} of {len(runs)}; other alarms: {listed}")
    return None


if __name__ == "__main__":
    main()
