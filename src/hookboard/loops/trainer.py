"""`TrainerLoop`: the `Loop` of a Lightning Trainer; and the two callbacks through which the Trainer calls ours.

`FirstCallback` stands before all other callbacks of the Trainer, `LastCallback` after them. What other callbacks do is
not part of a step: if one runs the model before or after a batch, that must not be measured. So ours begin a batch
after all others and end it before them, wherever they stand in the user's list.

No other file uses private names of Lightning.
"""

import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor
from torch.amp import GradScaler

from hookboard.base.either_lightning import is_lightning, is_wrapped
from hookboard.base.messages import ask_for_rank
from hookboard.loops.loop import Loop
from hookboard.writers import write_rows

ask_for_rank(lambda: getattr(rank_zero_only, "rank", 0) == 0)


def _asked(of: str | Callable[[Any], object]) -> Any:
    """Make a read-only property: the value at a dotted path of attributes, or what a function of `self` returns."""
    return property(attrgetter(of) if isinstance(of, str) else of)


def is_name_of_evaluation_loss(name: str) -> bool:
    """Return True if a metric of this name seems to be the loss of a validation.

    >>> [is_name_of_evaluation_loss(name) for name in ("val_loss", "Loss/valid", "loss", "val_acc")]
    [True, True, False, False]
    """
    words = re.split(r"[^a-z]+", name.lower())
    return "loss" in words and not {"val", "valid", "validation", "dev", "eval"}.isdisjoint(words)


@dataclass
class TrainerLoop(Loop):
    """The `Loop` of a Trainer; reads every attribute from it at each access. Two loops of one Trainer are equal."""

    trainer: Trainer
    model = _asked("trainer.lightning_module")
    device = _asked("trainer.lightning_module.device")
    optimizers = _asked("trainer.optimizers")
    loggers = _asked(lambda loop: [] if loop.trainer.fast_dev_run else loop.trainer.loggers)  # that swallow all
    callbacks = _asked("trainer.callbacks")

    # `global_step` counts every optimizer's step, and has already moved on when a batch ends.
    logged_step = _asked("trainer.fit_loop.epoch_loop._batches_that_stepped")
    log_every_n_steps = _asked("trainer.log_every_n_steps")
    train_dataloader = _asked("trainer.train_dataloader")
    steps_left = _asked(lambda loop: loop.trainer.estimated_stepping_batches - loop.trainer.global_step)
    has_validation = _asked("trainer.enable_validation")
    is_rank_zero = _asked("trainer.is_global_zero")
    world_size = _asked("trainer.world_size")
    rank = _asked("trainer.global_rank")
    scaler = _asked(lambda loop: getattr(loop.trainer.precision_plugin, "scaler", None))
    largest_norm = _asked(lambda loop: _largest_norm(loop.trainer))
    is_accumulating = _asked(lambda loop: loop.trainer.fit_loop.epoch_loop._should_accumulate())
    is_running = _asked(lambda loop: loop.trainer.state.status == TrainerStatus.RUNNING)
    is_fitting = _asked(lambda loop: loop.trainer.state.fn == TrainerFn.FITTING)
    is_model_parallel = _asked(lambda loop: is_lightning(loop.trainer.strategy, ModelParallelStrategy))
    why_not = _asked(lambda loop: "fast_dev_run turns off all loggers" if loop.trainer.fast_dev_run else None)

    @_asked
    def stage(self) -> str:
        stage = self.trainer.state.stage
        assert stage is not None, "no loop runs"
        return stage.value

    @_asked
    def evaluation_loss(self) -> Tensor | None:
        logged = self.trainer.callback_metrics
        names = [name for name in logged if is_name_of_evaluation_loss(name)]
        # `val_loss` rather than one of its terms, such as `val_loss_boxes`.
        return logged[min(names, key=len)] if names else None

    @_asked
    def weights_kept_by(self) -> str | None:
        strategy = self.trainer.strategy
        return type(strategy).__name__ if is_lightning(strategy, FSDPStrategy, DeepSpeedStrategy) else None

    def in_precision(self) -> AbstractContextManager[object]:
        return self.trainer.precision_plugin.forward_context()

    def on_device(self, batch: Any) -> Any:
        # Converted to the precision, moved, and changed by the module's transfer hooks.
        batch = self.trainer.precision_plugin.convert_input(batch)
        batch = self.trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    def unobserved(self) -> AbstractContextManager[None]:
        first = next((each for each in self.callbacks if isinstance(each, FirstCallback)), None)
        return Members().unobserved() if first is None else first.members.unobserved()

    def stop(self) -> None:
        self.trainer.should_stop = True

    def weakly(self) -> Callable[[], Loop | None]:
        trainer = weakref.ref(self.trainer)
        return lambda: None if (there := trainer()) is None else TrainerLoop(there)

    def join(self, callback: Callback) -> None:
        given = self.callbacks
        first = next((each for each in given if isinstance(each, FirstCallback)), None)
        if first is None:
            last = LastCallback(Members())
            first = FirstCallback(last.members, last)
            # A new list: Lightning walks through the old one.
            self.trainer.callbacks = [first, *given, last]  # type: ignore[attr-defined]  # set outside its __init__
        if not any(member is callback for member in first.members):
            first.members.append(callback)

    def leave(self, callback: Callback) -> None:
        given = self.callbacks
        for first in given:
            if isinstance(first, FirstCallback):
                first.members[:] = [member for member in first.members if member is not callback]
                if not first.members:
                    rest = [each for each in given if not isinstance(each, FirstCallback | LastCallback)]
                    self.trainer.callbacks = rest  # type: ignore[attr-defined]  # as above


class Members(list[Any]):
    """The `HookboardCallback`s that take part in a run; untyped, because `callback.py` imports this file."""

    def begin_batch(self, loop: Loop, stage: str, *batch: Any) -> None:
        """Call `begin_batch` of each member; first of those that change tensors, so that others measure the change.

        Args:
            loop: the loop.
            stage: the stage that the batch belongs to.
            batch: three arguments: the batch, its index, and the index of its data loader.
        """
        for changes_tensors in (True, False):
            for member in self:
                if member.changes_tensors is changes_tensors:
                    member.call("begin_batch", loop, stage, *batch)

    def leave_batch(self, loop: Loop) -> None:
        """Call `leave_batch` of each member; before a training batch, also `write_rows` for the steps that are over.

        A step is over when its validation is, and when no member has still to read it or an earlier one.
        """
        for member in self:
            member.call("leave_batch")
        if loop.stage == "train":
            write_rows(loop.loggers, min([loop.logged_step, *(member.first_pending_step for member in self)]))

    def call_each(self, method: str, loop: Loop, *args: Any) -> None:
        """Call this method of each member; at the end of the training and of the run, also call `write_rows`."""
        try:
            for member in list(self):  # a copy: `end_run` takes members off the list
                member.call(method, loop, *args)
        finally:
            if method in ("end_training", "end_run", "break_off"):
                write_rows(loop.loggers)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Switch the members' hooks on modules and gradients off inside the context."""
        for member in self:
            member.observe(False)
        try:
            yield
        finally:
            for member in self:
                member.observe(True)


def _for_each_member(method: str, passes: int = 0) -> Any:
    """Make a hook of Lightning that calls this method of each member with the loop and so many of its arguments."""

    def hook(self: Any, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        self.members.call_each(method, TrainerLoop(trainer), *args[:passes])

    return hook


class FirstCallback(Callback):
    """The first callback of the Trainer: it ends batches and runs for the members before other callbacks are called.

    If a callback raises in `on_exception` or `teardown`, Lightning does not call those after it, so the members must be
    called before.

    Args:
        members: the callbacks of hookboard that take part in the run.
        last: the callback that stands after all others.
    """

    on_train_start = _for_each_member("begin_training")
    on_before_backward = _for_each_member("before_backward", passes=1)
    on_after_backward = _for_each_member("after_backward")
    on_before_optimizer_step = _for_each_member("before_optimizer_step", passes=1)
    on_train_epoch_end = _for_each_member("end_epoch")  # a batch that an early end left open gets no `_end_batch`
    on_train_end = _for_each_member("end_training")
    on_validation_end = on_test_end = on_predict_end = _for_each_member("end_evaluation")
    teardown = _for_each_member("end_run")
    on_exception = _for_each_member("break_off")

    def __init__(self, members: Members, last: "LastCallback") -> None:
        self.members = members
        self.last = last

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Call `leave_batch` of each member, which cleans up after the previous batch; stay at the front."""
        self.members.leave_batch(TrainerLoop(trainer))
        self._stay_first(trainer)

    on_train_epoch_start = on_validation_start = on_train_batch_start
    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = on_train_batch_start

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Call `end_batch` of each member, before other callbacks are called; stay at the front."""
        loop = TrainerLoop(trainer)
        self.members.call_each("end_batch", loop, loop.stage)
        self._stay_first(trainer)

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end

    def _stay_first(self, trainer: Trainer) -> None:
        """Move to the front, and `last` to the end, if callbacks were added; it holds from Lightning's next hook on."""
        given = TrainerLoop(trainer).callbacks
        if not given or given[0] is not self or given[-1] is not self.last:
            others = [each for each in given if each is not self and each is not self.last]
            trainer.callbacks = [self, *others, self.last]  # type: ignore[attr-defined]  # set outside its __init__


class LastCallback(Callback):
    """The last callback of the Trainer: it begins batches for the members after other callbacks have been called.

    Args:
        members: the callbacks of hookboard that take part in the run.
    """

    def __init__(self, members: Members) -> None:
        self.members = members

    on_validation_start = _for_each_member("begin_evaluation")  # outside of a fit, the members begin it themselves

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Call `begin_batch` of each member."""
        loop = TrainerLoop(trainer)
        self.members.begin_batch(loop, loop.stage, batch, batch_idx, dataloader_idx)

    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = on_train_batch_start


_SET_BY_LIGHTNING = ("log", "log_dict")
"""The attributes that Lightning sets on each callback at the start of every run; they hold the whole model."""


def _largest_norm(trainer: Trainer) -> float:
    """Return the norm to which the Trainer clips gradients; infinite if it does not clip by norm."""
    by_norm = trainer.gradient_clip_algorithm in (None, "norm")
    return float(trainer.gradient_clip_val) if trainer.gradient_clip_val and by_norm else math.inf


def scaler_of_fabric(optimizers: Iterable[Any]) -> GradScaler | None:
    """Return the GradScaler with which Fabric steps these optimizers; None if there is none."""
    strategies = (optimizer._strategy for optimizer in optimizers if is_wrapped(optimizer))
    return next((getattr(strategy.precision, "scaler", None) for strategy in strategies), None)


def without_trainer(state: dict[str, Any]) -> dict[str, Any]:
    """Return a callback's attributes without those that Lightning sets on it."""
    return {name: value for name, value in state.items() if name not in _SET_BY_LIGHTNING}


def let_go_of_model(callback: Callback) -> None:
    """Remove the attributes that Lightning has set on a callback: through them it would keep the model in memory."""
    for name in _SET_BY_LIGHTNING:
        vars(callback).pop(name, None)
