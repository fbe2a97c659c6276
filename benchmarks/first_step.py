"""What following the first training step costs: `HealthMonitor()` beside `HealthMonitor(audit=False)`.

    python benchmarks/first_step.py                 ResNet-18, a GPT-2, and a run of 200 short steps
    python benchmarks/first_step.py --rounds 5 --only GPT-2

Each round trains each variant anew for a few steps, in an order drawn at random. Printed are the median and the least
over the rounds of the seconds that the first step takes, as a ratio to the variant that does not follow it; for the
run, of all steps together. The least tells more on a busy machine. The variant without following is there twice: their
ratio would be 1 on a machine without noise.
"""

import argparse
import logging
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from overhead import Classifier, SameBatch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hookboard import HealthMonitor


class GPT2(LightningModule):
    """The architecture of the smallest GPT-2, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.net = GPT2LMHeadModel(GPT2Config())

    def training_step(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.net(input_ids=tokens, labels=tokens).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Short(LightningModule):
    """A step takes about 15 ms on two cores."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)), nn.Linear(512, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Task(NamedTuple):
    """What is trained.

    Args:
        model: makes the model.
        batch: its batch.
        steps: how many steps.
        timed: the seconds that count, of those of all steps.
    """

    model: Callable[[], LightningModule]
    batch: Any
    steps: int
    timed: Callable[[list[float]], float]


def tasks() -> Iterator[tuple[str, Task]]:
    yield "ResNet-18, first step", Task(Classifier, None, 2, lambda seconds: seconds[0])
    yield "GPT-2, first step", Task(GPT2, torch.randint(50257, (2, 128)), 2, lambda seconds: seconds[0])
    short = torch.randn(256, 512), torch.randint(10, (256,))
    yield "200 short steps", Task(Short, short, 200, sum)


VARIANTS = {"not followed": False, "not followed again": False, "followed": True}


def seconds_of(task: Task, audit: bool) -> float:
    torch.manual_seed(0)
    trainer = Trainer(
        max_steps=task.steps,
        accelerator="cpu",
        callbacks=[HealthMonitor(audit=audit)],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    seconds: list[float] = []
    advance = trainer.fit_loop.epoch_loop.advance

    def timed(*args: Any) -> None:
        start = time.perf_counter()
        advance(*args)
        seconds.append(time.perf_counter() - start)

    trainer.fit_loop.epoch_loop.advance = timed  # type: ignore[method-assign]  # it holds the callbacks too
    trainer.fit(task.model(), DataLoader(SameBatch(task.batch), batch_size=None))
    return task.timed(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="fits of each variant")
    parser.add_argument("--only", default="", help="tasks whose name contains this")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    shuffled = random.Random(0)
    for title, task in tasks():
        if args.only not in title:
            continue
        found: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for _ in range(args.rounds + 1):
            for name in shuffled.sample(list(VARIANTS), len(VARIANTS)):
                found[name].append(seconds_of(task, VARIANTS[name]))
        for kind, of in (("median", statistics.median), ("least", min)):
            took = {name: of(each[1:]) for name, each in found.items()}  # the first round warms up
            bare = took["not followed"]
            ratios = (f"{name} {seconds / bare:.3f}" for name, seconds in took.items())
            print(f"{title}, {kind}: {1e3 * bare:.0f} ms", *ratios, sep="; ", flush=True)


if __name__ == "__main__":
    main()
