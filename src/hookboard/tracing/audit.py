"""`audit`: finds faults in the code of a training step, without a Trainer."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from hookboard.base.either_lightning import is_lightning
from hookboard.health.rule import Finding
from hookboard.model.state import copied
from hookboard.tracing.reading import Reader
from hookboard.tracing.step import call_training_step, loss_in, undisturbed


class Findings(tuple[Finding, ...]):
    """Findings, alarms first. A prompt and `print` show a line for each."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "No findings."


def audit(model: nn.Module, batch: Any, step: Callable[[Any], Tensor] | None = None) -> Findings:
    """Run a training step once, and find faults in its code.

    These are faults in its loss, its targets, its masks, and where gradients are cut. Its own backward pass does not
    run; the gradients of its loss are computed, but not kept. Afterwards the model and the random state are put back;
    what your code does besides, such as printing or writing a file, happens.

    Args:
        model: the model.
        batch: the argument of `step`, on the model's device.
        step: a function that computes the loss of a batch. Default: the `training_step` of a LightningModule.

    Returns:
        A tuple of findings, alarms first; empty if there are none. `print` shows one line for each.

    Raises:
        TypeError: `step` is left out and the model is not a LightningModule, or the loss is not a tensor.

    Examples:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
        >>> x, y = torch.randn(8, 4), torch.arange(8) % 3
        >>> [found] = audit(model, (x, y), lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
        >>> found.rule, found.module
        ('loss_input', '1')
        >>> print(audit(model, x, lambda batch: model[0](batch).square().mean()))
        No findings.
    """
    run = _step_of(model) if step is None else step
    batch = copied(batch)  # the step may change it
    with undisturbed(model, is_whole_step=True):
        reader = Reader(model, batch)
        try:
            with reader.reading():
                loss = run(batch)
                if not isinstance(loss, Tensor):
                    raise TypeError(f"the step returned a loss of type {type(loss).__name__}; it must be a tensor")
                reader.take_without_backward(loss)
            return Findings(reader.findings())
        finally:
            reader.forget()


def _step_of(model: nn.Module) -> Callable[[Any], Any]:
    """Return a function from a batch to the loss in what the model's `training_step` returns."""
    if not is_lightning(model, LightningModule):
        raise TypeError(
            f"model of type {type(model).__name__} has no training_step: pass step=, a function that "
            "computes the loss of a batch"
        )
    return lambda batch: loss_in(call_training_step(model, batch, 0))
