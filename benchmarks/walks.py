"""How far a number walks through the source, from a tensor to its tag: calls of functions in one due step.

python -m benchmarks.walks

What is called in one room after another is a change of room; a climb, where the room is above the one before.
"""

import itertools
import sys
import tempfile
import threading
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader

import hookboard
from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger

ROOT = Path(hookboard.__file__).parent
DUE, STEPS = 6, 8
WALKS = {
    "activation -> tag": lambda: ActivationLogger(statistics=["mean"], every_n_steps=1),
    "gradient -> tag": lambda: GradientLogger(statistics=["mean"], every_n_steps=1),
    "update of a weight -> tag": lambda: ParameterLogger(every_n_steps=1),
    "reading -> verdict": lambda: HealthMonitor(every_n_steps=1, window=2),
}


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))

    def training_step(self, batch):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Walk(Callback):
    """Counts what is called between the start of one batch and the start of the next."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  # file and function

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == DUE:
            sys.setprofile(self.see)
            threading.setprofile(self.see)
        if batch_idx == DUE + 1:
            sys.setprofile(None)
            threading.setprofile(None)

    def see(self, frame, event, arg):
        if event != "call" or not is_ours(frame):
            return
        code = frame.f_code
        self.calls.append((code.co_filename, code.co_qualname))


def is_ours(frame) -> bool:
    return frame.f_code.co_filename.startswith(str(ROOT))


def room(file: str) -> str:
    parts = Path(file).relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


def walk(callback) -> Walk:
    torch.manual_seed(0)
    seen = Walk()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=TensorBoardLogger(folder),
            callbacks=[seen, callback],
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Model(), DataLoader(torch.randn(4 * STEPS, 8), batch_size=4))
    return seen


def main() -> None:
    from tests.test_house import floor_of

    print("| one due step, 4 layers | calls | functions | files | changes of room | climbs back up |")
    print("|---|---|---|---|---|---|")
    for name, make in WALKS.items():
        seen = walk(make())
        rooms = [room(file) for file, _ in seen.calls]
        changes = [(a, b) for a, b in itertools.pairwise(rooms) if a != b]
        climbs = [1 for a, b in changes if floor_of(b) < floor_of(a)]
        files = {file for file, _ in seen.calls}
        print(
            f"| {name} | {len(seen.calls)} | {len(set(seen.calls))} | {len(files)} | {len(changes)} | {len(climbs)} |"
        )


if __name__ == "__main__":
    main()
