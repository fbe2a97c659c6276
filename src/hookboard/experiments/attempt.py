"""Trains a model for a few steps with a copy of its optimizer, and puts the model back afterwards."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.base.torch_private import STEP_HOOKS, modules_in, parameters_in
from hookboard.model.layouts import bytes_of
from hookboard.model.state import copied
from hookboard.tracing.step import CannotRunAgainError, loss_of_step, undisturbed

MAX_CPU_WEIGHT_BYTES = 1 << 32
"""Maximum bytes that are copied in the host's memory (a choice)."""

MAX_FREE_MEMORY_SHARE = 0.5
"""Maximum share of a GPU's free memory that all copies may take (a choice)."""


class OutOfTimeError(RuntimeError):
    """Raised by `Setting.check_time` when the time for the experiments is used up."""


@dataclass(frozen=True)
class Setting:
    """A model and how the user trains it.

    Args:
        optimizers: its optimizers, which never step: experiments step copies.
        step: computes the loss of a batch; None for the `training_step` of a LightningModule.
        clip: clips the gradients of an optimizer in place, as the Trainer does; None if they are not clipped.
        scale: what the loss is multiplied by before the backward pass, as by a GradScaler; 1 without one.
        until: the deadline of the experiments, as a value of `perf_counter()`.
    """

    module: nn.Module
    optimizers: Sequence[Optimizer]
    step: Callable[[Any], Tensor] | None = None
    trainer: Trainer | None = None
    clip: Callable[[Optimizer], None] | None = None
    scale: float = 1.0
    until: float = math.inf

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch, with its graph."""
        if self.step is None:
            return loss_of_step(self.trainer, cast(LightningModule, self.module), batch)
        return self.step(batch)

    def check_time(self) -> None:
        """Raise an OutOfTimeError if the deadline `until` has passed."""
        if perf_counter() > self.until:
            raise OutOfTimeError

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the model, and tensors of its optimizer that are not among them; each once."""
        held = [p for group in self.optimizers[0].param_groups for p in group["params"]]
        return list({id(p): p for p in [*parameters_in(self.module).values(), *held]}.values())


def check_memory(setting: Setting) -> None:
    """Raise a CannotRunAgainError if the weights, their gradients and the state of Adam would take too much memory."""
    sizes: dict[torch.device, int] = defaultdict(int)
    for p in setting.parameters:
        sizes[p.device] += bytes_of(p) * (4 if p.requires_grad else 1)
    for device, size in sizes.items():
        is_gpu = device.type == "cuda"
        free = MAX_FREE_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] if is_gpu else MAX_CPU_WEIGHT_BYTES
        if size > free:
            raise CannotRunAgainError(f"the weights are too large to copy on {device}")


def restoring(setting: Setting) -> AbstractContextManager[None]:
    """Return a context, in which gradients are None at first, that puts back the model and the weights."""
    return undisturbed(setting.module, *setting.parameters, trainer=setting.trainer, is_whole_step=True)


def copy_of_optimizer(setting: Setting) -> Optimizer:
    """Return a copy of the setting's optimizer for the same parameters.

    It has the settings of the original and a copy of its state, but not its step hooks, nor what a scheduler has put in
    place of its `step`.
    """
    optimizer = setting.optimizers[0]
    parts = [*modules_in(setting.module).values(), *setting.parameters]
    memo: dict[int, Any] = {id(part): part for part in parts}
    made: Optimizer = object.__new__(type(optimizer))
    held = {name: value for name, value in vars(optimizer).items() if name not in ("step", *STEP_HOOKS)}
    made.__setstate__(copy.deepcopy(held, memo))
    return made


def losses_without_updates(setting: Setting, batch: Any, count: int) -> list[float]:
    """Return the losses of `count` steps on a batch without any update of the weights.

    They still differ from step to step if the step draws random numbers, such as for dropout.
    """
    with restoring(setting):
        return [_value(setting, batch) for _ in range(count)]


def _value(setting: Setting, batch: Any) -> float:
    """Return the loss of a batch as a number. The step gets a copy, which it may change.

    Gradients are enabled, as in training: the step may compute some, as for a differential equation.
    """
    setting.check_time()
    return float(setting.loss(copied(batch)).detach())


def train(setting: Setting, batch: Any, optimizer: Optimizer, count: int) -> list[float]:
    """Take `count` optimizer steps on a batch; to be called inside `restoring`.

    Returns the loss before each step and that after the last: `count + 1` numbers. Fewer if the loss became NaN or
    infinite; the last one is then the loss at which it stopped.

    Raises:
        OutOfTimeError: the deadline has passed before the last step.
    """
    losses: list[float] = []
    for _ in range(count):
        losses.append(_step(setting, optimizer, batch))
        if not math.isfinite(losses[-1]):
            return losses
    return [*losses, _value(setting, batch)]


def _step(setting: Setting, optimizer: Optimizer, batch: Any) -> float:
    """Take one optimizer step on a batch, and return the loss before it."""
    setting.check_time()
    losses: list[float] = []

    def closure() -> Tensor:
        if setting.step is not None:
            optimizer.zero_grad()
        loss = setting.loss(copied(batch))
        if setting.step is None:  # so does Lightning: what a backward pass in `training_step` leaves is cleared
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
        (loss * setting.scale).backward()
        for p in setting.parameters if setting.scale != 1 else ():
            if p.grad is not None:
                p.grad /= setting.scale
        if setting.clip is not None:
            setting.clip(optimizer)
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]  # Lightning's too gives a tensor
    return losses[0]


def gradients_of(setting: Setting, batch: Any) -> list[Tensor | None]:
    """Return the gradient of the loss for each trainable parameter of the optimizer; None where none arrives."""
    with restoring(setting):
        loss = setting.loss(copied(batch))
        trained = [p for group in setting.optimizers[0].param_groups for p in group["params"] if p.requires_grad]
        if not loss.requires_grad or not trained:
            return [None] * len(trained)
        return list(torch.autograd.grad(loss, trained, allow_unused=True))
