"""A `Learner` is a training; a `Case` is a published one with its fault and its fix, and a `Healthy` one has none.

`Program` is a training of one net with one loss as plain data, and `Ported` the learner that is made of it.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.programs.parts import Loss, OptimizerOf
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

ISSUE = "https://github.com/{}/issues/{}"
PULL = "https://github.com/{}/pull/{}"

Batch = tuple[Tensor, Tensor]


class Learner(LightningModule):
    """A training: the model, its step and optimizers, its batches, and how good it has become.

    It has Adam at `rate` for all parameters unless it says otherwise, and takes `steps` batches.

    Args:
        fixed: with the published fix, or without it.
    """

    rate = 0.003
    steps = 400
    clip: float | None = None
    """The largest norm of the gradient; None for no limit."""

    def __init__(self, fixed: bool = True) -> None:
        super().__init__()
        self.fixed = fixed

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), self.rate)

    def batch(self) -> Any:
        """Draw a batch."""
        raise NotImplementedError

    def loader(self) -> DataLoader[Any]:
        """Draw all batches."""
        return DataLoader([self.batch() for _ in range(self.steps)], batch_size=None)  # type: ignore[arg-type]

    def score(self) -> float:
        """How good the model is at what it is for, in evaluation mode and without gradients; higher is better."""
        raise NotImplementedError

    def descend(self, optimizer: Any, loss: Tensor) -> None:
        """Take a step of manual optimization."""
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


@dataclass
class Program:
    """A training.

    Args:
        net: the model.
        loss: what is minimized, of the outputs and the targets.
        inputs: shape (samples, ...).
        targets: shape (samples, ...).
        optimizer: makes the optimizer of the parameters.
        batch_size: samples in a batch; the last of an epoch may have fewer.
        steps: optimizer steps.
        score: how good outputs are, given the true answers; higher is better.
        answers: what the score compares with, where that is not the targets.
        clip: the largest norm of the gradient; None for no limit.
        step: what the program does once it has the loss, given the module and the loss; None for what Lightning does:
            clear the gradients, backward, step.
    """

    net: nn.Module
    loss: Loss
    inputs: Tensor
    targets: Tensor
    optimizer: OptimizerOf
    batch_size: int
    steps: int
    score: Callable[[Tensor, Tensor], float]
    answers: Tensor | None = None
    clip: float | None = None
    step: Callable[[LightningModule, Tensor], None] | None = None

    def loss_of(self, batch: Batch, net: nn.Module) -> Tensor:
        inputs, targets = batch
        return self.loss(net(inputs), targets)


class Ported(Learner):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program, self.net = program, program.net
        self.clip, self.automatic_optimization = program.clip, program.step is None

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def configure_optimizers(self) -> Any:
        return self.program.optimizer(self.net.parameters())

    def loader(self) -> DataLoader[Batch]:
        torch.manual_seed(torch.initial_seed())  # fault and fix draw the same, whatever their nets have drawn
        return batches(self.program)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.program.loss_of(batch, self)
        if self.program.step is not None:
            self.program.step(self, loss)
        return loss

    def score(self) -> float:
        answers = self.program.targets if self.program.answers is None else self.program.answers
        return self.program.score(self.net(self.program.inputs), answers)


def batches(program: Program) -> DataLoader[Batch]:
    """All steps as one epoch of new orders, so that a program of one batch an epoch does not start one at each step."""
    drawn: list[Tensor] = []
    while len(drawn) < program.steps:
        drawn.extend(torch.randperm(len(program.inputs)).split(program.batch_size))
    data: Any = TensorDataset(program.inputs, program.targets)
    return DataLoader(data, batch_size=None, sampler=drawn[: program.steps])  # type: ignore[arg-type]  # lists of places


@dataclass(frozen=True)
class Case:
    """A published training with a fault, and the same with the fix.

    Args:
        name: the number of the post on StackOverflow, or the repository, with that of the issue or pull request.
        source: its address, or repository, commit and path.
        fault: what is wrong, in one sentence.
        fix: what was accepted.
        port: what differs from the source.
        build: makes the faulty program, or, given True, the fixed one.
        kind: what sort of training it is; "" for a net with one loss.
        causes: the rules that would be right, and `words` those that an alarm on the cause would have one of: each case
            has one of both, written before any monitor saw it.
        seed: the one that is judged; another than 0 where the fault comes and goes with the seed.
    """

    name: str
    source: str
    fault: str
    fix: str
    port: str
    build: Callable[[bool], Learner]
    kind: str = ""
    causes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Healthy:
    """Standard code, as tutorials have it, that learns.

    Args:
        name: what it is.
        kind: what sort of training it is.
        build: makes it.
        least: the score that it reaches.
    """

    name: str
    kind: str
    build: Callable[[], Learner]
    least: float
    seed = 0


ENTERED: list[Case | Healthy] = []
"""Filled by the files that `catalogue.py` imports."""


def case(name: str, source: str, **said: Any) -> Callable[[type[Learner]], type[Learner]]:
    """Enter the case that the decorated class is; the line of its fault ends with `# fault`."""

    def kept(build: type[Learner]) -> type[Learner]:
        ENTERED.append(Case(name, source, build=build, **said))
        return build

    return kept


def post(name: str, source: str, **said: Any) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Enter the case whose program the decorated function builds."""

    def kept(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        @functools.wraps(build)
        def ported(fixed: bool) -> Ported:
            return Ported(build(fixed))

        ENTERED.append(Case(name, source, build=ported, **said))
        return build

    return kept


def healthy(name: str, kind: str, least: float) -> Callable[[type[Learner]], type[Learner]]:
    """Enter the healthy program that the decorated class is."""

    def kept(build: type[Learner]) -> type[Learner]:
        ENTERED.append(Healthy(name, kind, build, least))
        return build

    return kept


@dataclass
class Trained:
    """How a training ended: its score, which is -inf if it is not a number, and the seconds that the fit took."""

    score: float
    seconds: float


def trained(
    build: Callable[[], Learner], seed: int, callbacks: Sequence[Callback] = (), steps: int | None = None
) -> Trained:
    """Train a program on one thread.

    Args:
        build: makes the program.
        seed: draws all that is drawn.
        callbacks: watch the training.
        steps: at most so many batches; None for all.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    learner = build()
    loader = learner.loader()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=steps,
        gradient_clip_val=learner.clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    started = time.perf_counter()
    trainer.fit(learner, loader)
    seconds = time.perf_counter() - started
    torch.manual_seed(seed + 1000)
    with torch.no_grad():
        score = learner.eval().score()
    return Trained(score if math.isfinite(score) else -math.inf, seconds)
