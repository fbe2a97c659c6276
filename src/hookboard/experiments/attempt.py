"""`attempted`: trains a few steps from the weights of now, and puts everything back."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.replay import RandomState, undisturbed
from hookboard.state import State
from hookboard.torch_private import STEP_HOOKS

HOPELESS = 100.0
"""A loss of so many times the first ends an attempt at another rate than the user's (a choice)."""


class OutOfTimeError(RuntimeError):
    """The budget of seconds is used up."""


Start = Sequence[tuple[nn.Parameter, Tensor]]
"""Parameters, and the values that they had at the start."""


@dataclass(frozen=True)
class Recipe:
    """How the model is trained.

    Args:
        module: the model.
        step: from a batch to the loss.
        optimizer: the user's; attempts use copies of it.
        clip: clips gradients in place, as the Trainer does; None without.
        scale: the factor of a GradScaler; 1 without one.
        until: when the budget is used up, on the clock of `perf_counter`.
        trainer: the Trainer; None without one.
        start: parameters with the values to start from, and an optimizer without state; None for those of now.
    """

    module: nn.Module
    step: Callable[[Any], Tensor]
    optimizer: Optimizer
    clip: Callable[[Optimizer], None] | None = None
    scale: float = 1.0
    until: float = math.inf
    trainer: Trainer | None = None
    start: Start | None = None

    def check_time(self) -> None:
        """Raise an OutOfTimeError once the budget is used up."""
        if perf_counter() > self.until:
            raise OutOfTimeError("the budget of seconds is used up")

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the model and of the optimizer, each once."""
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        return list({id(p): p for p in [*self.module.parameters(), *held]}.values())


@contextmanager
def apart(recipe: Recipe, batches: Sequence[Any]) -> Iterator[None]:
    """Let the model be trained inside the context, and put everything back."""
    given = [*batches, recipe.parameters]
    with undisturbed(recipe.module, *given, trainer=recipe.trainer, is_whole_step=True, is_strict=True):
        with torch.no_grad():
            for p, value in recipe.start or ():
                p.copy_(value)
        yield


def copied(recipe: Recipe, factor: float = 1.0) -> Optimizer:
    """Return a copy of the optimizer for the same parameters, with its settings and state, and other rates.

    Hooks on its steps, and what a scheduler has put in place of `step`, stay behind.

    Args:
        recipe: has the optimizer; nothing of the model is copied.
        factor: what the rates are multiplied by.
    """
    optimizer = recipe.optimizer
    parts = [*recipe.module.modules(), *recipe.parameters]
    memo: dict[int, Any] = {id(part): part for part in parts}
    made: Optimizer = object.__new__(type(optimizer))
    held = {name: value for name, value in vars(optimizer).items() if name not in ("step", *STEP_HOOKS)}
    if recipe.start is not None:
        held["state"] = defaultdict(dict)
    made.__setstate__(copy.deepcopy(held, memo))
    for group, rate in zip(made.param_groups, rates_of(optimizer), strict=True):
        group["lr"] = rate * factor
    return made


def rates_of(optimizer: Optimizer) -> list[Any]:
    """Return the rate of each group now; where a warmup begins at 0, the one that it leads to."""
    return [group["lr"] if float(group["lr"]) else group.get("initial_lr", 0.0) for group in optimizer.param_groups]


def losses_at_rest(recipe: Recipe, batches: Sequence[Any], count: int) -> list[float]:
    """Return the losses of so many steps in which nothing is learned, over the batches in turn.

    They differ from step to step with what is drawn at random, such as dropout.
    """
    with apart(recipe, batches), torch.no_grad():
        random, losses = RandomState(), [_value(recipe, batch) for batch in batches]
        again = _value(recipe, batches[0])
        if again == losses[0] and not random.moved():
            return [losses[number % len(batches)] for number in range(count)]
    with apart(recipe, batches), torch.no_grad():
        return [_value(recipe, batches[number % len(batches)]) for number in range(count)]


def losses_of(recipe: Recipe, batches: Sequence[Any]) -> list[float]:
    """Return the loss of each batch, inside `apart`; nothing is learned, and the random numbers are put back."""
    with torch.no_grad():
        random, losses = RandomState(), [_value(recipe, batch) for batch in batches]
        random.restore()
        return losses


def _value(recipe: Recipe, batch: Any) -> float:
    recipe.check_time()
    state = State(batch)
    loss = float(recipe.step(batch).detach())
    state.restore()
    return loss


def train(
    recipe: Recipe, batches: Sequence[Any], optimizer: Optimizer, count: int, *, gives_up: bool = False
) -> list[float]:
    """Train over the batches in turn, inside `apart`.

    Args:
        recipe: how.
        batches: the batches.
        optimizer: a copy of the recipe's.
        count: optimizer steps.
        gives_up: end early at a loss of HOPELESS times the first.

    Returns:
        The loss before each step and after the last; fewer where it ended early or was not finite.
    """
    losses: list[float] = []
    for number in range(count):
        losses.append(_step(recipe, optimizer, batches[number % len(batches)]))
        if not math.isfinite(losses[-1]) or (gives_up and abs(losses[-1]) > HOPELESS * abs(losses[0])):
            return losses
    with torch.no_grad():
        return [*losses, _value(recipe, batches[count % len(batches)])]


def _step(recipe: Recipe, optimizer: Optimizer, batch: Any) -> float:
    """Take one optimizer step; returns the loss before it."""
    recipe.check_time()
    state, losses = State(batch), list[float]()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = recipe.step(batch)
        losses.append(float(loss.detach()))
        (loss * recipe.scale if recipe.scale != 1 else loss).backward()
        if recipe.scale != 1:
            _unscale(recipe)
        if recipe.clip is not None:
            recipe.clip(optimizer)
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]  # Lightning's too gives a tensor
    state.restore()
    return losses[0]


def _unscale(recipe: Recipe) -> None:
    """Divide gradients by the scale; where one has overflowed, drop them all, as a GradScaler skips that step."""
    gradients = [p.grad for p in recipe.parameters if p.grad is not None]
    if all(bool(gradient.isfinite().all()) for gradient in gradients):
        for gradient in gradients:
            gradient.div_(recipe.scale)
    else:
        for p in recipe.parameters:
            p.grad = None


def gradients_at_rest(recipe: Recipe, batch: Any) -> list[Tensor | None]:
    """Return the gradients of the trainable parameters in the optimizer, without a step; None where none arrives."""
    with apart(recipe, [batch]):
        loss = recipe.step(batch)
        trained = [p for group in recipe.optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not loss.requires_grad or not trained:
            return [None] * len(trained)
        return list(torch.autograd.grad(loss, trained, allow_unused=True))
