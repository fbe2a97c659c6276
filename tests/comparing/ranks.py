"""Compares on two ranks: python ranks.py CASE ...

CASE is `ddp` (a model against its copy in DDP) or `fsdp` (against its copy in FSDP2). Rank 0 prints what was found.
"""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from hookboard import compare


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def loss(output: Tensor) -> Tensor:
    return output.square().mean()


def beside(case: str) -> None:
    """Compare a model with its copy on all ranks, each rank with the same batch; then with a part each."""
    model = net().eval()
    other = copy.deepcopy(model)
    wrong = copy.deepcopy(model)
    wrong[1].eps = 1e-2
    wrapped, wrapped_wrong = (
        DistributedDataParallel(one) if case == "ddp" else fully_shard(one) for one in (other, wrong)
    )
    same = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    part = torch.randn(6, 4, generator=torch.Generator().manual_seed(dist.get_rank()))
    found = [
        compare(model, wrapped, same, loss=loss),
        compare(model, wrapped_wrong, same, loss=loss),
        compare(model, wrapped, part),
        compare(model, wrapped, part, loss=loss),
    ]
    if dist.get_rank() == 0:
        for one in found:
            print(case, [str(each.spot) for each in one.differences])


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
    for given in sys.argv[1:]:
        beside(given)
