"""What following the first training step costs: `HealthMonitor()` beside `HealthMonitor(audit=False)`.

    python benchmarks/first_step.py                 ResNet-18, a GPT-2, 200 short steps, and steps of many calls
    python benchmarks/first_step.py --rounds 5 --only GPT-2
    python benchmarks/first_step.py --rounds 3 --only calls
    python benchmarks/first_step.py --only depth    how deep modules may be in each other, with hooks and without

Each round trains each variant anew for a few steps, in an order drawn at random. Printed are the median and the least
over the rounds of the seconds of CPU time that the first step takes, as a ratio to the variant that does not follow it,
and as what it takes more; for the run, of all steps together. The variant without following is there twice: their ratio
would be 1 on a machine without noise.
"""

import argparse
import bisect
import logging
import random
import runpy
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from overhead import Classifier, SameBatch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hookboard import HealthMonitor, watch


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


class Calls(Short):
    """Calls torch as often in a loop; with `lines`, it calls as many layers, each from a line of its own in a file."""

    def __init__(self, count: int, lines: int = 0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), *(nn.ReLU() for _ in range(count if lines else 0)))
        body = f"    x = net(x)\n    for _ in range({count}): x = torch.relu(x)\n"
        if lines:
            body = "".join(f"    x = net[{i}](x)\n" for i in range(count + 1))
        file = Path(tempfile.mkdtemp()) / "long.py"
        file.write_text(f"import torch\ndef run(net, x):\n{body}    return x\n" + "other = [1, 2, 3]\n" * lines)
        self.run = runpy.run_path(str(file))["run"]

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.run(self.net, batch[0]), batch[1])


class Deep(nn.Module):
    """Calls itself."""

    def forward(self, x: Tensor, depth: int) -> Tensor:
        return self(x, depth - 1) if depth else x * 1


def nests(count: int, callbacks: Sequence[HealthMonitor]) -> bool:
    """Return whether as many calls of a module may be in each other, of Python's 1,000 frames."""
    net = nn.ModuleList([nn.Linear(1, 1), Deep()])
    with watch(net, torch.optim.SGD(net.parameters(), lr=0.1), callbacks) as run, run.step():
        try:
            net[1](torch.ones(1, 1), count - 1)
        except RecursionError:
            return False
    return True


def deepest(has_hooks: bool) -> int:
    """Return how many calls of a module may be in each other."""
    return bisect.bisect_left(range(1, 1000), True, key=lambda n: not nests(n, [HealthMonitor()] * has_hooks))


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
    few = torch.randn(4, 4), torch.randint(4, (4,))
    for count in (200, 9_000, 20_000):
        yield f"{count:,} calls, first step", Task(partial(Calls, count), few, 1, sum)
    yield "400 calls in a file of 5,000 lines, first step", Task(partial(Calls, 400, 4_600), few, 1, sum)


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
        start = time.process_time()
        advance(*args)
        seconds.append(time.process_time() - start)

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
    if args.only in "depth":
        print(f"depth of modules: {deepest(False)}, with hooks {deepest(True)}", flush=True)
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
            ratios = (f"{name} {seconds / bare:.3f} ({seconds - bare:+.2f} s)" for name, seconds in took.items())
            print(f"{title}, {kind}: {1e3 * bare:.0f} ms", *ratios, sep="; ", flush=True)


if __name__ == "__main__":
    main()
