"""All that is asked of a Trainer (`TrainerLoop`), and the two callbacks by which it calls ours during a run.

`FirstCallback` and `LastCallback` stand around all others. What other callbacks do is no part of a step: one that runs
the model when a batch ends, or before it begins, must not be measured with it, wherever it stands in the list. So ours
begin a batch after all others, and end it before them.

No other file uses private names of Lightning.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor
from torch.optim import Optimizer

from hookboard.auditing import Finding, read_first_step
from hookboard.flow import Flow
from hookboard.loops.loop import Loop
from hookboard.messages import ask_for_rank
from hookboard.replay import RandomState, loss_of_step, undisturbed

ask_for_rank(lambda: getattr(rank_zero_only, "rank", 0) == 0)


def _asked(of: str | Callable[[Any], object]) -> Any:
    """Return a property: what stands at the end of this path of names, or what the function returns."""
    return property(attrgetter(of) if isinstance(of, str) else of)


@dataclass
class TrainerLoop(Loop):
    """The run of a Trainer. Two are equal if they are of the same Trainer; none keeps anything of its own."""

    trainer: Trainer
    model = _asked("trainer.lightning_module")
    device = _asked("trainer.lightning_module.device")
    optimizers = _asked("trainer.optimizers")
    loggers = _asked("trainer.loggers")
    callbacks = _asked("trainer.callbacks")

    # `global_step` counts every optimizer's step, and has already moved on when a batch ends.
    logged_step = _asked("trainer.fit_loop.epoch_loop._batches_that_stepped")
    log_every_n_steps = _asked("trainer.log_every_n_steps")
    train_dataloader = _asked("trainer.train_dataloader")
    steps_left = _asked(lambda loop: loop.trainer.estimated_stepping_batches - loop.trainer.global_step)
    has_validation = _asked("trainer.enable_validation")
    is_rank_zero = _asked("trainer.is_global_zero")
    world_size = _asked("trainer.world_size")
    scaler = _asked(lambda loop: getattr(loop.trainer.precision_plugin, "scaler", None))
    largest_norm = _asked(lambda loop: _largest_norm(loop.trainer))
    is_accumulating = _asked(lambda loop: loop.trainer.fit_loop.epoch_loop._should_accumulate())
    is_running = _asked(lambda loop: loop.trainer.state.status == TrainerStatus.RUNNING)
    is_fitting = _asked(lambda loop: loop.trainer.state.fn == TrainerFn.FITTING)
    is_model_parallel = _asked(lambda loop: isinstance(loop.trainer.strategy, ModelParallelStrategy))
    why_not = _asked(lambda loop: "fast_dev_run has no log to write to" if loop.trainer.fast_dev_run else None)

    @_asked
    def stage(self) -> str:
        stage = self.trainer.state.stage
        assert stage is not None, "no loop runs"
        return stage.value

    @_asked
    def batch_to_repeat(self) -> tuple[int, int] | None:
        # None if the batch has ended, even if callbacks have yet to hear of that.
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return (self.logged_step, progress.ready - 1) if progress.processed < progress.ready else None

    @_asked
    def weights_kept_by(self) -> str | None:
        strategy = self.trainer.strategy
        return type(strategy).__name__ if isinstance(strategy, FSDPStrategy | DeepSpeedStrategy) else None

    def in_precision(self) -> AbstractContextManager[object]:
        return self.trainer.precision_plugin.forward_context()

    def on_device(self, batch: Any) -> Any:
        # Converted, moved, and changed by the module's hooks for that.
        batch = self.trainer.precision_plugin.convert_input(batch)
        batch = self.trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    @contextmanager
    def step_again(
        self, batch: Any, batch_idx: int, state: RandomState, backward: int
    ) -> Iterator[Callable[[], Tensor]]:
        with undisturbed(self.model, batch, trainer=self.trainer):
            state.restore()
            yield lambda: loss_of_step(self.trainer, self.model, batch, batch_idx, backward)

    def read_first_step(self, batch: Any, batch_idx: int) -> tuple[list[Finding], Flow]:
        return read_first_step(self.trainer, self.model, batch, batch_idx)

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


IN_THE_MIDDLE = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")
"""The hooks of other callbacks that Lightning calls in the middle of a batch."""


class Members(list[Any]):
    """The callbacks of hookboard that take part in a run; their class is in `callback.py`, which imports this file."""

    heard: frozenset[str] = frozenset()
    """The hooks in the middle of a batch that other callbacks implement, while a batch is watched."""

    def begin_batch(self, loop: Loop, stage: str, *batch: Any) -> None:
        """Have each member begin a batch; those that change tensors first, so that others find the changes made."""
        for changes_tensors in (True, False):
            for member in self:
                if member.changes_tensors is changes_tensors:
                    member.begin_batch(loop, stage, *batch)

    def listen(self, loop: Loop) -> None:
        """Find out which hooks in the middle of this batch other callbacks implement, if a member watches it."""
        self.heard = frozenset()
        for member in self:
            if member.is_observing:
                self.heard = frozenset(
                    hook
                    for each in loop.callbacks
                    if not type(each).__module__.startswith("hookboard.")
                    for hook in IN_THE_MIDDLE
                    if getattr(type(each), hook) is not getattr(Callback, hook) or hook in vars(each)
                )
                return

    def observe(self, on: bool) -> None:
        """Switch the hooks of all members on or off: off while other callbacks run in the middle of a batch."""
        for member in self:
            member.observe(on)


class FirstCallback(Callback):
    """Stands before all other callbacks: a step ends, and so does the run, before any of them hears of it.

    If a callback raises in `on_exception` or `teardown`, Lightning does not call those after it, and nothing else of
    the run follows.

    Args:
        members: the callbacks of hookboard that take part in the run.
        last: stands after all other callbacks.
    """

    def __init__(self, members: Members, last: "LastCallback") -> None:
        self.members = members
        self.last = last

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member begin the training."""
        for member in self.members:
            member.begin_training(TrainerLoop(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stand first again, and `last` last, if callbacks have been added."""
        self._stay_first(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Have each member clean up after the previous batch."""
        for member in self.members:
            member.leave_batch()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Have each member read the loss, then switch their hooks off if other callbacks run here."""
        loop = TrainerLoop(trainer)
        for member in self.members:
            member.before_backward(loop, loss)
        if "on_before_backward" in self.members.heard:
            self.members.observe(False)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member read the gradients, then switch their hooks off if other callbacks run here."""
        loop = TrainerLoop(trainer)
        for member in self.members:
            member.after_backward(loop)
        if "on_after_backward" in self.members.heard:
            self.members.observe(False)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Have each member read what the optimizer is about to use, then switch their hooks off as above."""
        loop = TrainerLoop(trainer)
        for member in self.members:
            member.before_optimizer_step(loop, optimizer)
        if "on_before_optimizer_step" in self.members.heard:
            self.members.observe(False)

    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Switch the hooks of all members off if other callbacks run here."""
        if "on_before_zero_grad" in self.members.heard:
            self.members.observe(False)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Have each member end its training batch before other callbacks hear of the end."""
        loop = TrainerLoop(trainer)
        for member in self.members:
            member.end_batch(loop, "train")
        self._stay_first(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member end the epoch; a batch that an early end left open is dropped without `_end_batch`."""
        for member in self.members:
            member.end_epoch(TrainerLoop(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member end the training."""
        for member in self.members:
            member.end_training(TrainerLoop(trainer))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member clean up after the previous batch, and stand first again if callbacks have been added."""
        for member in self.members:
            member.leave_batch()
        self._stay_first(trainer)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Have each member clean up after the previous batch."""
        for member in self.members:
            member.leave_batch()

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Have each member end its batch of validation, test or prediction."""
        loop = TrainerLoop(trainer)
        for member in self.members:
            member.end_batch(loop, loop.stage)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member end the evaluation."""
        for member in self.members:
            member.end_evaluation(TrainerLoop(trainer))

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_end = on_predict_end = on_validation_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Have each member undo what it did for the run, and leave the Trainer."""
        for member in list(self.members):
            member.on_exception(trainer, pl_module, exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have each member undo what it did for the run, and leave the Trainer."""
        for member in list(self.members):
            member.teardown(trainer, pl_module, stage)

    def _stay_first(self, trainer: Trainer) -> None:
        """Move to the front, and `last` to the end, if callbacks were added. It takes effect from the next hook on."""
        given = TrainerLoop(trainer).callbacks
        if given[0] is not self or given[-1] is not self.last:
            others = [each for each in given if each is not self and each is not self.last]
            trainer.callbacks = [self, *others, self.last]  # type: ignore[attr-defined]  # set outside its __init__


class LastCallback(Callback):
    """Stands after all other callbacks: a step begins when each of them has been called.

    Args:
        members: the callbacks of hookboard that take part in the run.
    """

    def __init__(self, members: Members) -> None:
        self.members = members

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *rest: Any
    ) -> None:
        """Have each member begin the batch, and find out which other callbacks will run in the middle of it."""
        loop = TrainerLoop(trainer)
        self.members.begin_batch(loop, "train", batch, batch_idx, 0)
        self.members.listen(loop)

    def on_before_backward(self, *args: Any, **named: Any) -> None:
        """Switch the hooks of all members on again, after other callbacks have run."""
        if self.members.heard:
            self.members.observe(True)

    on_after_backward = on_before_optimizer_step = on_before_zero_grad = on_before_backward

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member begin an evaluation within a fit; outside of one, `HookboardCallback` does so itself."""
        for member in self.members:
            member.begin_evaluation(TrainerLoop(trainer))

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Have each member begin the batch."""
        loop = TrainerLoop(trainer)
        self.members.begin_batch(loop, loop.stage, batch, batch_idx, dataloader_idx)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start


_SET_BY_LIGHTNING = ("log", "log_dict")
"""The attributes that Lightning sets on each callback at the start of every run; they hold the whole model."""


def _largest_norm(trainer: Trainer) -> float:
    by_norm = trainer.gradient_clip_algorithm in (None, "norm")
    return float(trainer.gradient_clip_val) if trainer.gradient_clip_val and by_norm else math.inf


def without_trainer(state: dict[str, Any]) -> dict[str, Any]:
    """Return a callback's attributes without those that Lightning sets on it."""
    return {name: value for name, value in state.items() if name not in _SET_BY_LIGHTNING}


def let_go_of_model(callback: Callback) -> None:
    """Remove what Lightning has set on a callback. Who holds the callback after the run would hold the model too."""
    for name in _SET_BY_LIGHTNING:
        vars(callback).pop(name, None)
