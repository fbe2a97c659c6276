"""What one look of HealthMonitor costs the host, and how many bytes it adds to a checkpoint.

    python benchmarks/look.py                                       this checkout
    python benchmarks/look.py --beside ../hookboard-0.2.0           in turns with another one, whose kernel is built

The model is torchvision's ResNet-50 on two pictures of 3x32x32, whose steps are so short that the look is as long. It
is measured at every second step, on one thread; a look is what such a step takes beyond the mean of the steps before
and after it, of which nothing is measured. The time is that of the process, not of the clock: what else the machine
does counts little. Each training is a process of its own, since a process has one hookboard; they take turns, so that a
drift of the machine's speed meets all of them. Printed are the medians over the steps of a training, and over rounds.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.models import resnet50

ROOT = Path(__file__).parents[1]
STEPS, WARM_UP = 91, 20


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = resnet50(num_classes=10)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class Clock(Callback):
    """Takes the processor time at the start of each batch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.seconds.append(time.process_time())


def train(folder: str) -> dict[str, float]:
    """Train, and return the milliseconds of a look and of the steps between, and the bytes it adds to a checkpoint."""
    from hookboard import HealthMonitor

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clock, monitor = Clock(), HealthMonitor(every_n_steps=2)
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[clock, monitor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    data = [(torch.randn(2, 3, 32, 32), torch.randint(10, (2,))) for _ in range(STEPS)]
    trainer.fit(Classifier(), DataLoader(data, batch_size=None))  # type: ignore[arg-type]
    steps = [1e3 * (end - start) for start, end in zip(clock.seconds, clock.seconds[1:], strict=False)]
    looks = range(WARM_UP + 1, STEPS - 2, 2)  # as a Trainer logs: the second of two
    found = {
        "look": statistics.median(steps[k] - (steps[k - 1] + steps[k + 1]) / 2 for k in looks),
        "step": statistics.median(steps[k + 1] for k in looks),
        "bytes": saved(trainer, Path(folder, "with.ckpt")),
    }
    trainer.callbacks.remove(monitor)  # type: ignore[attr-defined]  # it is a list
    found["bytes"] -= saved(trainer, Path(folder, "without.ckpt"))
    return found


def saved(trainer: Trainer, path: Path) -> int:
    """Save a checkpoint, and return its size in bytes."""
    trainer.save_checkpoint(path)
    return path.stat().st_size


def trained(checkout: Path) -> dict[str, float]:
    """What `train` returns in a process that has the hookboard of a checkout."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, "--train"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="the folder of another checkout")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(train(folder)))
        return
    turns = {"this checkout": ROOT}
    if given.beside:
        turns["the other checkout"] = given.beside.resolve()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
    for _ in range(given.rounds):
        for name, checkout in turns.items():
            found[name].append(trained(checkout))
    print("| | a look, ms | a step without one, ms | bytes in a checkpoint |")
    print("|---|---|---|---|")
    for name, each in found.items():
        look, step, size = (statistics.median(one[what] for one in each) for what in ("look", "step", "bytes"))
        print(f"| {name} | {look:.1f} | {step:.1f} | {size:,.0f} |")


if __name__ == "__main__":
    main()
