"""Trains or compares on two ranks: python ranks.py FOLDER CASE

CASE is `fit` (a run for `StepRecorder`), `other` (the same with a wrong norm), `sharded` (the same under FSDP2), `ddp`
(a model against its copy in DDP), or `fsdp` (against its copy in FSDP2). Rank 0 prints what was found.
"""

import copy
import os
import sys
import warnings

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from hookboard import HookboardWarning, StepRecorder, compare


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def loss(output: Tensor) -> Tensor:
    return output.square().mean()


class Trained(LightningModule):
    def __init__(self, is_wrong: bool, is_sharded: bool) -> None:
        super().__init__()
        self.net, self.is_sharded = net(), is_sharded
        if is_wrong:
            self.net[1].eps = 1e-2

    def configure_model(self) -> None:
        if self.is_sharded:
            self.net[1] = nn.LayerNorm(8)
            fully_shard(self.net)

    def training_step(self, batch: Tensor) -> Tensor:
        return loss(self.net(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: str, case: str) -> None:
    sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    trainer = Trainer(
        strategy=sharded if case == "sharded" else "ddp",
        devices=2,
        accelerator="cpu",
        max_epochs=1,
        callbacks=[StepRecorder(folder, [0, 1])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    generator = torch.Generator().manual_seed(1 + trainer.global_rank)
    batches = [torch.randn(6, 4, generator=generator) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", HookboardWarning)
        trainer.fit(Trained(case == "other", case == "sharded"), DataLoader(batches, batch_size=None))


def beside(case: str) -> None:
    """Compare a model with its copy on all ranks, each rank with the same batch; then with a part each."""
    dist.init_process_group("gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=2)
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
            print([str(each.spot) for each in one.differences], len(one.rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[2] in ("ddp", "fsdp"):
        beside(sys.argv[2])
    else:
        fit(*sys.argv[1:])
