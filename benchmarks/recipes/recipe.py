"""`Recipe`: a healthy training of others, as plain data. `run` trains one with a monitor."""

import hashlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookboard import HealthMonitor

EVERY = 5
"""The Trainer's `log_every_n_steps`, for 30 looks in a run of a few seconds."""

STEPS = 150

LEARNED = 0.9
"""The loss of the last fifth of a run is at most this share of the first fifth's, or the recipe says why not."""


@dataclass
class Training:
    """A training that is ready to run.

    Args:
        module: with its step and its optimizers.
        loader: the batches.
        steps: optimizer steps.
        options: further arguments of the Trainer.
        falls: False where the loss does not measure learning, as in games and adversarial training.
    """

    module: LightningModule
    loader: Any
    steps: int = STEPS
    options: dict[str, Any] = field(default_factory=dict)
    falls: bool = True


@dataclass(frozen=True)
class Recipe:
    """Where a training comes from, and what makes it.

    Args:
        name: of the recipe.
        source: the documentation, example or paper that its settings are from.
        needs: the package that it needs beside torch, torchvision and scikit-learn; "" for none.
        build: makes it.
    """

    name: str
    source: str
    needs: str
    build: Callable[[], Training]

    @property
    def half(self) -> str:
        """Thresholds may be set on "tuning"; tables are of "report"."""
        return "report" if hashlib.sha256(self.name.encode()).digest()[0] % 2 else "tuning"

    @property
    def can_run(self) -> bool:
        return not self.needs or importlib.util.find_spec(self.needs) is not None


RECIPES: list[Recipe] = []
"""Filled by the files that `catalogue.py` imports."""


def recipe(name: str, source: str, needs: str = "") -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Enter the training that the decorated function builds."""

    def kept(build: Callable[[], Training]) -> Callable[[], Training]:
        RECIPES.append(Recipe(name, source, needs, build))
        return build

    return kept


LossOf = Callable[[Any, Any], Tensor]
OptimizerOf = Callable[[Any], Any]


class Plain(LightningModule):
    """One loss, one optimizer.

    Args:
        net: the model.
        loss: of the model and a batch.
        optimizer: makes the optimizer of the parameters that are trained.
        schedule: makes the schedule of the optimizer, which is stepped after each step.
    """

    def __init__(self, net: nn.Module, loss: LossOf, optimizer: OptimizerOf, schedule: OptimizerOf | None = None):
        super().__init__()
        self.net = net
        self.loss = loss
        self.optimizer = optimizer
        self.schedule = schedule

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.net, batch)

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer([weight for weight in self.net.parameters() if weight.requires_grad])
        if self.schedule is None:
            return optimizer
        return [optimizer], [{"scheduler": self.schedule(optimizer), "interval": "step"}]


def loader(*tensors: Tensor, size: int = 16) -> DataLoader[Any]:
    """Shuffled batches of the same rows of the tensors."""
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True, drop_last=True)


def supervised(loss: Callable[[Tensor, Tensor], Tensor]) -> LossOf:
    """Make a loss of a model's output and the second tensor of the batch."""

    def of(net: Any, batch: Any) -> Tensor:
        return loss(net(batch[0]), batch[1])

    return of


class Losses(Callback):
    """Keeps the loss of each batch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self.seen.append(float(loss))


def run(given: Recipe, with_monitor: bool) -> dict[str, Any]:
    """Train a recipe on one thread; returns its row of the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = given.build()
    monitor, losses = HealthMonitor(), Losses()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=training.steps,
        max_epochs=-1,
        log_every_n_steps=EVERY,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[losses, monitor] if with_monitor else [losses],
        **training.options,
    )
    started = time.perf_counter()
    trainer.fit(training.module, training.loader)
    verdicts: Sequence[Any] = monitor.verdicts if with_monitor else []
    return {
        "name": given.name,
        "source": given.source,
        "half": given.half,
        "seconds": time.perf_counter() - started,
        "loss": ends(losses.seen),
        "learned": not training.falls or has_fallen(losses.seen),
        "alarms": [vars(said) for said in verdicts if said.severity == "alarm"],
    }


def ends(losses: Sequence[float]) -> list[float]:
    """The mean losses of the first and the last fifth."""
    fifth = max(len(losses) // 5, 1)
    return [sum(part) / fifth for part in (losses[:fifth], losses[-fifth:])] if losses else []


def has_fallen(losses: Sequence[float]) -> bool:
    if not losses:
        return False
    first, last = ends(losses)
    return last <= (LEARNED * first if first > 0 else first / LEARNED)
