"""A training put together from circumstances: each is a function that changes one thing about it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn

Batch = dict[str, Tensor]
Circumstance = Callable[["Case"], None]


def one_of(axis: str) -> Callable[[Circumstance], Circumstance]:
    """Marks a circumstance of an axis; its name, with blanks for underscores, is what it is called."""

    def mark(circumstance: Circumstance) -> Circumstance:
        circumstance.axis = axis  # type: ignore[attr-defined]  # a function takes any
        return circumstance

    return mark


def nothing(axis: str) -> Circumstance:
    """The circumstance of an axis that changes nothing."""
    return one_of(axis)(lambda case: None)


def made_by(axis: str, *changes: Callable[["Student"], Any]) -> Circumstance:
    """The circumstance of an axis that makes these changes to the LightningModule."""
    return one_of(axis)(lambda case: case.changes.extend(changes))


def trained_with(axis: str, **options: Any) -> Circumstance:
    """The circumstance of an axis that gives these options to the Trainer."""
    return one_of(axis)(lambda case: case.options.update(options))


class OnPurposeError(Exception):
    """What a circumstance raises."""


EARLY = ("validation_step", "configure_optimizers")
"""Where a run fails at once, not in the third batch."""


@dataclass
class Case:
    """Everything about a training that circumstances change; what stands here is the plain one.

    Args:
        folder: for the files of the run.
        net: makes the network: pictures of shape (n, 2, 6, 4) in, scores of shape (n, 3) out.
        changes: called with the LightningModule when it has been made.
        penalties: each adds to the loss.
        optimizers: what `configure_optimizers` returns.
        step: the training step.
        configure: called with the Trainer's options when they are complete, may change them.
        options: the Trainer's options.
        others: make callbacks that are not ours.
        others_first: whether these stand before ours.
        late_hooks: called with the network once our hooks are on.
        ours: make the callbacks of hookboard.
        fails: the error that is raised, and at which place of the third batch, or of validation.
        go: makes model and Trainer, and trains.
        is_compiled: whether torch.compile runs any of it.
        rounds: whether the oracle changes the order in which gradients are added.
        is_half: whether any of it is computed in half precision.
        changed_later: name and role of tensors that somebody's later hook changes: which value is meant is open.
        not_defined: names of weights that have no value of their own between two calls.
    """

    folder: Path
    net: Callable[[], nn.Module] = nn.Identity
    changes: list[Callable[["Student"], None]] = field(default_factory=list)
    penalties: list[Callable[["Student", Batch, Tensor], Tensor]] = field(default_factory=list)
    optimizers: Callable[["Student"], Any] = lambda model: torch.optim.SGD(model.trained(), lr=0.05, momentum=0.9)
    step: Callable[["Student", Batch, int], Tensor | None] = lambda model, batch, index: model.loss_of(batch)
    configure: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    others: list[Callable[[], Callback]] = field(default_factory=list)
    others_first: bool = True
    late_hooks: list[Callable[["Student"], None]] = field(default_factory=list)
    ours: list[Callable[[], Callback]] = field(default_factory=list)
    fails: tuple[type[BaseException], str] | None = None
    go: Callable[[Any], None] = lambda run: run.fit()
    is_compiled: bool = False
    rounds: bool = False
    is_half: bool = False
    changed_later: set[tuple[str, str]] = field(default_factory=set)
    not_defined: set[str] = field(default_factory=set)


class Student(LightningModule):
    """Trains the network of a case to tell three classes, and keeps every loss."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.net = case.net()
        self.head = nn.Linear(3, 3)
        self.teacher: nn.Module | None = None
        self.losses: list[Tensor] = []
        self.stage = ""  # in which step the run is, "" outside of them
        self.batch_idx = -1

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.net(pictures))

    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def loss_of(self, batch: Batch) -> Tensor:
        scores = self(batch["pictures"])
        loss = nn.functional.cross_entropy(scores, batch["labels"])
        if self.teacher is not None:
            with torch.no_grad():
                taught = self.teacher(batch["pictures"])
            loss = loss + nn.functional.mse_loss(scores, taught)
        for penalty in self.case.penalties:
            loss = penalty(self, batch, loss)
        return loss

    @contextmanager
    def inside(self, stage: str) -> Iterator[None]:
        self.stage, before = stage, self.stage
        try:
            yield
        finally:
            self.stage = before

    def reach(self, place: str) -> None:
        """Raises if the run is to fail here; that does not depend on how often it was here."""
        if self.case.fails is not None and self.case.fails[1] == place and (self.batch_idx == 2 or place in EARLY):
            raise self.case.fails[0]("on purpose")

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        self.batch_idx = batch_idx
        with self.inside("train"):
            loss = self.case.step(self, batch, batch_idx)
            self.reach("training_step")
            if loss is not None:
                self.losses.append(loss.detach().clone())
                self.log("loss", loss.detach())
            return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        with self.inside("validate"):
            self.losses.append(self.loss_of(batch).detach().clone())
            self.log("val_loss", self.losses[-1])
            self.reach("validation_step")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.losses.append(self.loss_of(batch).detach().clone())

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self(batch["pictures"])

    def configure_optimizers(self) -> Any:
        self.reach("configure_optimizers")
        return self.case.optimizers(self)


def batches(count: int, seed: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "pictures": torch.randn(4, 2, 6, 4, generator=generator),
            "labels": torch.randint(3, (4,), generator=generator),
        }
        for _ in range(count)
    ]
