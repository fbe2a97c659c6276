"""`audit`: reads one training step of a model, without a Trainer."""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from hookboard.auditing.program import Step, Value
from hookboard.auditing.rules import OBSERVERS, Done, Finding, findings_of
from hookboard.messages import warn_switched_off
from hookboard.replay import loss_in, replaced, run_training_step, undisturbed


def audit(model: nn.Module, batch: Any, step: Callable[[Any], Tensor] | None = None) -> tuple[Finding, ...]:
    """Read one training step: the loss, what it is given, and where gradients are cut.

    The step is run once, forward and backward. Everything is put back afterwards: weights, gradients, buffers, random
    state.

    Args:
        model: the model.
        batch: what the step takes.
        step: a function from the batch to the loss. Left out: the `training_step` of a LightningModule.

    Returns:
        What was found, alarms first; nothing where nothing is wrong.

    Raises:
        TypeError: `step` is left out and the model is no LightningModule, or the loss is no tensor.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
        >>> x, y = torch.randn(8, 4), torch.arange(8) % 3
        >>> [found] = audit(model, (x, y), lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
        >>> found.rule, found.module
        ('loss_input', '1')
    """
    run = _step_of(model) if step is None else step
    with undisturbed(model, batch):
        found = _read(model, batch, run)
    return tuple(sorted(found, key=lambda finding: finding.severity != "alarm"))


def _read(model: nn.Module, batch: Any, run: Callable[[Any], Any]) -> list[Finding]:
    step = Step(model, batch, OBSERVERS)
    with step:
        loss = run(batch)
    if not isinstance(loss, Tensor):
        raise TypeError(f"the step gave a loss of type {type(loss).__name__}; it must be a tensor")
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients: tuple[Tensor | None, ...] = (None,) * len(trained)
    if loss.requires_grad and trained:
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    without = {name for name, gradient in zip(trained, gradients, strict=True) if gradient is None}
    return findings_of(Done(step, step.of(loss), trained.keys(), without))


class FirstStep:
    """Follows the first training step of a fit while it runs, and says what is found in it.

    Call `begin_batch`, then `before_backward` and `after_backward`, then `end_batch`. What follows the first backward
    pass is not read. The step computes what it would have computed: it is watched, not run again.

    Args:
        pl_module: the module whose `training_step` is followed.
    """

    def __init__(self, pl_module: LightningModule) -> None:
        self._model = pl_module
        self._step: Step | None = None
        self._loss: Value | None = None
        self._had: set[str] = set()
        self._restored = ExitStack()
        self.has_begun = False
        """Whether a step was followed."""
        self._is_read = False

    def begin_batch(self, batch: Any) -> None:
        """Have the next call of `training_step` followed."""
        self.has_begun = True
        step = self._step = Step(self._model, batch, OBSERVERS)
        self._had = {name for name, parameter in self._model.named_parameters() if parameter.grad is not None}
        given = self._model.training_step

        @functools.wraps(given)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            self._restored.close()
            with step:
                returned = given(*args, **kwargs)
            loss = loss_in(returned)
            if isinstance(loss, Tensor):
                self._loss = step.of(loss)
            return returned

        self._restored.enter_context(replaced(self._model, training_step=training_step))

    def before_backward(self, loss: Tensor) -> None:
        """Note where the first backward pass starts, which under manual optimization is inside of the step."""
        if self._loss is None and self._step is not None:
            self._loss = self._step.of(loss)

    def after_backward(self) -> list[Finding]:
        """Return what is found, once the gradients are there."""
        step, loss = self._step, self._loss
        if step is None or loss is None or self._is_read:
            return []
        self._is_read = step.is_over = True
        if step.fault is not None:
            warn_switched_off("reading the first training step", step.fault)
            return []
        trained = {name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        without = {name for name, parameter in trained.items() if parameter.grad is None}
        # A strategy that keeps gradients elsewhere leaves all of them empty; earlier ones say nothing of this step.
        is_known = len(without) < len(trained) and not self._had
        try:
            return findings_of(Done(step, loss, trained.keys(), without if is_known else set()))
        except Exception as error:
            warn_switched_off("reading the first training step", error)
            return []

    def end_batch(self) -> None:
        """Give the module its own `training_step` back."""
        self._restored.close()
        self._step = self._loss = None


def _step_of(model: nn.Module) -> Callable[[Any], Any]:
    if not isinstance(model, LightningModule):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no training_step: give step=, a function from the batch to "
            "the loss"
        )
    return lambda batch: loss_in(run_training_step(model, batch, 0))
