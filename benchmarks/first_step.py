"""What following the first training step costs: `HealthMonitor()` beside `HealthMonitor(audit=False)`.

    python benchmarks/first_step.py --rounds 3      steps of 200, 9,000 and 20,000 calls of torch

Each round trains each variant anew for one step, in an order drawn at random. Printed are the median and the least over
the rounds of the seconds of CPU time that the step takes, as a ratio to the variant that does not follow it, and as
what it takes more. The variant without following is there twice: their ratio would be 1 on a machine without noise.
"""

import argparse
import random
import statistics
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from overhead import fit
from torch import Tensor, nn

from hookboard import HealthMonitor

COUNTS = (200, 9_000, 20_000)

VARIANTS = {"not followed": False, "not followed again": False, "followed": True}


class Calls(LightningModule):
    """Calls torch as often in a loop."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.count = count

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x = self.net(batch[0])
        for _ in range(self.count):
            x = torch.relu(x)
        return nn.functional.cross_entropy(x, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Timed(Callback):
    """Times the step with all that callbacks do in it."""

    seconds = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        advance = trainer.fit_loop.epoch_loop.advance

        def timed(*args: Any) -> None:
            start = time.process_time()
            advance(*args)
            self.seconds += time.process_time() - start

        trainer.fit_loop.epoch_loop.advance = timed  # type: ignore[method-assign]  # it holds the callbacks too


def seconds_of(count: int, audit: bool) -> float:
    torch.manual_seed(0)
    timed = Timed()
    batch = torch.randn(4, 4), torch.randint(4, (4,))
    fit(Calls(count), batch, 1, [timed, HealthMonitor(audit=audit)], logger=False)
    return timed.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="fits of each variant")
    args = parser.parse_args()
    shuffled = random.Random(0)
    for count in COUNTS:
        found: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for _ in range(args.rounds + 1):
            for name in shuffled.sample(list(VARIANTS), len(VARIANTS)):
                found[name].append(seconds_of(count, VARIANTS[name]))
        for kind, of in (("median", statistics.median), ("least", min)):
            took = {name: of(each[1:]) for name, each in found.items()}  # the first round warms up
            bare = took["not followed"]
            ratios = (f"{name} {seconds / bare:.3f} ({seconds - bare:+.2f} s)" for name, seconds in took.items())
            print(f"{count:,} calls, {kind}: {1e3 * bare:.0f} ms", *ratios, sep="; ", flush=True)


if __name__ == "__main__":
    main()
