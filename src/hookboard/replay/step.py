"""Runs code of a model, or its `training_step`, once more and puts back what that changed."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from hookboard.eager import run_eagerly
from hookboard.hooks import own_call
from hookboard.replay.outside import nothing_gets_out, nothing_printed
from hookboard.replay.restorable import CannotRunAgainError, Restorable
from hookboard.replay.variables import Variables
from hookboard.state import State, refill, same_random_state
from hookboard.torch_private import NoCollectives


@contextmanager
def undisturbed(
    module: nn.Module,
    *given: object,
    trainer: Trainer | None = None,
    is_whole_step: bool = False,
    is_strict: bool = False,
) -> Iterator[None]:
    """Let hookboard run code of `module` inside the context, with gradients, and put back what that changed.

    Inside, compiled code runs uncompiled, hooks observe nothing, edits use copies of their rules, and what the module
    logs is dropped. Afterwards the random state (of Python, NumPy, torch's CPU and CUDA generators) and the state of
    all modules are as before, see `State`. Parameters are not saved, because a call does not change them.

    Args:
        module: the module.
        given: what else the code may change, such as its arguments.
        trainer: the Trainer of a LightningModule whose step is to run: its loggers get nothing, a collective raises,
            and under manual optimization no optimizer steps.
        is_whole_step: put back what a training step may change besides: parameters (their gradients are away
            meanwhile), variables of the user's code and of the environment, the Trainer's attributes, rates and
            optimizers. What this thread prints is dropped.
        is_strict: raise for what cannot be put back.

    Raises:
        CannotRunAgainError: if `is_strict`, before the code runs: something that it may change cannot be restored;
            when the context ends: it was stopped before it had an effect outside of this process.
    """
    with ExitStack() as until_end:
        for context in (torch.inference_mode(False), torch.enable_grad(), run_eagerly(), own_call()):
            until_end.enter_context(context)
        until_end.enter_context(same_random_state())
        held = [module, *given]
        if is_whole_step:
            schedulers = [] if trainer is None else [config.scheduler for config in trainer.lr_scheduler_configs]
            variables = Variables(module, schedulers)
            held += variables.held()
            if trainer is not None:
                held += _reached(trainer, variables)
                until_end.callback(refill, vars(trainer), dict(vars(trainer)))
            until_end.enter_context(variables.kept())
            until_end.enter_context(_same_environment())
        check = Restorable(() if trainer is None else trainer.optimizers) if is_strict else _nothing
        until_end.callback(State(*held, with_weights=is_whole_step, check=check).restore)
        if isinstance(module, LightningModule):
            until_end.enter_context(_replaced(module, log=_nothing, log_dict=_nothing))
        if trainer is not None:
            until_end.enter_context(_without_loggers(trainer))
            until_end.enter_context(_alone(trainer))
        if is_whole_step:
            until_end.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # the real step gives them
            until_end.enter_context(nothing_printed())
        if is_strict:
            until_end.enter_context(nothing_gets_out())
        yield


def _reached(trainer: Trainer, variables: Variables) -> list[Any]:
    """Return what the user's code may change through its Trainer, by what it names."""
    found: list[Any] = _rates_of(trainer)
    if variables.names("state", "state_dict", "load_state_dict"):
        found += [optimizer.state for optimizer in trainer.optimizers]
    others: list[Any] = []
    if variables.names("datamodule"):
        others.append(getattr(trainer, "datamodule", None))
    if variables.names("callbacks"):
        others += trainer.callbacks  # type: ignore[attr-defined]  # Trainer has it, untyped
    if variables.names("train_dataloader"):
        others.append(getattr(trainer.train_dataloader, "dataset", None))
    own = (one for one in others if hasattr(one, "__dict__") and not type(one).__module__.startswith(_NOT_OWN))
    return [*found, *map(vars, own)]


_NOT_OWN = ("torch.", "lightning.", "pytorch_lightning.", "hookboard.")


def _rates_of(trainer: Trainer) -> list[Any]:
    """Return what holds the learning rates and other options of optimizers, and the state of schedulers."""
    waiting: list[Any] = [config.scheduler for config in trainer.lr_scheduler_configs]
    held: list[Any] = [optimizer.param_groups for optimizer in trainer.optimizers]
    while waiting:
        state = vars(waiting.pop())
        held.append(state)
        waiting.extend(part for value in state.values() for part in _parts(value) if isinstance(part, LRScheduler))
    return held


@contextmanager
def _same_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        if dict(os.environ) != before:
            os.environ.clear()
            os.environ.update(before)


def run_step(
    trainer: Trainer | None,
    pl_module: LightningModule,
    batch: Any,
    batch_idx: int,
    at_backward: Callable[[Tensor], None],
) -> None:
    """Run `training_step` inside `undisturbed`, without its backward passes.

    The module is called without its strategy's wrapper, on this rank alone. Under manual optimization no optimizer
    steps, and no gradient comes.

    Args:
        trainer: the Trainer; None if there is none.
        pl_module: its LightningModule.
        batch: the batch.
        batch_idx: its index.
        at_backward: is called with each loss from which a backward pass would start.

    Raises:
        CannotRunAgainError: it cannot be run alone, or gave no loss.
    """
    _check(trainer, pl_module, batch)
    with ExitStack() as until_end:
        if trainer is not None:
            until_end.enter_context(trainer.precision_plugin.train_step_context())
        if not pl_module.automatic_optimization:
            until_end.enter_context(_idle(trainer, pl_module))
            until_end.enter_context(
                _replaced(pl_module, manual_backward=lambda loss, *args, **kwargs: at_backward(loss))
            )
        returned = call_training_step(pl_module, batch, batch_idx)
        if pl_module.automatic_optimization:
            at_backward(_tensor_in(returned))


def loss_of_step(
    trainer: Trainer | None, pl_module: LightningModule, batch: Any, batch_idx: int = 0, backward: int = 1
) -> Tensor:
    """Run `training_step` as `run_step` does, and return the loss from which a backward pass would start.

    Args:
        trainer: the Trainer; None if there is none.
        pl_module: its LightningModule.
        batch: the batch.
        batch_idx: its index.
        backward: under manual optimization, which backward pass, counted from 1; the step ends there.
    """
    left = 1 if pl_module.automatic_optimization else backward

    def take(loss: Tensor) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise _Reached(loss)

    try:
        run_step(trainer, pl_module, batch, batch_idx, take)
    except _Reached as reached:
        return reached.loss
    raise CannotRunAgainError("training_step made fewer backward passes when it ran again")


class _Reached(BaseException):
    """Raised at the backward pass that ends a repetition; the user's `except Exception` does not catch it."""

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss


def _check(trainer: Trainer | None, pl_module: LightningModule, batch: Any) -> None:
    if is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True):
        raise CannotRunAgainError("training_step takes its batches from an iterator")
    if any(isinstance(part, Iterator) for part in _parts(batch)):
        raise CannotRunAgainError("the batch holds an iterator, which can be read only once")
    if not pl_module.automatic_optimization and trainer is not None and trainer.world_size > 1:
        raise CannotRunAgainError("its optimization is manual, and there are several ranks")


def _parts(value: Any) -> Iterator[Any]:
    yield value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for item in items:
        yield from _parts(item)


def call_training_step(pl_module: LightningModule, batch: Any, batch_idx: int) -> Any:
    """Call `training_step` with the arguments that it takes."""
    with_index = is_param_in_hook_signature(pl_module.training_step, "batch_idx", min_args=2)
    return pl_module.training_step(batch, batch_idx) if with_index else pl_module.training_step(batch)


def loss_in(returned: Any) -> Any:
    """Return the loss in what `training_step` gave: a tensor or None."""
    return returned.get("loss") if isinstance(returned, Mapping) else returned


def _tensor_in(returned: Any) -> Tensor:
    loss = loss_in(returned)
    if not isinstance(loss, Tensor):
        raise CannotRunAgainError("training_step returned no loss when it ran again")
    return loss


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


class _Idle:
    """Stands in for an optimizer or scheduler: `step`, `zero_grad` and `toggle_model` have no effect of their own.

    `step` still calls a closure and returns its value. All other attributes are those of the real object.
    """

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        return closure() if callable(closure) else None

    zero_grad = _nothing

    def toggle_model(self, sync_grad: bool = True) -> AbstractContextManager[None]:
        return nullcontext()


def _idled(given: Any) -> Any:
    if isinstance(given, list | tuple):
        return [_Idle(one) for one in given]
    return None if given is None else _Idle(given)


@contextmanager
def _idle(trainer: Trainer | None, pl_module: LightningModule) -> Iterator[None]:
    """Keep manual optimization from changing anything inside the context."""
    optimizers, schedulers = _idled(pl_module.optimizers()), _idled(pl_module.lr_schedulers())
    names = ("toggle_optimizer", "untoggle_optimizer", "clip_gradients")
    with ExitStack() as until_end:
        until_end.enter_context(_replaced(pl_module, **dict.fromkeys(names, _nothing)))
        until_end.enter_context(_replaced(pl_module, optimizers=lambda *args, **kwargs: optimizers))
        until_end.enter_context(_replaced(pl_module, lr_schedulers=lambda: schedulers))
        for optimizer in [] if trainer is None else trainer.optimizers:  # the user may hold them too
            until_end.enter_context(_replaced(optimizer, step=_nothing, zero_grad=_nothing))
        yield


@contextmanager
def _without_loggers(trainer: Trainer) -> Iterator[None]:
    """Discard what the step writes directly to its loggers."""
    loggers = trainer.loggers
    try:
        trainer.loggers = [DummyLogger() for _ in loggers]
        yield
    finally:
        trainer.loggers = loggers


@contextmanager
def _replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of an object inside the context, bypassing any `__setattr__` of its class."""
    before = {name: owner.__dict__[name] for name in attributes if name in owner.__dict__}
    try:
        owner.__dict__.update(attributes)
        yield
    finally:
        for name in attributes:
            owner.__dict__.pop(name, None)
        owner.__dict__.update(before)


def _alone(trainer: Trainer) -> AbstractContextManager[Any]:
    if trainer.world_size == 1:
        return nullcontext()
    return NoCollectives("one rank alone runs its batch again, and the others would not answer")
