"""When each callback does what, on one page. No other file implements hooks of Lightning.

    on_fit_start, or on_<loop>_start of a loop by itself   _select, _why_not; _watch and _attach for each stage
        on_train_start, on_<loop>_start                    _begin_training, _begin_loop
            on_<stage>_batch_start                         _wants; if it does, _begin_batch
                on_before_backward, on_after_backward      _before_backward, _after_backward
                on_before_optimizer_step                   _before_optimizer_step
            on_<stage>_batch_end                           _end_batch
        on_<loop>_end, on_train_end                        _end_loop, _end_training
    teardown or on_exception                               everything left is undone, see `ending.py`

What they have in common stands in `course.py`. A callback with `sees_every_step` is also asked at each training batch,
due or not: _see_batch, _see_loss, _see_gradients, _see_step, _see_batch_end.
"""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from hookboard.callbacks.course import Course
from hookboard.callbacks.duties import W
from hookboard.callbacks.tags import inform_of_many_tags, warn_of_equal_tags
from hookboard.callbacks.trainer import is_alone, running_stage
from hookboard.clock import timed


class Life(Course[W]):
    """Base of all callbacks: the hooks of Lightning."""

    @timed
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Select and attach.

        Raises:
            ValueError: the configuration does not fit the model.
        """
        self._start(trainer, pl_module, {"train", "validate"})
        inform_of_many_tags(self)
        warn_of_equal_tags(self, trainer)

    @timed
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_begin_training`."""
        watch = self._live.get("train")
        if watch is not None:
            self._do(watch, "at the start of the training", self._begin_training, trainer, watch)

    @timed
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """See `_begin_batch`."""
        self._start_batch(trainer, pl_module, "train", batch, batch_idx, 0)
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "at the start of a batch", self._see_batch, trainer, pl_module, watch, batch, batch_idx)

    @timed
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """See `_before_backward`."""
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "before the backward pass", self._see_loss, trainer, pl_module, watch, loss)
        if watch is not None and watch.is_due:
            self._do(watch, "before the backward pass", self._before_backward, watch)

    @timed
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_after_backward`."""
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "after the backward pass", self._see_gradients, trainer, pl_module, watch)
        if watch is not None and watch.is_due:
            self._do(watch, "after the backward pass", self._after_backward, watch)

    @timed
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """See `_before_optimizer_step`."""
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "before the optimizer step", self._see_step, trainer, pl_module, watch, optimizer)
        if watch is not None and watch.is_due:
            self._do(watch, "before the optimizer step", self._before_optimizer_step, pl_module, watch, optimizer)

    @timed
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """See `_end_batch`."""
        self._see_end(trainer)
        self._finish_batch(trainer, "train")

    def _see_end(self, trainer: Trainer) -> None:
        watch = self._live.get("train")
        if watch is not None and self.sees_every_step:
            self._do(watch, "at the end of a batch", self._see_batch_end, trainer, watch)

    @timed
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Undo what is left of a batch: if the module ends an epoch early, its last batch has no end hook."""
        self._leave_batch()
        self._see_end(trainer)

    @timed
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_end_training`."""
        self._worker.settle()
        for watch in list(self._live.values()):
            self._do(watch, "at the end of the training", self._end_training, trainer, watch)

    @timed
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_begin_loop`. An evaluation outside of a fit also selects and attaches, as `on_fit_start` does."""
        self._leave_batch()
        if self._budget is not None:
            self._budget.pause()
        stage = running_stage(trainer)
        if is_alone(trainer):
            if stage in self._stages(trainer):
                self._start(trainer, pl_module, {stage})
            warn_of_equal_tags(self, trainer)
        watch = self._live.get(stage)
        if watch is not None:
            self._do(watch, "at the start of an evaluation", self._open_loop, trainer, pl_module, watch)

    def _open_loop(self, trainer: Trainer, pl_module: LightningModule, watch: W) -> None:
        self._follow(trainer, pl_module, watch)
        self._begin_loop(trainer, watch)

    @timed
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See `_begin_batch`."""
        self._start_batch(trainer, pl_module, running_stage(trainer), batch, batch_idx, dataloader_idx)

    @timed
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """See `_end_batch`."""
        self._finish_batch(trainer, running_stage(trainer))

    @timed
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See `_end_loop`."""
        self._leave_batch()
        watch = self._live.get(running_stage(trainer))
        if watch is not None:
            self._do(watch, "at the end of an evaluation", self._end_loop, trainer, watch)
        self._worker.settle()

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_end = on_predict_end = on_validation_end

    @timed
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Undo everything: Lightning does not call `teardown` after a failure."""
        self._end_all()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Undo everything."""
        self._end_all()
