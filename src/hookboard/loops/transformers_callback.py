"""`TransformersCallback`. Imported only by `for_transformers`, because the package transformers is not required."""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from torch import nn
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hookboard.base.messages import warn_switched_off
from hookboard.loops.bare import BareLoop, loggers_in
from hookboard.loops.callback import HookboardCallback


class TransformersCallback(TrainerCallback):
    """Calls callbacks of hookboard in a training of Hugging Face's Trainer.

    Args:
        callbacks: the callbacks of hookboard.
        loggers: what they write to; None for TensorBoard's files in `<output_dir>/hookboard`.
    """

    def __init__(self, callbacks: Sequence[HookboardCallback[Any]], loggers: Sequence[Any] | None) -> None:
        self._callbacks, self._loggers = callbacks, loggers
        self._loop: BareLoop | None = None
        self._until_end, self._until_batch_end, self._until_evaluation_end = ExitStack(), ExitStack(), ExitStack()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Any = None,
        **others: Any,
    ) -> None:
        """Begin the run of the callbacks, which attaches their hooks; end the last run first if it has not ended.

        Raises:
            ValueError: the configuration of a callback does not fit the model.
        """
        self.close()
        assert model is not None
        self._loop = loop = BareLoop(
            model,
            [optimizer],
            self._callbacks,
            self._writer(args, state) if self._loggers is None else self._loggers,
            getattr(optimizer, "scaler", None),
            validates=False,
            log_every_n_steps=max(int(state.logging_steps), 1),
        )
        loop.logged_step = state.global_step
        if args.max_grad_norm:
            loop.largest_norm = args.max_grad_norm
        self._until_end.enter_context(loop.running())

    def _writer(self, args: TrainingArguments, state: TrainerState) -> list[Any]:
        if not state.is_world_process_zero:
            return []
        try:
            writer = SummaryWriter(os.path.join(args.output_dir or "", "hookboard"))
        except OSError as error:  # a file of this name, or a disk that is full or only read
            warn_switched_off("writing to TensorBoard", error)
            return []
        self._until_end.callback(writer.close)
        return loggers_in(writer)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Begin the first batch of an optimizer step; attach the hooks if the callback was added in mid-training."""
        self._drop_evaluation()  # one that was called off, or a batch that did not reach its end
        if self._loop is None:
            self.on_train_begin(args, state, control, **others)
        assert self._loop is not None
        self._loop.steps_left = state.max_steps - state.global_step
        self._begin_batch()

    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End a batch, and begin the next one of the same optimizer step."""
        if self._loop is not None:
            self._until_batch_end.close()
            self._begin_batch()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End the last batch of an optimizer step, and the training if asked to; begin an evaluation if it follows."""
        if self._loop is None:
            return
        self._loop.is_accumulating = False
        self._until_batch_end.close()
        if self._loop.should_stop:
            control.should_training_stop = True
        self._begin_evaluation(control)

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Begin the evaluation, if one follows this epoch."""
        self._begin_evaluation(control)

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End a batch of an evaluation, and begin the next one."""
        if self._loop is not None and self._loop.stage == "validate":
            self._until_batch_end.close()
            self._begin_batch(accumulates=False)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End an evaluation."""
        if self._loop is not None and self._loop.stage == "validate":
            self._drop_batch()  # begun after the last one
            self._until_evaluation_end.close()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """End the training and the run of the callbacks, which detaches the hooks and logs the last results."""
        self._drop_evaluation()  # or a batch, if another callback has ended the training between two of a step
        self._until_end.close()
        self._loop = None

    def close(self) -> None:
        """Detach the hooks. Call it after a training that has failed: Hugging Face's Trainer does not tell callbacks.

        Otherwise the next training detaches them when it begins.
        """
        self._drop_evaluation()
        _fail(self._until_end)
        self._loop = None

    def __reduce__(self) -> Any:
        """Copy and pickle the configuration alone, also during a training."""
        return type(self), (self._callbacks, self._loggers)

    def _drop_batch(self) -> None:
        """Detach the hooks of a batch that did not reach its end; no effect if no batch has begun."""
        _fail(self._until_batch_end)

    def _begin_batch(self, *, accumulates: bool = True) -> None:
        # Which batch is the last of its step is known when that has ended.
        assert self._loop is not None
        self._until_batch_end.enter_context(self._loop.step(accumulates=accumulates))

    def _begin_evaluation(self, control: TrainerControl) -> None:
        """Begin an evaluation and its first batch if one comes next: Hugging Face's Trainer tells only its end."""
        if self._loop is not None and control.should_evaluate:
            self._drop_evaluation()  # one that was called off
            self._until_evaluation_end.enter_context(self._loop.evaluate())
            self._begin_batch(accumulates=False)

    def _drop_evaluation(self) -> None:
        """End an evaluation that did not reach its end, and its batch; no effect if none has begun."""
        self._drop_batch()
        _fail(self._until_evaluation_end)


def _fail(until: ExitStack) -> None:
    """Leave the contexts of a stack as after an error."""
    failure = RuntimeError("training failed")
    with suppress(RuntimeError):
        until.__exit__(type(failure), failure, None)
