"""When each callback does what, on one page.

    on_fit_start, or on_<loop>_start of a loop by itself   _select, _why_not; _watch and _attach for each stage
        on_train_start, on_<loop>_start                    _begin_training, Watch.go_on; _begin_loop
            on_<stage>_batch_start                         _wants; if it does, _begin_batch
                on_before_backward, on_after_backward      _before_backward, _after_backward
                on_before_optimizer_step                   _before_optimizer_step
            on_<stage>_batch_end                           _end_batch
        on_<loop>_end, on_train_end                        _end_loop, _end_training
    teardown or on_exception                               everything left is undone
    on_save_checkpoint, whenever that is                   Watch.parts

`First` and `Last` in `bookends.py` call what stands between the first line and the last two: no callback implements
those hooks itself. What they have in common stands in `course.py` and `saved.py`. A callback with `sees_every_step` is
also asked at each training batch, due or not: _see_batch, _see_loss, _see_gradients, _see_step, _see_batch_end.
"""

import weakref
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from hookboard.clock import timed
from hookboard.loops.bookends import join, leave
from hookboard.loops.duties import W
from hookboard.loops.saved import KEY, Saved
from hookboard.loops.tags import inform_of_many_tags, warn_of_equal_tags
from hookboard.loops.trainer import is_alone, is_running, running_stage, warn


class _StateKey:
    """The callback's key in checkpoints. Lightning reads it before each hook, so a class tells here that it is none."""

    def __get__(self, callback: object | None, kind: type) -> str:
        if callback is None:  # no other error: what lists the members of a class goes on after this one
            raise AttributeError(
                f"callbacks=[{kind.__name__}]: give an object, as in {kind.__name__}(), not its class."
            )
        return kind.__qualname__


class Life(Saved[W]):
    """Base of all callbacks: what they do at each point of a run."""

    # The hooks of Lightning at which it begins and ends.

    state_key = _StateKey()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the fit before, so that nobody saves it as this one."""
        if not is_alone(trainer):
            self._kept = None

    @timed
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select and attach.

        Raises:
            ValueError: the configuration does not fit the model.
        """
        if self._may_take(trainer):
            join(trainer, self)
            self._start(trainer, pl_module, {"train", "validate"})
            inform_of_many_tags(self)
            warn_of_equal_tags(self, trainer)

    @timed
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select and attach, and begin the loop, in an evaluation outside of a fit."""
        if is_alone(trainer) and self._may_take(trainer):
            join(trainer, self)
            stage = running_stage(trainer)
            if stage in self._stages(trainer):
                self._start(trainer, pl_module, {stage})
            warn_of_equal_tags(self, trainer)
            self._start_loop(trainer, pl_module)

    on_test_start = on_predict_start = on_validation_start

    @timed
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Undo everything: Lightning does not call `teardown` after a failure."""
        self.teardown(trainer, pl_module, "")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Undo everything."""
        if not self._is_taken(trainer):
            try:
                self._end_run(trainer)
            finally:
                leave(trainer, self)

    @timed
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put what is known of the fit into the checkpoint."""
        if trainer.is_global_zero and not self._is_taken(trainer):
            self._save(trainer, checkpoint)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep what the checkpoint holds until the training starts: some strategies load it behind `on_fit_start`."""
        if not is_alone(trainer) and not self._is_taken(trainer):
            # The search for a learning rate saves and loads a checkpoint of its own, before this fit knows anything.
            self._loaded = checkpoint.get(KEY, [] if self._loaded is None else self._loaded)

    def _is_taken(self, trainer: Trainer) -> bool:
        """Whether it watches a run of another Trainer, which is still going on."""
        other = None if self._trainer is None else self._trainer()
        return bool(self._live) and other is not None and other is not trainer and is_running(other)

    def _may_take(self, trainer: Trainer) -> bool:
        """Whether no run of another Trainer is being watched; if one is, a warning says that this one will not be."""
        if self._is_taken(trainer):
            warn(
                f"{self._name} {self.verb} nothing in this run: it still watches that of another Trainer. "
                "Give each Trainer a callback of its own."
            )
            return False
        other = None if self._trainer is None else self._trainer()
        if other is not None and other is not trainer:
            leave(other, self)
        self._trainer = weakref.ref(trainer)
        return True

    # What `First` and `Last` call.

    @timed
    def begin_training(self, trainer: Trainer) -> None:
        """See `_begin_training`."""
        watch = self._live.get("train")
        if watch is not None:
            self._do(watch, "at the start of the training", self._begin_training, trainer, watch)
        self._go_on(trainer)

    @timed
    def begin_batch(
        self, trainer: Trainer, pl_module: LightningModule, stage: str, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> None:
        """See `_begin_batch`."""
        self._start_batch(trainer, pl_module, stage, batch, batch_idx, dataloader_idx)
        watch = self._live.get(stage)
        if watch is not None and stage == "train" and self.sees_every_step:
            self._do(watch, "at the start of a batch", self._see_batch, trainer, pl_module, watch, batch, batch_idx)

    @timed
    def before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """See `_before_backward`."""
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "before the backward pass", self._see_loss, trainer, pl_module, watch, loss)
        if watch is not None and watch.is_due:
            self._do(watch, "before the backward pass", self._before_backward, watch)

    @timed
    def after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_after_backward`."""
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "after the backward pass", self._see_gradients, trainer, pl_module, watch)
        if watch is not None and watch.is_due:
            self._do(watch, "after the backward pass", self._after_backward, watch)

    @timed
    def before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """See `_before_optimizer_step`."""
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "before the optimizer step", self._see_step, trainer, pl_module, watch, optimizer)
        if watch is not None and watch.is_due:
            self._do(watch, "before the optimizer step", self._before_optimizer_step, pl_module, watch, optimizer)

    @property
    def is_observing(self) -> bool:
        """Whether a batch is being watched."""
        return any(watch.is_due for watch in self._live.values())

    def observe(self, on: bool) -> None:
        """See `Watch.observe`."""
        for watch in list(self._live.values()):
            if watch.is_due:
                self._do(watch, "in the middle of a batch", watch.observe, on)

    @timed
    def end_batch(self, trainer: Trainer, stage: str) -> None:
        """See `_end_batch`."""
        if stage == "train":
            self._see_end(trainer)
        self._finish_batch(trainer, stage)

    def _see_end(self, trainer: Trainer) -> None:
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "at the end of a batch", self._see_batch_end, trainer, watch)

    @timed
    def leave_batch(self) -> None:
        """Undo what is left of the last batch, before other callbacks hear of what follows."""
        self._leave_batch()

    @timed
    def end_epoch(self, trainer: Trainer) -> None:
        """Undo what is left of a batch: if the module ends an epoch early, its last batch has no end hook."""
        self._leave_batch()
        self._see_end(trainer)

    @timed
    def end_training(self, trainer: Trainer) -> None:
        """See `_end_training`."""
        self._worker.settle()
        for watch in list(self._live.values()):
            self._do(watch, "at the end of the training", self._end_training, trainer, watch)

    @timed
    def begin_loop(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_begin_loop`."""
        if self._budget is not None:
            self._budget.pause()
        self._start_loop(trainer, pl_module)

    def _start_loop(self, trainer: Trainer, pl_module: LightningModule) -> None:
        watch = self._live.get(running_stage(trainer))
        if watch is not None:
            self._do(watch, "at the start of an evaluation", self._open_loop, trainer, pl_module, watch)

    def _open_loop(self, trainer: Trainer, pl_module: LightningModule, watch: W) -> None:
        self._follow(trainer, pl_module, watch)
        self._begin_loop(trainer, watch)

    @timed
    def end_loop(self, trainer: Trainer) -> None:
        """See `_end_loop`."""
        self._leave_batch()
        watch = self._live.get(running_stage(trainer))
        if watch is not None:
            self._do(watch, "at the end of an evaluation", self._end_loop, trainer, watch)
        if self._ranks is None:  # other ranks may still be evaluating
            self._worker.settle()
