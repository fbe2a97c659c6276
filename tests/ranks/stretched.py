"""Trains with a slow callback on rank 1 of two, which has to keep within a share of the time; saves the due steps.

python stretched.py FOLDER
"""

import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader
from toys import Toy

from hookboard import ActivationLogger


class Slow(ActivationLogger):
    """Slow on the last rank alone."""

    def __init__(self):
        super().__init__("net", every_n_steps=2, max_overhead=0.05)
        self.steps = []

    def _begin_batch(self, loop, watch, batch):
        self.steps.append(loop.trainer.global_step)
        time.sleep(0.05 * loop.trainer.global_rank)
        super()._begin_batch(loop, watch, batch)


if __name__ == "__main__":
    folder, callback = Path(sys.argv[1]), Slow()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    run = Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", default_root_dir=folder, callbacks=callback, **quiet
    )
    run.fit(Toy(nn.Linear(4, 2)), DataLoader(torch.randn(2 * 24, 4), batch_size=1))
    torch.save(callback.steps, folder / f"steps.{run.global_rank}")
