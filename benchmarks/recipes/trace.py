"""Whether reading the first step leaves a trace in trainings of others: `python -m benchmarks.recipes.trace`.

Each recipe is trained for a few steps without a monitor and with one. Losses, weights, optimizers and random state must
be the same, bit for bit. The second column is what the reading adds to the first step, in steps of the training, on
one thread's clock: without it the monitor runs with `audit=False`.
"""

import argparse
import os
import random
import time
import warnings
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.health.runner import quiet
from benchmarks.recipes.catalogue import RECIPES
from benchmarks.recipes.recipe import Recipe
from lightning.pytorch import Callback, Trainer

from hookboard import HealthMonitor

STEPS = 12


class Kept(Callback):
    """Keeps the loss of each batch, and when it began."""

    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.began: list[float] = []

    def on_train_batch_start(self, *given: Any) -> None:
        self.began.append(time.thread_time())

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *given: Any) -> None:
        self.losses.append(outputs["loss"].detach().clone() if isinstance(outputs, dict) and outputs else None)


def trained(recipe: Recipe, *callbacks: Callback) -> tuple[list[Any], float, float]:
    """Train; returns all that must be the same, and the seconds of a step and of the first one."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    kept, training = Kept(), recipe.build()
    trainer = Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=5,
        callbacks=[kept, *callbacks],
        **training.options,
    )
    trainer.fit(training.module, training.loader)
    states = [optimizer.state_dict()["state"] for optimizer in trainer.optimizers]
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    took = [after - before for before, after in zip(kept.began, kept.began[1:], strict=False)]
    return [kept.losses, training.module.state_dict(), states, drawn], median(took), took[0]


def is_same(one: Any, other: Any) -> bool:
    """Return whether two nested values are the same, bit for bit; NaN is the same as NaN."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.recipes.trace", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="recipes whose name contains this")
    options = parser.parse_args(given)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    rows = []
    for recipe in RECIPES:
        if recipe.can_run and options.only in recipe.name:
            (bare, step, _), (watched, _, first) = trained(recipe), trained(recipe, HealthMonitor())
            _, _, unread = trained(recipe, HealthMonitor(audit=False))
            rows.append((recipe.name, is_same(bare, watched), (first - unread) / step))
            print(f"| {recipe.name} | {'the same' if rows[-1][1] else 'DIFFERS'} | {rows[-1][2]:.1f} |", flush=True)
    steps = [took for _, _, took in rows]
    differ = [name for name, same, _ in rows if not same]
    print(
        f"{len(rows)} recipes, {len(differ)} differ {differ}; reading took {min(steps):.1f} to {max(steps):.1f} steps"
    )


if __name__ == "__main__":
    quiet()
    warnings.simplefilter("ignore")
    main()
