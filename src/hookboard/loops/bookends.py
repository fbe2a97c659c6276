"""Two callbacks around all others of a Trainer, `FirstCallback` and `LastCallback`: they call ours during a run.

What other callbacks do is no part of a step. One that runs the model when a batch ends, or before it begins, must not
be measured with it, wherever it stands in the list. So ours begin a batch after all others, and end it before them.
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from hookboard.loops.trainer import callbacks_of, running_stage

IN_THE_MIDDLE = ("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad")
"""The hooks of other callbacks that Lightning calls in the middle of a batch."""


class Members(list[Any]):
    """The callbacks of hookboard that take part in a run; their class is in `callback.py`, which imports this file."""

    heard: frozenset[str] = frozenset()
    """The hooks in the middle of a batch that other callbacks implement, while a batch is watched."""

    def begin_batch(self, trainer: Trainer, pl_module: LightningModule, stage: str, *batch: Any) -> None:
        """Have each member begin a batch; those that change tensors first, so that others find the changes made."""
        for changes_tensors in (True, False):
            for member in self:
                if member.changes_tensors is changes_tensors:
                    member.begin_batch(trainer, pl_module, stage, *batch)

    def listen(self, trainer: Trainer) -> None:
        """Find out which hooks in the middle of this batch other callbacks implement, if a member watches it."""
        self.heard = frozenset()
        for member in self:
            if member.is_observing:
                self.heard = frozenset(
                    hook
                    for each in callbacks_of(trainer)
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
            member.begin_training(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stand first again, and `last` last, if callbacks have been added."""
        self._stay_first(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Have each member clean up after the previous batch."""
        for member in self.members:
            member.leave_batch()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Have each member read the loss, then switch their hooks off if other callbacks run here."""
        for member in self.members:
            member.before_backward(trainer, pl_module, loss)
        if "on_before_backward" in self.members.heard:
            self.members.observe(False)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member read the gradients, then switch their hooks off if other callbacks run here."""
        for member in self.members:
            member.after_backward(trainer, pl_module)
        if "on_after_backward" in self.members.heard:
            self.members.observe(False)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Have each member read what the optimizer is about to use, then switch their hooks off as above."""
        for member in self.members:
            member.before_optimizer_step(trainer, pl_module, optimizer)
        if "on_before_optimizer_step" in self.members.heard:
            self.members.observe(False)

    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Switch the hooks of all members off if other callbacks run here."""
        if "on_before_zero_grad" in self.members.heard:
            self.members.observe(False)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **named: Any) -> None:
        """Have each member end its training batch before other callbacks hear of the end."""
        for member in self.members:
            member.end_batch(trainer, "train")
        self._stay_first(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member end the epoch; a batch that an early end left open is dropped without `_end_batch`."""
        for member in self.members:
            member.end_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member end the training."""
        for member in self.members:
            member.end_training(trainer)

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
        for member in self.members:
            member.end_batch(trainer, running_stage(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member end the evaluation."""
        for member in self.members:
            member.end_loop(trainer)

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
        given = callbacks_of(trainer)
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
        self.members.begin_batch(trainer, pl_module, "train", batch, batch_idx, 0)
        self.members.listen(trainer)

    def on_before_backward(self, *args: Any, **named: Any) -> None:
        """Switch the hooks of all members on again, after other callbacks have run."""
        if self.members.heard:
            self.members.observe(True)

    on_after_backward = on_before_optimizer_step = on_before_zero_grad = on_before_backward

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have each member begin an evaluation within a fit; outside of one, `HookboardCallback` does so itself."""
        for member in self.members:
            member.begin_loop(trainer, pl_module)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Have each member begin the batch."""
        self.members.begin_batch(trainer, pl_module, running_stage(trainer), batch, batch_idx, dataloader_idx)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start


def join(trainer: Trainer, callback: Callback) -> None:
    """Make a callback a member of the Trainer's run; the first one brings `FirstCallback` and `LastCallback` along."""
    given = callbacks_of(trainer)
    first = next((each for each in given if isinstance(each, FirstCallback)), None)
    if first is None:
        last = LastCallback(Members())
        first = FirstCallback(last.members, last)
        # A new list: Lightning walks through the old one.
        trainer.callbacks = [first, *given, last]  # type: ignore[attr-defined]  # set outside its __init__
    if not any(member is callback for member in first.members):
        first.members.append(callback)


def leave(trainer: Trainer, callback: Callback) -> None:
    """End the membership of a callback; with the last one, `FirstCallback` and `LastCallback` leave the Trainer."""
    given = callbacks_of(trainer)
    for first in given:
        if isinstance(first, FirstCallback):
            first.members[:] = [member for member in first.members if member is not callback]
            if not first.members:
                trainer.callbacks = [each for each in given if not isinstance(each, FirstCallback | LastCallback)]  # type: ignore[attr-defined]  # as above
