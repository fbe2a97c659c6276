"""`Program`: a training that diverges or a healthy one, and at which step its loss has doubled."""

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from benchmarks.recipes.recipe import Losses, Training
from lightning.pytorch import Callback, Trainer
from torch import optim
from torch.utils.data import DataLoader, IterableDataset

SPAN = 20
"""Losses of which the median is taken, before a step and from it on."""

LEAST_BEFORE = 5
"""No loss has doubled before so many."""

FLOOR = 0.05
"""A loss that fell below this share of the first ones is taken for as much: twice almost nothing is no divergence."""


@dataclass(frozen=True)
class Program:
    """A training.

    Args:
        name: what it is and, if it diverges, how that is provoked.
        kind: "rate", "attention", "half", "batch", "recurrent" or "router", or "healthy".
        build: makes it.
    """

    name: str
    kind: str
    build: Callable[[], Training]


PROGRAMS: list[Program] = []
"""Filled by `divergent.py` and `healthy.py`."""

Build = Callable[[], Training]


def program(kind: str, name: str) -> Callable[[Build], Build]:
    """Enter the training that the decorated function builds."""

    def kept(build: Build) -> Build:
        PROGRAMS.append(Program(name, kind, build))
        return build

    return kept


def doubling(losses: Sequence[float]) -> int | None:
    """The first step at which the loss has doubled and stays so; None if it never does.

    A loss has doubled when it is not finite, or more than twice the lowest median of `SPAN` finite losses in a row
    before it (of all there are while there are fewer, but at least `LEAST_BEFORE`). It stays so when the median of this
    loss and the `SPAN - 1` after it has doubled as well, and that of all losses to the end. The median before counts as
    `FLOOR` of the first one at least.
    """
    known = [loss if math.isfinite(loss) else sys.float_info.max for loss in losses]
    finite: list[float] = []
    lowest, floor = math.inf, 0.0
    for step, loss in enumerate(losses):
        limit = 2 * max(lowest, floor) if len(finite) >= LEAST_BEFORE else sys.float_info.max / 2
        rest = known[step:]
        if len(rest) >= SPAN and min(rest[0], statistics.median(rest[:SPAN]), statistics.median(rest)) > limit:
            return step
        if math.isfinite(loss):
            finite.append(loss)
        if len(finite) >= LEAST_BEFORE:
            median = statistics.median(finite[-SPAN:])
            floor = floor or FLOOR * abs(median)
            lowest = min(lowest, median)
    return None


def trained(given: Program, callbacks: Sequence[Callback] = ()) -> list[float]:
    """Train a program on one thread; returns the loss of each batch that has one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = given.build()
    losses = Losses()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=training.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[losses, *callbacks],
        **training.options,
    )
    trainer.fit(training.module, training.loader)
    return losses.seen


class Stream(IterableDataset[Any]):
    """A batch for each step, drawn by a function of the step."""

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[Any]:
        return map(self.draw, count())


def stream(draw: Callable[[int], Any]) -> DataLoader[Any]:
    return DataLoader(Stream(draw), batch_size=None)


def rising(factor: Callable[[int], float]) -> Callable[[Any], Any]:
    """Make the schedule whose rate is so many times the first one at a step."""
    return lambda optimizer: optim.lr_scheduler.LambdaLR(optimizer, factor)
