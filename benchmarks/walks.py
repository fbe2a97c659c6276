"""How far a number walks through the source, from a tensor to its tag: calls of functions in one step.

python -m benchmarks.walks

A step begins where the loader hands over its batch and ends where it is asked for the next one. What is called in one
room after another is a change of room; a climb, where the room is above the one before. Of the steps that are due the
one with most calls is shown, of the others the one in the middle.
"""

import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

import hookboard
from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger

ROOT = Path(hookboard.__file__).parent
CADENCE, WARM_UP, STEPS = 10, 25, 60

DUE = {
    "one Linear's activation -> scalar": lambda: ActivationLogger("net.0", every_n_steps=CADENCE),
    "4 layers: activations -> tags": lambda: ActivationLogger(statistics=["mean"], every_n_steps=CADENCE),
    "4 layers: gradients -> tags": lambda: GradientLogger(statistics=["mean"], every_n_steps=CADENCE),
    "4 layers: updates of weights -> tags": lambda: ParameterLogger(every_n_steps=CADENCE),
    "4 layers: verdicts": lambda: HealthMonitor(every_n_steps=CADENCE, window=2),
}
NOT_DUE = {
    "not due: ActivationLogger at one Linear": lambda: ActivationLogger("net.0", every_n_steps=CADENCE),
    "not due: HealthMonitor": lambda: HealthMonitor(every_n_steps=CADENCE),
}

Calls = list[tuple[str, str]]
"""File and function of each call of hookboard's, in their order."""


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))

    def training_step(self, batch):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Loader:
    """Hands over batches, and notes what is called between one and the next."""

    def __init__(self) -> None:
        self.steps: list[Calls] = []

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[Tensor]:
        for batch in torch.randn(STEPS, 4, 8):
            self.steps.append([])
            sys.setprofile(self._see)
            yield batch

    def _see(self, frame, event, arg) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            self.steps[-1].append((code.co_filename, code.co_qualname))


def steps_of(callback) -> list[Calls]:
    """The calls of each step of a training once caches are warm, those with fewest calls first."""
    torch.manual_seed(0)
    loader = Loader()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=TensorBoardLogger(folder),
            callbacks=[callback],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        try:
            trainer.fit(Model(), loader)
        finally:
            sys.setprofile(None)
    return sorted(loader.steps[WARM_UP:-1], key=len)  # with the last one comes the end of the training


def room(file: str) -> str:
    parts = Path(file).relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


def row(name: str, calls: Calls) -> str:
    from tests.test_house import floor_of

    rooms = [room(file) for file, _ in calls]
    changes = [(a, b) for a, b in itertools.pairwise(rooms) if a != b]
    climbs = [1 for a, b in changes if floor_of(b) < floor_of(a)]
    files = {file for file, _ in calls}
    return f"| {name} | {len(calls)} | {len(set(calls))} | {len(files)} | {len(changes)} | {len(climbs)} |"


def main() -> None:
    print("| one step | calls | functions | files | changes of room | climbs back up |")
    print("|---|---|---|---|---|---|")
    for name, make in DUE.items():
        print(row(name, steps_of(make())[-1]))
    for name, make in NOT_DUE.items():
        steps = steps_of(make())
        print(row(name, steps[len(steps) // 2]))


if __name__ == "__main__":
    main()
