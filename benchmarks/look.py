"""What one look of HealthMonitor costs the host, and how many bytes it adds to a checkpoint.

    python benchmarks/look.py                                       this checkout
    python benchmarks/look.py --beside ../hookboard-0.2.0           in turns with another one, whose kernel is built

The model is torchvision's ResNet-50 on two pictures of 3x32x32, whose steps are so short that the look is as long. It
is measured at every step, on one thread. Each training is a process of its own, since a process has one hookboard; they
take turns, so that a drift of the machine's speed meets all of them. The time is that of the process, not of the clock:
what else the machine does counts little. Printed are the medians over the steps of a training, of the quickest of the
rounds; a look is what the step takes beyond the bare one.
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
STEPS, WARM_UP = 30, 8
BARE, WATCHED = "bare", "watched"


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


def train(kind: str, folder: str) -> dict[str, float]:
    """Train, and return the milliseconds of a step and the bytes that the callbacks add to a checkpoint."""
    from hookboard import HealthMonitor

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    clock, monitors = Clock(), [HealthMonitor(every_n_steps=1)] if kind == WATCHED else []
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[clock, *monitors],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    data = [(torch.randn(2, 3, 32, 32), torch.randint(10, (2,))) for _ in range(STEPS)]
    trainer.fit(Classifier(), DataLoader(data, batch_size=None))  # type: ignore[arg-type]
    steps = [1e3 * (end - start) for start, end in zip(clock.seconds, clock.seconds[1:], strict=False)]
    sizes = [saved(trainer, Path(folder, "with.ckpt"))]
    for monitor in monitors:
        trainer.callbacks.remove(monitor)  # type: ignore[attr-defined]  # it is a list
    sizes.append(saved(trainer, Path(folder, "without.ckpt")))
    return {"milliseconds": statistics.median(steps[WARM_UP:]), "bytes": sizes[0] - sizes[1]}


def saved(trainer: Trainer, path: Path) -> int:
    """Save a checkpoint, and return its size in bytes."""
    trainer.save_checkpoint(path)
    return path.stat().st_size


def trained(kind: str, checkout: Path) -> dict[str, float]:
    """What `train` returns in a process that has the hookboard of a checkout."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, "--train", kind]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="the folder of another checkout")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each, of which the quickest counts")
    parser.add_argument("--train", choices=[BARE, WATCHED], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(train(given.train, folder)))
        return
    turns = {"bare step": (BARE, ROOT), "a look": (WATCHED, ROOT)}
    if given.beside:
        turns["a look of the other checkout"] = (WATCHED, given.beside.resolve())
    found: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
    for _ in range(given.rounds):
        for name, turn in turns.items():
            found[name].append(trained(*turn))
    quickest = {name: min(one["milliseconds"] for one in each) for name, each in found.items()}
    print("| | ms | bytes in a checkpoint |")
    print("|---|---|---|")
    for name, milliseconds in quickest.items():
        beyond = 0.0 if name == "bare step" else quickest["bare step"]
        print(f"| {name} | {milliseconds - beyond:.1f} | {found[name][0]['bytes']:,.0f} |")


if __name__ == "__main__":
    main()
