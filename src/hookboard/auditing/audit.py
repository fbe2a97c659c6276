"""`audit`: reads one training step of a model, without a Trainer."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from hookboard.auditing.reading import Reader
from hookboard.auditing.rules import Finding
from hookboard.replay import call_training_step, loss_in, undisturbed


def audit(model: nn.Module, batch: Any, step: Callable[[Any], Tensor] | None = None) -> tuple[Finding, ...]:
    """Read one training step: the loss, what it is given, and where gradients are cut.

    The step is run once, without its backward pass. Weights, gradients, buffers, attributes and the random state are
    put back afterwards.

    Args:
        model: the model.
        batch: what the step takes.
        step: a function from the batch to the loss. Left out: the `training_step` of a LightningModule.

    Returns:
        What was found, alarms first; nothing where nothing is wrong.

    Raises:
        TypeError: `step` is left out and the model is no LightningModule, or the loss is no tensor.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
        >>> x, y = torch.randn(8, 4), torch.arange(8) % 3
        >>> [found] = audit(model, (x, y), lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
        >>> found.rule, found.module
        ('loss_input', '1')
    """
    run = _step_of(model) if step is None else step
    with undisturbed(model, batch, is_whole_step=True):
        reader = Reader(model, batch)
        try:
            with reader.reading():
                loss = run(batch)
                if not isinstance(loss, Tensor):
                    raise TypeError(f"the step gave a loss of type {type(loss).__name__}; it must be a tensor")
                reader.take(loss)
            return tuple(reader.findings())
        finally:
            reader.forget()


def _step_of(model: nn.Module) -> Callable[[Any], Any]:
    if not isinstance(model, LightningModule):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no training_step: give step=, a function from the batch to "
            "the loss"
        )
    return lambda batch: loss_in(call_training_step(model, batch, 0))
