"""`TrainerLoop`: the `Loop` of a Lightning Trainer, as one of its callbacks. No other file uses its private names."""

import math
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from torch import Tensor
from torch.amp import GradScaler

from hookboard.base.checks import is_lightning, is_wrapped
from hookboard.loops.loop import Loop


def _read_only(of: str | Callable[[Any], object]) -> Any:
    """Make a read-only property: the value at a dotted path of attributes, or what a function of `self` returns."""
    return property(attrgetter(of) if isinstance(of, str) else of)


def is_name_of_evaluation_loss(name: str) -> bool:
    """Return True if a metric of this name seems to be the loss of a validation.

    >>> [is_name_of_evaluation_loss(name) for name in ("val_loss", "Loss/valid", "loss", "val_acc")]
    [True, True, False, False]
    """
    words = re.split(r"[^a-z]+", name.lower())
    return "loss" in words and not {"val", "valid", "validation", "dev", "eval"}.isdisjoint(words)


SET_BY_LIGHTNING = ("log", "log_dict")
"""The attributes that Lightning sets on each callback at the start of every run; they hold the whole model."""


def _hook_calling(method: str, *first: object, passes: int = 0) -> Any:
    """Make a hook of Lightning that calls a method of the `Loop`, with `first` and its own first `passes` arguments."""

    def hook(self: Any, trainer: Trainer, pl_module: LightningModule, *arguments: Any, **named: Any) -> None:
        if self.in_batch or method != "tell":  # what happens in a batch is told to nobody in most steps
            getattr(self, method)(*first, *arguments[:passes])

    return hook


class TrainerLoop(Loop, Callback):
    """The `Loop` of a Trainer; reads every attribute from it at each access."""

    trainer: Trainer

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer

    def __reduce__(self) -> tuple[Any, ...]:
        """Be a callback that does nothing in a copy or a pickle: nobody takes part there, whichever Trainer gets it."""
        return Callback, ()

    @staticmethod
    def of(trainer: Trainer) -> "TrainerLoop":
        """Return the loop of a Trainer: the one among its callbacks, if ours take part in its run."""
        return next((one for one in trainer.callbacks if isinstance(one, TrainerLoop)), TrainerLoop(trainer))  # type: ignore[attr-defined]  # set outside its __init__

    model = _read_only("trainer.lightning_module")
    device = _read_only("trainer.lightning_module.device")
    optimizers = _read_only("trainer.optimizers")
    loggers = _read_only(lambda loop: [] if loop.trainer.fast_dev_run else loop.trainer.loggers)  # they discard all

    # `global_step` counts every optimizer's step, and has already moved on when a batch ends.
    logged_step = _read_only("trainer.fit_loop.epoch_loop._batches_that_stepped")
    log_every_n_steps = _read_only("trainer.log_every_n_steps")
    has_validation = _read_only("trainer.enable_validation")
    is_rank_zero = _read_only("trainer.is_global_zero")
    world_size = _read_only("trainer.world_size")
    scaler = _read_only(lambda loop: getattr(loop.trainer.precision_plugin, "scaler", None))
    largest_norm = _read_only(lambda loop: _largest_norm(loop.trainer))
    is_accumulating = _read_only(lambda loop: loop.trainer.fit_loop.epoch_loop._should_accumulate())
    is_running = _read_only(lambda loop: loop.trainer.state.status == TrainerStatus.RUNNING)
    is_fitting = _read_only(lambda loop: loop.trainer.state.fn == TrainerFn.FITTING)
    is_model_parallel = _read_only(lambda loop: is_lightning(loop.trainer.strategy, ModelParallelStrategy))

    stage = _read_only("trainer.state.stage.value")

    @_read_only
    def evaluation_loss(self) -> Tensor | None:
        logged = self.trainer.callback_metrics
        names = [name for name in logged if is_name_of_evaluation_loss(name)]
        # `val_loss` rather than one of its terms, such as `val_loss_boxes`.
        return logged[min(names, key=len)] if names else None

    @_read_only
    def weights_kept_by(self) -> str | None:
        strategy = self.trainer.strategy
        return type(strategy).__name__ if is_lightning(strategy, FSDPStrategy, DeepSpeedStrategy) else None

    def in_precision(self) -> AbstractContextManager[object]:
        return self.trainer.precision_plugin.forward_context()

    def stop(self) -> None:
        self.trainer.should_stop = True

    def join(self, callback: Callback) -> None:
        super().join(callback)
        if not any(each is self for each in self.trainer.callbacks):  # type: ignore[attr-defined]  # as above
            # First, so that measuring has ended before others see the end of a batch, and a callback that raises at the
            # end of a run cannot keep ours from ending it. A new list: Lightning walks through the old one.
            self.trainer.callbacks = [self, *self.trainer.callbacks]  # type: ignore[attr-defined]  # as above

    def leave(self, callback: Callback) -> None:
        super().leave(callback)
        for name in SET_BY_LIGHTNING:  # through them it would keep the model in memory
            vars(callback).pop(name, None)
        if not self.members:
            rest = [each for each in self.trainer.callbacks if each is not self]  # type: ignore[attr-defined]  # as above
            self.trainer.callbacks = rest  # type: ignore[attr-defined]  # as above

    on_train_start = _hook_calling("begin_training")
    on_validation_start = _hook_calling("begin_evaluation")  # outside of a fit it has begun before this is a callback
    on_train_batch_start = on_validation_batch_start = _hook_calling("begin_batch", passes=3)
    on_test_batch_start = on_predict_batch_start = on_train_batch_start
    on_before_backward = _hook_calling("tell", "_before_backward", passes=1)
    on_after_backward = _hook_calling("tell", "_after_backward")
    on_before_optimizer_step = _hook_calling("tell", "_before_optimizer_step", passes=1)
    on_train_batch_end = on_validation_batch_end = _hook_calling("end_batch")
    on_test_batch_end = on_predict_batch_end = on_train_batch_end
    on_validation_end = on_test_end = on_predict_end = _hook_calling("end_evaluation")
    on_train_epoch_end = _hook_calling("end_epoch")
    on_train_end = _hook_calling("end_training")
    on_exception = _hook_calling("end_run", True)  # it has failed: Lightning does not call `teardown` then
    teardown = _hook_calling("end_run")


def _largest_norm(trainer: Trainer) -> float:
    by_norm = trainer.gradient_clip_algorithm in (None, "norm")
    return float(trainer.gradient_clip_val) if trainer.gradient_clip_val and by_norm else math.inf


def scaler_of_fabric(optimizers: Iterable[Any]) -> GradScaler | None:
    """Return the GradScaler with which Fabric steps these optimizers; None if there is none."""
    strategies = (optimizer._strategy for optimizer in optimizers if is_wrapped(optimizer))
    return next((getattr(strategy.precision, "scaler", None) for strategy in strategies), None)
