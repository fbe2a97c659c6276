"""Trains on two ranks without a break, and in two parts; saves what each of them says in the end.

python resumed.py FOLDER STRATEGY

STRATEGY is `ddp` or `fsdp` (FSDP2, which loads its checkpoint only behind `on_fit_start`).
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset
from toys import trainer

from hookboard import HealthMonitor

STEPS, CUT = 16, 8


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).double()
        with torch.no_grad():
            self.net[2].bias.fill_(-50.0)

    def configure_model(self):
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            for layer in (self.net[0], self.net[2], self.net[4], self.net):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Data(IterableDataset):
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        for step in range(self.start, STEPS):
            generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
            x = torch.randn(64, 8, generator=generator, dtype=torch.float64)
            yield x, x[:, :4].argmax(1)


class Stops(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == CUT - 1:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def verdicts_of(strategy, *callbacks, start=0, ckpt_path=None):
    monitor = HealthMonitor(every_n_steps=2)
    how = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1) if strategy == "fsdp" else strategy
    run = trainer(None, monitor, *callbacks, devices=2, strategy=how, use_distributed_sampler=False)
    run.fit(Model(), DataLoader(Data(start), batch_size=None), ckpt_path=ckpt_path)
    return [tuple(vars(verdict).values()) for verdict in monitor.verdicts]


if __name__ == "__main__":
    folder, strategy = Path(sys.argv[1]), sys.argv[2]
    whole = verdicts_of(strategy)
    verdicts_of(strategy, Stops(folder / "middle"))
    resumed = verdicts_of(strategy, start=CUT, ckpt_path=folder / "middle")
    torch.save([whole, resumed], folder / f"said.{dist.get_rank()}")
