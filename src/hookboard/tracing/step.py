"""`audit`: finds faults in a training step, without a Trainer. It runs the step once more, and puts the model back."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn

from hookboard.base.checks import is_lightning
from hookboard.base.torch_private import NoCollectives, run_eagerly
from hookboard.health.rule import Finding
from hookboard.measure.hooked import own_call
from hookboard.model.state import copied, same_random_state, same_state
from hookboard.tracing.questions import Reader


class CannotRunAgainError(RuntimeError):
    """Raised where code must not run once more. The message gives the reason as a clause, without a full stop."""


@contextmanager
def undisturbed(
    module: nn.Module, *weights: Tensor, trainer: Trainer | None = None, is_whole_step: bool = False
) -> Iterator[None]:
    """Enable gradients inside; then put back the state of `module`, the parameters `weights`, and the random state.

    With `is_whole_step` put back all parameters, whose gradients are None inside, and a Trainer's optimizer settings.
    """
    with ExitStack() as until_end:
        # In an own call hookboard's hooks observe nothing, and edits use copies of their rules.
        for context in (torch.inference_mode(False), torch.enable_grad(), run_eagerly(), own_call()):
            until_end.enter_context(context)
        until_end.enter_context(same_random_state())
        owners = [module, *weights]
        if is_whole_step and trainer is not None:
            owners += [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        until_end.enter_context(same_state(*owners, with_weights=is_whole_step))
        if is_lightning(module, LightningModule):
            until_end.enter_context(replaced(module, log=_nothing, log_dict=_nothing))
        if trainer is not None:
            until_end.callback(setattr, trainer, "loggers", trainer.loggers)
            trainer.loggers = [DummyLogger() for _ in trainer.loggers]
            if trainer.world_size > 1:
                alone = "only one rank runs its batch again, and the other ranks would not respond"
                until_end.enter_context(NoCollectives(alone))
        yield


def nested_parts(value: Any) -> Iterator[Any]:
    """Yield the value itself, and every item of the mappings, tuples and lists inside it.

    >>> list(nested_parts({"x": [1, 2]}))
    [{'x': [1, 2]}, [1, 2], 1, 2]
    """
    yield value
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return
    for item in value:
        yield from nested_parts(item)


def loss_of_step(trainer: Trainer | None, pl_module: LightningModule, batch: Any, batch_idx: int = 0) -> Tensor:
    """Run `training_step` once inside `undisturbed`, past wrappers such as DDP, and return its loss with its graph."""
    if not pl_module.automatic_optimization:
        raise CannotRunAgainError("the model uses manual optimization")
    if is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True):
        raise CannotRunAgainError("training_step takes its batches from an iterator")
    if any(isinstance(part, Iterator) for part in nested_parts(batch)):
        raise CannotRunAgainError("the batch holds an iterator, which can be read only once")
    with nullcontext() if trainer is None else trainer.precision_plugin.train_step_context():
        loss = loss_in(call_training_step(pl_module, batch, batch_idx))
    if not isinstance(loss, Tensor):
        raise CannotRunAgainError("training_step returned no loss when it ran again")
    return loss


def call_training_step(pl_module: LightningModule, batch: Any, batch_idx: int) -> Any:
    """Return `training_step(batch, batch_idx)`, or `training_step(batch)` if it takes no index."""
    with_index = is_param_in_hook_signature(pl_module.training_step, "batch_idx", min_args=2)
    return pl_module.training_step(batch, batch_idx) if with_index else pl_module.training_step(batch)


def loss_in(returned: Any) -> Any:
    """Return the entry "loss" of a dict that `training_step` returned, None without one; anything else as it is."""
    return returned.get("loss") if isinstance(returned, Mapping) else returned


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Set attributes of an object inside the context, bypassing the `__setattr__` of its class, and restore them."""
    before = {name: owner.__dict__[name] for name in attributes if name in owner.__dict__}
    try:
        owner.__dict__.update(attributes)
        yield
    finally:
        for name in attributes:
            owner.__dict__.pop(name, None)
        owner.__dict__.update(before)


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
    if not is_lightning(model, LightningModule):
        raise TypeError(
            f"model of type {type(model).__name__} has no training_step: pass step=, a function that "
            "computes the loss of a batch"
        )
    return lambda batch: loss_in(call_training_step(model, batch, 0))
