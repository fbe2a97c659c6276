"""Trains on two ranks that do not wait for each other, the second of them in trouble; saves what the first saw.

python left.py FOLDER CASE ...

They look at every eighth step. CASE is what rank 1 does in the third of them: it `raises`, `dies` or is `stuck`; or its
monitor is `broken` in the middle of a look; or its epochs are `shorter`, by two steps, and there are two of them, each
with a validation.
Without callbacks rank 0 would notice none of this: it waits for the other at the step after a look. Or gradients are
shared, and rank 0 alone is `asked` for what it has measured, after each look.
"""

import os
import sys
import time
import warnings
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path

import torch
from lightning.pytorch import Callback
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop as TrainingEpochLoop
from torch import nn
from torch.utils.data import DataLoader
from toys import Toy, trainer

from hookboard import ActivationLogger, HealthMonitor, HookboardWarning
from hookboard.base import ranks
from hookboard.callbacks import health_monitor

STEPS, EVERY, AT, EACH, PATIENCE = 48, 8, 23, 0.02, 3.0


class BrokenOnPurposeError(Exception):
    pass


class Model(Toy):
    """Rank 1 is in trouble in one step."""

    def __init__(self, case: str, folder: Path) -> None:
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        self.case, self.folder = case, folder

    def on_train_start(self):
        self.trainer.model.require_backward_grad_sync = self.case == "asked"

    def training_step(self, batch, batch_idx):
        time.sleep(EACH)
        if self.global_rank and batch_idx == AT:
            if self.case == "raises":
                raise BrokenOnPurposeError
            if self.case == "dies":
                os._exit(0)
            if self.case == "stuck":
                wait_for(self.folder / "left.0")
                os._exit(0)
        return super().training_step(batch)


@contextmanager
def broken_at(looks):
    """Inside, the monitor of this rank fails after so many looks."""
    summed, seen = health_monitor.summed, []

    def broken(*given):
        seen.append(given)
        if len(seen) > looks:
            raise BrokenOnPurposeError
        return summed(*given)

    health_monitor.summed = broken
    yield
    health_monitor.summed = summed


class Asks(Callback):
    """Asks a callback for its readings, on rank 0 alone."""

    def __init__(self, logger):
        self.logger, self.found = logger, []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_global_zero and (batch_idx + 1) % EVERY == 0:
            self.found.append(len(self.logger.readings))


class Clock(Callback):
    """The longest time that a step has taken."""

    longest, last = 0.0, None

    def on_train_batch_start(self, *args):
        now = time.perf_counter()
        self.longest = max(self.longest, now - (self.last or now))
        self.last = now


def wait_for(path):
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)


def train(folder, case):
    folder.mkdir(exist_ok=True)
    ranks.ANSWER_TIMEOUT = timedelta(seconds=PATIENCE if case in ("stuck", "shorter") else 60.0)
    monitor, clock = HealthMonitor(every_n_steps=EVERY, window=1), Clock()
    activations = ActivationLogger(every_n_steps=EVERY)
    asks = Asks(activations)
    is_second, is_shorter = os.environ["LOCAL_RANK"] == "1", case == "shorter"
    fault = broken_at(AT // EVERY) if case == "broken" and is_second else nullcontext()
    options = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False, "limit_val_batches": 1.0}
    callbacks = [clock, activations, monitor, *([asks] if case == "asked" else [])]
    run = trainer(folder, *callbacks, max_epochs=2 if is_shorter else 1, **options)
    with warnings.catch_warnings(record=True) as said, fault:
        warnings.simplefilter("always", HookboardWarning)
        steps = STEPS - 2 if is_shorter and is_second else STEPS
        data, other = (DataLoader(torch.randn(4 * n, 4), batch_size=4) for n in (steps, 1))
        with suppress(BrokenOnPurposeError):
            run.fit(Model(case, folder), data, other if is_shorter else None)
        ended = time.perf_counter()
    texts = [str(warning.message) for warning in said if warning.category is HookboardWarning]
    kept = {"steps": run.global_step, "longest": clock.longest, "after": ended - clock.last, "said": texts}
    kept["found"] = asks.found
    rank = run.global_rank
    torch.save(kept, folder / f"saving.{rank}")
    (folder / f"saving.{rank}").rename(folder / f"left.{rank}")
    if case not in ("dies", "stuck"):
        wait_for(folder / f"left.{1 - rank}")


def main(folder, *cases):
    torch.set_num_threads(1)
    # At each batch rank 0 tells the others whether it has been asked to end.
    TrainingEpochLoop._broadcast_sigterm_tensor = lambda self: None
    for case in cases:
        train(Path(folder) / case, case)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
