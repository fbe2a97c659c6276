"""Trains a model for a few steps with a copy of its optimizer, and puts the model back afterwards."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, Optimizer

from hookboard.base.torch_private import STEP_HOOKS, modules_in, parameters_in
from hookboard.model.layouts import bytes_of
from hookboard.model.nested import tensors_in
from hookboard.model.state import copied, same_random_state
from hookboard.tracing.step import CannotRunAgainError, undisturbed

GIVE_UP_RATIO = 100.0
"""With `gives_up`, training ends once the loss is this many times the first one (a choice)."""

MAX_SAVED_BYTES = 1 << 29
"""Parameters, gradients and states up to this size are always copied (a choice)."""

MAX_CPU_WEIGHT_BYTES = 1 << 32
"""Maximum bytes that are copied in the host's memory (a choice)."""

MAX_FREE_MEMORY_SHARE = 0.5
"""Maximum share of a GPU's free memory that all copies may take (a choice)."""


class OutOfTimeError(RuntimeError):
    """Raised by `Recipe.check_time` when the time for the experiments is used up."""


@dataclass(frozen=True)
class Recipe:
    """Everything that is needed to train the model for some steps.

    Args:
        optimizer: the user's, which never steps: experiments step copies of it.
        clip: clips the gradients of an optimizer in place, as the Trainer does; None if they are not clipped.
        scale: what the loss is multiplied by before the backward pass, as by a GradScaler; 1 without one.
        until: the deadline, as a value of `perf_counter()`.
    """

    module: nn.Module
    step: Callable[[Any], Tensor]
    optimizer: Optimizer
    clip: Callable[[Optimizer], None] | None = None
    scale: float = 1.0
    until: float = math.inf
    trainer: Trainer | None = None

    def check_time(self) -> None:
        """Raise an OutOfTimeError if the deadline `until` has passed."""
        if perf_counter() > self.until:
            raise OutOfTimeError

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the model, and tensors of the optimizer that are not among them; each once."""
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        return list({id(p): p for p in [*parameters_in(self.module).values(), *held]}.values())

    @property
    def copied(self) -> list[Tensor]:
        """Tensors as large as what a trial allocates: copies of the parameters, gradients, the state of the optimizer.

        A state that does not exist yet is taken for that of Adam, two numbers for each parameter, or of SGD's momentum.
        """
        trained = [p for p in self.parameters if p.requires_grad]
        state = [t for _, t in tensors_in(list(self.optimizer.state.values()))]
        state = state or [*trained] * (1 if isinstance(self.optimizer, SGD) else 2)
        return [*self.parameters, *trained, *state]


def check_memory(tensors: Iterable[Tensor]) -> None:
    """Raise a CannotRunAgainError if copies of the tensors would take too much memory."""
    sizes: dict[torch.device, int] = defaultdict(int)
    for tensor in tensors:
        if not is_lazy(tensor) and not tensor.is_meta:
            sizes[tensor.device] += bytes_of(tensor)
    for device, size in sizes.items():
        if size > MAX_SAVED_BYTES and size > _free_bytes(device):
            raise CannotRunAgainError(f"the weights are too large to copy on {device}")


def _free_bytes(device: torch.device) -> float:
    if device.type != "cuda":
        return MAX_CPU_WEIGHT_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return MAX_FREE_MEMORY_SHARE * free


@contextmanager
def restoring(recipe: Recipe) -> Iterator[None]:
    """Return a context, in which gradients are None at first, that puts back the model and the weights."""
    with undisturbed(recipe.module, *recipe.parameters, trainer=recipe.trainer, is_whole_step=True):
        yield


def copy_of_optimizer(recipe: Recipe, factor: float) -> Optimizer:
    """Return a copy of the recipe's optimizer for the same parameters, its learning rates multiplied by `factor`.

    It has the settings of the original and a copy of its state, but not its step hooks, nor what a scheduler has put in
    place of its `step`.
    """
    optimizer = recipe.optimizer
    parts = [*modules_in(recipe.module).values(), *recipe.parameters]
    memo: dict[int, Any] = {id(part): part for part in parts}
    made: Optimizer = object.__new__(type(optimizer))
    held = {name: value for name, value in vars(optimizer).items() if name not in ("step", *STEP_HOOKS)}
    made.__setstate__(copy.deepcopy(held, memo))
    for group, rate in zip(made.param_groups, current_rates(optimizer), strict=True):
        group["lr"] = rate * factor
    return made


def current_rates(optimizer: Optimizer) -> list[Any]:
    """Return the learning rate of each parameter group; where it is 0, as before a warmup, its initial rate, if any."""
    return [group["lr"] if float(group["lr"]) else group.get("initial_lr", 0.0) for group in optimizer.param_groups]


def losses_without_updates(recipe: Recipe, batches: Sequence[Any], count: int) -> list[float]:
    """Return the losses of `count` steps over the batches in turn without any update of the weights.

    The loss of a batch still differs from step to step if the step draws random numbers, such as for dropout.
    """
    with restoring(recipe):
        before, losses = torch.get_rng_state(), [_value(recipe, batch) for batch in batches]
        again = _value(recipe, batches[0])
        if again == losses[0] and torch.equal(before, torch.get_rng_state()):
            return [losses[number % len(batches)] for number in range(count)]
    with restoring(recipe):
        return [_value(recipe, batches[number % len(batches)]) for number in range(count)]


def losses_of(recipe: Recipe, batches: Sequence[Any]) -> list[float]:
    """Return the loss of each batch without any update; to be called inside `restoring`. Restores the random state."""
    with same_random_state():
        return [_value(recipe, batch) for batch in batches]


def _value(recipe: Recipe, batch: Any) -> float:
    """Return the loss of a batch as a number. The step gets a copy, which it may change.

    Gradients are enabled, as in training: the step may compute some, as for a differential equation.
    """
    recipe.check_time()
    return float(recipe.step(copied(batch)).detach())


def train(
    recipe: Recipe, batches: Sequence[Any], optimizer: Optimizer, count: int, *, gives_up: bool = False
) -> list[float]:
    """Take `count` optimizer steps over the batches in turn; to be called inside `restoring`.

    Returns the loss before each step and that after the last: `count + 1` numbers. Fewer if the loss became NaN or
    infinite, or training `gives_up` at GIVE_UP_RATIO times the first one; the last one is then the loss at which it
    stopped.

    Raises:
        OutOfTimeError: the deadline has passed before the last step.
    """
    losses: list[float] = []
    for number in range(count):
        losses.append(_step(recipe, optimizer, batches[number % len(batches)]))
        if not math.isfinite(losses[-1]) or (gives_up and abs(losses[-1]) > GIVE_UP_RATIO * abs(losses[0])):
            return losses
    return [*losses, _value(recipe, batches[count % len(batches)])]


def _step(recipe: Recipe, optimizer: Optimizer, batch: Any) -> float:
    """Take one optimizer step on a batch, and return the loss before it."""
    recipe.check_time()
    losses: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = recipe.step(copied(batch))
        losses.append(float(loss.detach()))
        (loss * recipe.scale if recipe.scale != 1 else loss).backward()
        if recipe.scale != 1:
            _unscale(recipe)
        if recipe.clip is not None:
            recipe.clip(optimizer)
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]  # Lightning's too gives a tensor
    return losses[0]


def _unscale(recipe: Recipe) -> None:
    """Divide the gradients by `recipe.scale`; if one is not finite, delete all, which skips the step."""
    gradients = [p.grad for p in recipe.parameters if p.grad is not None]
    if all(bool(gradient.isfinite().all()) for gradient in gradients):
        for gradient in gradients:
            gradient.div_(recipe.scale)
    else:
        for p in recipe.parameters:
            p.grad = None


def gradients_of(recipe: Recipe, batch: Any) -> list[Tensor | None]:
    """Return the gradient of the loss for each trainable parameter of the optimizer; None where none arrives."""
    with restoring(recipe):
        loss = recipe.step(copied(batch))
        trained = [p for group in recipe.optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not loss.requires_grad or not trained:
            return [None] * len(trained)
        return list(torch.autograd.grad(loss, trained, allow_unused=True))
