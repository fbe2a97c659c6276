"""`audit`: reads one training step of a model, without a Trainer."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from hookboard.auditing.rules import KEPT, Done, Finding, findings_of
from hookboard.auditing.step import Step
from hookboard.replay import run_training_step, undisturbed


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
        followed = follow(model, batch, lambda: run(batch))
    return tuple(sorted(followed, key=lambda finding: finding.severity != "alarm"))


def follow(model: nn.Module, batch: Any, run: Callable[[], Tensor]) -> list[Finding]:
    """Run a step, forward and backward, and return what is found in it.

    Raises:
        TypeError: the loss is no tensor.
    """
    step = Step(model, batch, KEPT)
    with step:
        loss = run()
    if not isinstance(loss, Tensor):
        raise TypeError(f"the step gave a loss of type {type(loss).__name__}; it must be a tensor")
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients: tuple[Tensor | None, ...] = (None,) * len(trained)
    if loss.requires_grad and trained:
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return findings_of(Done(step, step.of(loss), dict(zip(trained, gradients, strict=True))))


def _step_of(model: nn.Module) -> Callable[[Any], Tensor]:
    if not isinstance(model, LightningModule):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no training_step: give step=, a function from the batch to "
            "the loss"
        )

    def step(batch: Any) -> Any:
        returned = run_training_step(model, batch, 0)
        return returned.get("loss") if isinstance(returned, Mapping) else returned

    return step
