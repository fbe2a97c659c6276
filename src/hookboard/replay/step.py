"""Calls a module, or runs `training_step`, once more without leaving a trace."""

import pickle
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from hookboard.eager import run_eagerly
from hookboard.hooks import own_call
from hookboard.replay.variables import Variables
from hookboard.state import State, same_random_state
from hookboard.torch_private import NoCollectives

TRACKERS = ("wandb", "mlflow", "comet_ml", "neptune", "clearml")
"""Libraries that write from anywhere."""


@contextmanager
def undisturbed(
    module: nn.Module, *given: object, check: Callable[[object], None] = lambda value: None
) -> Iterator[None]:
    """Let hookboard call `module` inside the context, with gradients, and undo what the call changed.

    Inside, compiled code runs uncompiled, hooks observe nothing, and edits use copies of their rules. Afterwards the
    random state (of Python, NumPy, torch's CPU and CUDA generators) and the state of all modules are as before, see
    `State`. Parameters are not saved, because a call does not change them.

    Args:
        module: the module.
        given: arguments that the call may change; they are restored too.
        check: raises for an object that cannot be restored, see `State`.
    """
    with torch.inference_mode(False), torch.enable_grad(), run_eagerly(), own_call(), same_random_state():
        state = State(module, *given, check=check)
        try:
            yield
        finally:
            state.restore()


class CannotRunAgainError(RuntimeError):
    """The step must not be run again. The message says why, as the end of a sentence."""


class Generator(NamedTuple):
    """One of the global random generators.

    Args:
        read: returns its state; None if it is not in use yet.
        write: restores such a state.
        as_bytes: converts a state to bytes, to compare states.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    as_bytes: Callable[[Any], bytes]


def _of_cuda() -> Tensor | None:
    return torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


GENERATORS = {
    "torch": Generator(
        lambda: torch.default_generator.clone_state(),  # a tensor of it takes longer to make
        lambda state: torch.set_rng_state(state.get_state()),
        lambda state: state.get_state().numpy().tobytes(),
    ),
    "CUDA": Generator(_of_cuda, lambda state: torch.cuda.set_rng_state(state), lambda state: state.numpy().tobytes()),
    "NumPy": Generator(lambda: np.random.get_state(legacy=False), np.random.set_state, pickle.dumps),
    "Python": Generator(random.getstate, random.setstate, pickle.dumps),
}
"""The global random generators by name."""


class RandomState:
    """The state of global random generators at the time when this object is made.

    Args:
        of: the names of the generators. Reading a state takes 50 us or more.
    """

    def __init__(self, of: Collection[str] = GENERATORS.keys()) -> None:
        self._states = {name: state for name in of if (state := GENERATORS[name].read()) is not None}

    def restore(self) -> None:
        """Put the generators back into that state."""
        for name, state in self._states.items():
            GENERATORS[name].write(state)

    def moved(self) -> set[str]:
        """Return the names of the generators that numbers have been drawn from since."""
        found = set()
        for name, state in self._states.items():
            _, _, as_bytes = generator = GENERATORS[name]
            if as_bytes(state) != as_bytes(generator.read()):
                found.add(name)
        return found

    def of_others(self) -> "RandomState":
        """Return the present state of the generators that this object does not hold."""
        return RandomState(GENERATORS.keys() - self._states.keys())


@contextmanager
def step_again(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, state: RandomState, backward: int
) -> Iterator[Callable[[], Tensor]]:
    """Prepare a repetition of `training_step`, which must start and end inside the context.

    The module is called without its strategy's wrapper, on this rank alone: a collective in it raises. Under manual
    optimization no optimizer steps, and the repetition ends at the given backward pass.

    Args:
        trainer: the Trainer.
        pl_module: its LightningModule.
        batch: the batch, as `training_step` got it.
        batch_idx: its index.
        state: the random state before `training_step`.
        backward: under manual optimization, the backward pass to stop at, counted from 1.

    Yields:
        A function that runs the step and returns its loss.

    Raises:
        CannotRunAgainError: the repetition could leave a trace, or could differ.
    """
    _check(trainer, pl_module, batch, backward)
    with ExitStack() as until_end:
        until_end.enter_context(undisturbed(pl_module, batch))
        until_end.enter_context(_without_logs(trainer, pl_module))
        until_end.enter_context(_alone(trainer))
        until_end.enter_context(trainer.precision_plugin.train_step_context())
        state.restore()
        if pl_module.automatic_optimization:
            yield lambda: _tensor_in(run_training_step(pl_module, batch, batch_idx))
        else:
            until_end.enter_context(_idle(trainer, pl_module))
            yield lambda: _loss_of_manual(pl_module, batch, batch_idx, backward)


@contextmanager
def step_before(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, check: Callable[[object], None]
) -> Iterator[Callable[[Callable[[Tensor], None]], None]]:
    """Prepare to run `training_step` before its turn, which must start and end inside the context.

    The conditions are those of `step_again`, but no backward pass is made: under manual optimization the step runs to
    its end, and no gradient comes.

    Args:
        trainer: the Trainer.
        pl_module: its LightningModule.
        batch: the batch that `training_step` will get.
        batch_idx: its index.
        check: raises for an object that cannot be restored, see `State`.

    Yields:
        A function that runs the step. It calls the function that it is given with each loss from which a backward pass
        would start.

    Raises:
        CannotRunAgainError: the run could leave a trace.
    """
    _check(trainer, pl_module, batch, backward=1)
    with ExitStack() as until_end:
        variables = Variables(pl_module)
        _check_writing(pl_module, variables)
        until_end.enter_context(
            undisturbed(
                pl_module, batch, _rates_of(trainer), variables.held(), _reached(trainer, variables), check=check
            )
        )
        until_end.enter_context(variables.kept())
        until_end.enter_context(_without_logs(trainer, pl_module))
        until_end.enter_context(_alone(trainer))
        until_end.enter_context(trainer.precision_plugin.train_step_context())
        if pl_module.automatic_optimization:
            yield lambda take: take(_tensor_in(run_training_step(pl_module, batch, batch_idx)))
        else:
            until_end.enter_context(_idle(trainer, pl_module))
            yield lambda take: _without_backward(pl_module, batch, batch_idx, take)


@contextmanager
def step_apart(pl_module: LightningModule, trainer: Trainer | None) -> Iterator[Callable[[Any], Tensor]]:
    """Prepare to run `training_step` with automatic optimization; what it logs inside the context is discarded.

    The state that it changes is not put back, see `undisturbed`.

    Args:
        pl_module: the module.
        trainer: its Trainer; None if it has none.

    Yields:
        A function from a batch to the loss, in the precision of the Trainer.
    """
    with ExitStack() as until_end:
        if trainer is None:
            until_end.enter_context(_replaced(pl_module, log=_nothing, log_dict=_nothing))
        else:
            until_end.enter_context(_without_logs(trainer, pl_module))

        def run(batch: Any) -> Tensor:
            with nullcontext() if trainer is None else trainer.precision_plugin.train_step_context():
                return _tensor_in(run_training_step(pl_module, batch, 0))

        yield run


def _check_writing(pl_module: LightningModule, variables: Variables) -> None:
    tracker = next(filter(variables.names, TRACKERS), None)
    if tracker is not None:
        raise CannotRunAgainError(f"its code calls {tracker} itself, which would write twice")
    code = getattr(pl_module.training_step, "__code__", None)
    if code is not None and "open" in code.co_names:
        raise CannotRunAgainError("training_step opens a file")


def _reached(trainer: Trainer, variables: Variables) -> list[Any]:
    """Return the attributes of what the user's code may reach through its Trainer, by what it names."""
    loader = trainer.train_dataloader
    found: list[Any] = []
    if variables.names("datamodule"):
        found.append(getattr(trainer, "datamodule", None))
    if variables.names("callbacks"):
        found += trainer.callbacks  # type: ignore[attr-defined]  # Trainer has it, untyped
    if variables.names("train_dataloader"):
        found.append(getattr(loader, "dataset", None))
    return [vars(one) for one in found if hasattr(one, "__dict__") and not type(one).__module__.startswith(_NOT_OWN)]


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
def schedules_apart(trainer: Trainer, pl_module: LightningModule, check: Callable[[object], None]) -> Iterator[None]:
    """Let copies of the schedulers be stepped inside the context, and undo what the user's functions in them change.

    Args:
        trainer: the Trainer.
        pl_module: its LightningModule.
        check: raises for an object that cannot be restored, see `State`.
    """
    rates = _rates_of(trainer)
    variables = Variables(pl_module, [config.scheduler for config in trainer.lr_scheduler_configs])
    with undisturbed(pl_module, rates, variables.held(), check=check), variables.kept():
        yield


def _without_backward(pl_module: LightningModule, batch: Any, batch_idx: int, take: Callable[[Tensor], None]) -> None:
    def manual_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        take(loss)

    with _replaced(pl_module, manual_backward=manual_backward):
        run_training_step(pl_module, batch, batch_idx)


def _check(trainer: Trainer, pl_module: LightningModule, batch: Any, backward: int) -> None:
    if is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True):
        raise CannotRunAgainError("training_step takes its batches from an iterator")
    if any(isinstance(part, Iterator) for part in _parts(batch)):
        raise CannotRunAgainError("the batch holds an iterator, which can be read only once")
    if not pl_module.automatic_optimization and trainer.world_size > 1:
        raise CannotRunAgainError("its optimization is manual, and there are several ranks")
    if not backward:
        raise CannotRunAgainError("its backward pass was not made by Lightning")


def _parts(value: Any) -> Iterator[Any]:
    yield value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for item in items:
        yield from _parts(item)


def run_training_step(pl_module: LightningModule, batch: Any, batch_idx: int) -> Any:
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


class _Reached(BaseException):
    """Raised at the backward pass that ends a repetition; the user's `except Exception` does not catch it."""

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss


def _loss_of_manual(pl_module: LightningModule, batch: Any, batch_idx: int, backward: int) -> Tensor:
    left = backward

    def manual_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise _Reached(loss)

    with _replaced(pl_module, manual_backward=manual_backward):
        try:
            run_training_step(pl_module, batch, batch_idx)
        except _Reached as reached:
            return reached.loss
    raise CannotRunAgainError("training_step made fewer backward passes when it ran again")


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
def _idle(trainer: Trainer, pl_module: LightningModule) -> Iterator[None]:
    """Keep manual optimization from changing anything inside the context."""
    optimizers, schedulers = _idled(pl_module.optimizers()), _idled(pl_module.lr_schedulers())
    names = ("toggle_optimizer", "untoggle_optimizer", "clip_gradients")
    with ExitStack() as until_end:
        until_end.enter_context(_replaced(pl_module, **dict.fromkeys(names, _nothing)))
        until_end.enter_context(_replaced(pl_module, optimizers=lambda *args, **kwargs: optimizers))
        until_end.enter_context(_replaced(pl_module, lr_schedulers=lambda: schedulers))
        for optimizer in trainer.optimizers:  # the user may hold them too
            until_end.enter_context(_replaced(optimizer, step=_nothing, zero_grad=_nothing))
        yield


@contextmanager
def _without_logs(trainer: Trainer, pl_module: LightningModule) -> Iterator[None]:
    """Discard what the step logs, with `self.log` or directly to its loggers."""
    loggers = trainer.loggers
    with _replaced(pl_module, log=_nothing, log_dict=_nothing):
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
