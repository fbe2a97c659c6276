"""`audit`: reads one training step of a model, without a Trainer."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from hookboard.auditing.program import Step
from hookboard.auditing.rules import OBSERVERS, Done, Finding, findings_of
from hookboard.replay import loss_in, run_training_step, undisturbed


def audit(model: nn.Module, batch: Any, step: Callable[[Any], Tensor] | None = None) -> tuple[Finding, ...]:
    """Read one training step: the loss, what it is given, and where gradients are cut.

    The step is run once, forward and backward. Gradients, buffers, attributes and the random state are put back
    afterwards. A weight that the step itself changes, as an average of weights does, stays changed.

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
    is_finite = bool(loss.detach().isfinite().all())
    return findings_of(Done(step, step.of(loss), trained.keys(), without, is_finite))


def _step_of(model: nn.Module) -> Callable[[Any], Any]:
    if not isinstance(model, LightningModule):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no training_step: give step=, a function from the batch to "
            "the loss"
        )
    return lambda batch: loss_in(run_training_step(model, batch, 0))
