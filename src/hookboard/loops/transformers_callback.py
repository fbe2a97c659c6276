"""`TransformersCallback`. Imported only by `for_transformers`, because the package transformers is not required."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback, TrainerControl, TrainerState

from hookboard.base.messages import warn_switched_off
from hookboard.loops.bare import BareLoop, loggers_in
from hookboard.loops.callback import HookboardCallback


class TransformersCallback(TrainerCallback):
    """Calls callbacks of hookboard in Hugging Face's Trainer; if `loggers` is None, to `<output_dir>/hookboard`."""

    def __init__(self, callbacks: Sequence[HookboardCallback[Any]], loggers: Sequence[Any] | None) -> None:
        self._callbacks, self._loggers = callbacks, loggers
        self._loop: Any = None  # the `BareLoop` of the training; None outside of one
        self._until_end = ExitStack()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Begin the run of the callbacks, which attaches their hooks; end the last run first if it has not ended."""
        self.close()
        loggers = self._loggers
        if loggers is None and state.is_world_process_zero:
            try:
                writer = SummaryWriter(os.path.join(args.output_dir or "", "hookboard"))
                loggers = loggers_in(self._until_end.enter_context(writer))
            except OSError as error:  # a file of this name, or a disk that is full or only read
                warn_switched_off("writing to TensorBoard", error)
        model, optimizer = others["model"], others["optimizer"]
        self._loop = loop = BareLoop(model, [optimizer], loggers or ())
        loop.scaler = getattr(optimizer, "scaler", None)
        loop.log_every_n_steps, loop.logged_step = max(int(state.logging_steps), 1), state.global_step
        if args.max_grad_norm:
            loop.largest_norm = args.max_grad_norm
        self._until_end.enter_context(loop.running(self._callbacks))

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Begin the first batch of an optimizer step; and the run, if the callback was added in mid-training."""
        if self._loop is None:
            self.on_train_begin(args, state, control, **others)
        self._loop.stage = "train"  # an evaluation may have been called off
        self._loop.begin_step(None, accumulates=True)  # which batch is the last is known when it has ended

    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End a batch, and begin the next one of the same optimizer step."""
        if self._loop is not None:
            self._loop.end_step()
            self._loop.begin_step(None, accumulates=True)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End the last batch of an optimizer step, and the training if asked to; begin an evaluation if it follows."""
        if self._loop is None:
            return
        self._loop.is_accumulating = False
        self._loop.end_step()
        control.should_training_stop |= self._loop.should_stop
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Begin an evaluation and its first batch if one comes next: Hugging Face's Trainer tells only its end."""
        if self._loop is not None and control.should_evaluate:
            self._loop.begin_evaluation()
            self._loop.begin_step(None, accumulates=False)

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End a batch of an evaluation, and begin the next one."""
        if self._loop is not None and self._loop.stage == "validate":
            self._loop.end_step()
            self._loop.begin_step(None, accumulates=False)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End an evaluation."""
        if self._loop is not None and self._loop.stage == "validate":
            self._loop.end_evaluation()
            self._loop.stage = "train"

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End the training and the run of the callbacks, which detaches the hooks and logs the last results."""
        if self._loop is not None:
            self._loop.stage = "train"
        self._until_end.close()
        self._loop = None

    def close(self) -> None:
        """Detach the hooks. Call it after a training that has failed: Hugging Face's Trainer does not tell callbacks.

        Otherwise the next training detaches them when it begins.
        """
        self._until_end.__exit__(RuntimeError, RuntimeError("training failed"), None)
        self._loop = None

    def __reduce__(self) -> Any:
        """Copy and pickle the configuration alone, also during a training."""
        return type(self), (self._callbacks, self._loggers)
