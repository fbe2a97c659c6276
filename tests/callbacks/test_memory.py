"""What is held does not grow with the steps of a run: `benchmarks/scaling.py` shows the same over 10,000 steps."""

import gc
import sys

from lateness import make_late
from lightning.pytorch import Callback
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger
from hookboard.health import losses, run

STEPS = 1000
WARM = 200
"""Steps after which all that is bounded is full. Slow on purpose: caches fill for a while, a leak never stops."""


class Held(Callback):
    """Counts the blocks of memory that Python holds, every 40 steps. It stands first."""

    def __init__(self, *watching):
        self.watching = watching
        self.blocks = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx >= WARM and batch_idx % 40 == 0:
            for callback in self.watching:  # what is not finished is held with reason
                callback.finish()
            gc.collect()
            self.blocks.append(sys.getallocatedblocks())


def growth(blocks):
    """By how many blocks a third holds more than the third before. The least of both, and the least of each third.

    What is kept of each step grows all the time. Caches of NumPy and Python fill ever more slowly, in another process
    later than in this; bounded pasts go to and fro.
    """
    third = len(blocks) // 3
    first, second, last = (min(blocks[at * third : (at + 1) * third]) for at in range(3))
    return min(second - first, last - second)


def test_nothing_is_kept_of_a_step(tmp_path, monkeypatch):
    # Bounded pasts are full after a few steps; the heat maps' columns are halved in the middle of each half.
    monkeypatch.setattr(run, "COURSE_COLUMNS", 8)
    monkeypatch.setattr(losses, "RECENT_LOSSES", 64)
    monkeypatch.setattr(losses, "NOISE_BLOCKS", 8)
    make_late(monkeypatch)
    options = {"every_n_steps": 2, "histogram": True}
    watching = [ActivationLogger(**options), GradientLogger(**options), ParameterLogger(**options)]
    watching.append(HealthMonitor(every_n_steps=2))
    first = Held(*watching)
    fit(tmp_path, Toy(mlp()), batches(4) * STEPS, first, *watching, log_every_n_steps=10**9)
    due_steps = (STEPS - WARM) // 3 // 2  # from one third to the next
    # What is bounded moves by up to some 130 blocks; whatever is kept of a due step has more than two.
    assert growth(first.blocks) < 2 * due_steps, first.blocks
