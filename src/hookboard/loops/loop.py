"""`Loop`: the interface through which callbacks read and control a run."""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from hookboard.writers.loggers import write_rows


class Loop:
    """A run of a model: what callbacks can read of it; it tells its members the events that `callback.py` lists."""

    # `TrainerLoop` is that of a Trainer, `BareLoop` of a loop that the user has written. A subclass sets what has no
    # value here; the values are those of a loop that only trains, in one process.

    model: nn.Module  # tags contain the names of its modules
    device: torch.device
    optimizers: Sequence[Optimizer]
    loggers: Sequence[Logger]
    scaler: GradScaler | None = None  # None if the loss is not scaled
    largest_norm: float = math.inf  # to which gradients are clipped before each optimizer step; infinite without any
    trainer: Trainer | None = None

    logged_step: int  # number of the optimizer step of the current batch, counted from 0: the step axis of loggers
    is_accumulating: bool  # no optimizer step follows the current batch: its gradients are added to those of the next
    stage: str  # `train`, `validate`, `test`, `predict` or `sanity_check`
    is_running: bool  # from the start of the run to its end
    is_fitting: bool = True  # also in the validations of a training run; False in an evaluation outside of one

    log_every_n_steps: int = 1  # of callbacks without a number of their own; 0 for no logging
    has_validation: bool = False  # the training run has validations
    evaluation_loss: Tensor | None = None  # of the latest validation, shape (); None if it is not known

    is_rank_zero: bool = True  # in the process that writes to the loggers
    world_size: int = 1
    weights_kept_by: str | None = None  # the strategy that keeps parts of them on other ranks, such as `FSDPStrategy`
    is_model_parallel: bool = False  # all ranks must call a module together, because its weights are sharded

    def __init__(self) -> None:
        self.members: list[Any] = []  # the callbacks of hookboard that take part in the run
        # Who takes part in the running batch, with the state of its stage: only they hear what happens in it. When it
        # has ended, those that change tensors stay, until the next begins.
        self.in_batch: list[tuple[Any, Any]] = []

    def in_precision(self) -> AbstractContextManager[object]:
        """Return a context in which the model runs in the precision of the run, such as autocast."""
        return nullcontext()

    def stop(self) -> None:
        """Ask the run to end after the current batch."""

    def join(self, callback: Any) -> None:
        """Tell this `HookboardCallback` the events of the run from now on; no effect if it has joined already."""
        if not any(member is callback for member in self.members):
            self.members.append(callback)
            self.members.sort(key=lambda member: not member.changes_tensors)  # first, so that others measure the change

    def leave(self, callback: Any) -> None:
        """Tell this `HookboardCallback` no more; no effect if it has not joined."""
        self.members[:] = [member for member in self.members if member is not callback]

    # The events of a run, in their order.

    def tell(self, event: str, *arguments: Any, to: Iterable[tuple[Any, Any]] | None = None) -> None:
        """Call a method of members, for a state of each: by default of those that take part in the running batch."""
        for member, state in [*(self.in_batch if to is None else to)]:
            if not state.has_fault:
                member.call_safely(state, getattr(member, event), self, state, *arguments)

    def _states(self, stage: str = "") -> list[tuple[Any, Any]]:
        return [(member, state) for member in self.members for state in member.states if stage in ("", state.stage)]

    def begin_training(self) -> None:
        """Tell all members that the first batch of a fit comes next."""
        self.tell("open_training", to=self._states())

    def begin_batch(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Leave the batch before, and ask each member whether it takes part in this one."""
        if self.in_batch:
            self.leave_batch()
        self.tell("open_batch", batch, batch_idx, dataloader_idx, to=self._states(self.stage))

    def end_batch(self) -> None:
        """Have members read what earlier steps have measured, and tell those in the batch that it has ended."""
        if self.stage == "train":
            self.finish()
        self.tell("close_batch")
        self.in_batch = [(member, state) for member, state in self.in_batch if member.changes_tensors]

    def leave_batch(self) -> None:
        """Have members leave the batch that is still open, if there is one: after an error it has no end."""
        self.tell("abandon_batch")
        self.in_batch = []

    def finish(self) -> None:
        """Have members read what they have measured, and write the rows of the steps before this one."""
        for member in self.members:
            member.finish()
        write_rows(self.loggers, self.logged_step)

    def end_epoch(self) -> None:
        """Read what is put off, and leave the last batch: one that an early end left open gets no end."""
        self.finish()
        self.leave_batch()

    def begin_evaluation(self) -> None:
        """Tell all members that the first batch of an evaluation comes next."""
        self.leave_batch()
        self.tell("open_evaluation", to=self._states(self.stage))

    def end_evaluation(self) -> None:
        """Tell all members that an evaluation has ended."""
        self.leave_batch()
        self.tell("close_evaluation", to=self._states(self.stage))

    def end_training(self) -> None:
        """Tell all members that the training has ended."""
        self.finish()
        self.tell("_end_training", to=self._states())

    def end_run(self, has_failed: bool = False) -> None:
        """Have all members leave, and write what they have logged."""
        for member in list(self.members):
            member.end_run(self, has_failed)
        write_rows(self.loggers)
