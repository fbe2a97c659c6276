"""Trains on two ranks with a monitor and without, and saves the weights, the verdicts and what was logged.

python two_ranks.py FOLDER STRATEGY CASE ...

STRATEGY is one of Lightning's, `fsdp` (FSDP2) or `static` (DDP with a static graph).
"""

import contextlib
import logging
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from hookboard import HealthMonitor
from hookboard.base.ranks import local

CASES = ("healthy", "softmax", "gathers", "manual")


STRATEGIES = {
    "fsdp": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    "static": lambda: DDPStrategy(static_graph=True),
}


class Model(LightningModule):
    def __init__(self, case):
        super().__init__()
        torch.manual_seed(0)
        self.case, self.automatic_optimization = case, case != "manual"
        tail = [] if case == "healthy" else [nn.Softmax(1)]
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3), *tail)

    def configure_model(self):
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        if self.case == "gathers":
            loss = loss + 0 * self.all_gather(loss.detach()).sum()
        if self.case == "manual":
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
            return None
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(case, strategy, *callbacks):
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    model = Model(case)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=STRATEGIES[strategy]() if strategy in STRATEGIES else strategy,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        default_root_dir=sys.argv[1],
        callbacks=list(callbacks),
    )
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, generator=generator), i % 3) for i in range(64)]
    trainer.fit(model, DataLoader(data, batch_size=8))
    return [local(parameter).detach().clone() for parameter in model.parameters()], torch.get_rng_state()


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


def main(folder, strategy, *cases):
    for case in cases:
        bare, monitor = trained(case, strategy), HealthMonitor(every_n_steps=1)
        with heard() as texts:
            watched = trained(case, strategy, monitor)
        torch.save((bare, watched, monitor.verdicts, texts), Path(folder) / f"{case}.{dist.get_rank()}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(*sys.argv[1:])
