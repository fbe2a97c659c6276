"""`Program`: a training as plain data. `Post`: where one comes from, faulty and fixed. `trained` runs one."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.programs.parts import Loss, OptimizerOf
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookboard import HealthMonitor

Batch = tuple[Tensor, Tensor]


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


@dataclass(frozen=True)
class Post:
    """A published program with a fault, and the same with the fix that was accepted.

    Args:
        name: the number of the post on StackOverflow, or the name of the repository that the program comes from.
        source: repository, commit and path of the faulty program.
        fault: what is wrong, in one sentence.
        fix: what was accepted.
        port: what differs from the source: data and caps.
        causes: the names of rules that would be right, decided before any monitor saw the program.
        build: makes the faulty program, or, given True, the fixed one.
        seed: the one that is judged; another than 0 where the fault comes and goes with the seed.
    """

    name: str
    source: str
    fault: str
    fix: str
    port: str
    causes: tuple[str, ...]
    build: Callable[[bool], Program]
    seed: int = 0


class Ported(nn.Module):
    """A program's net, with the name that it has in a `PortedModule`, for a loop without a LightningModule."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.net = program.net

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)


class PortedModule(LightningModule):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.net = program.net
        self.automatic_optimization = program.step is None

    forward = Ported.forward

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.program.loss_of(batch, self)
        if self.program.step is not None:
            self.program.step(self, loss)
        return loss

    def configure_optimizers(self) -> Any:
        return self.program.optimizer(self.net.parameters())


@dataclass
class Trained:
    """How a training ended.

    Args:
        score: on all samples, in evaluation mode; -inf if it is not a number.
        seconds: what the fit took.
        alarms: the alarms of the monitor, first to last; empty without one.
    """

    score: float
    seconds: float
    alarms: list[dict[str, Any]]


def built(post: Post, is_fixed: bool, seed: int) -> Program:
    torch.manual_seed(seed)
    return post.build(is_fixed)


def trained(program: Program, seed: int, monitor: HealthMonitor | None, every: int = 50) -> Trained:
    """Train a program on one thread.

    Args:
        program: what to train; its net changes.
        seed: draws the order of the samples, and what dropout drops.
        monitor: watches the training; None for none.
        every: the Trainer's `log_every_n_steps`, which a monitor at its defaults follows; 50 is Lightning's own.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        log_every_n_steps=every,
        gradient_clip_val=program.clip,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[] if monitor is None else [monitor],
    )
    started = time.perf_counter()
    trainer.fit(PortedModule(program), batches(program))
    seconds = time.perf_counter() - started
    with torch.no_grad():
        answers = program.targets if program.answers is None else program.answers
        score = program.score(program.net.eval()(program.inputs), answers)
    alarms = [] if monitor is None else [vars(said) for said in monitor.verdicts if said.severity == "alarm"]
    return Trained(-math.inf if math.isnan(score) else score, seconds, alarms)


def batches(program: Program) -> DataLoader[Batch]:
    """All steps as one epoch of new orders, so that a program of one batch an epoch does not start one at each step."""
    drawn: list[Tensor] = []
    while len(drawn) < program.steps:
        drawn.extend(torch.randperm(len(program.inputs)).split(program.batch_size))
    data: Any = TensorDataset(program.inputs, program.targets)
    return DataLoader(data, batch_size=None, sampler=_Drawn(drawn[: program.steps]))


class _Drawn:
    def __init__(self, drawn: Sequence[Tensor]) -> None:
        self.drawn = drawn

    def __iter__(self) -> Any:
        return iter(self.drawn)

    def __len__(self) -> int:
        return len(self.drawn)
