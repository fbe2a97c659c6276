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
    """A run of a model: what callbacks can read of it, and how they take part in it.

    A loop tells each `HookboardCallback` that has joined it the events that `callback.py` lists.
    `TrainerLoop` is the loop of a Trainer, `BareLoop` of a loop written by the user. A subclass sets each attribute
    without a value here; the values here are those of a loop that only trains, in one process.
    """

    model: nn.Module
    """The model. Tags contain the names of its modules."""
    device: torch.device
    """The device of the model."""
    optimizers: Sequence[Optimizer]
    """All optimizers of the run."""
    loggers: Sequence[Logger]
    """The loggers to write to; empty if there is none."""
    scaler: GradScaler | None = None
    """The GradScaler that scales the loss; None if the loss is not scaled."""
    largest_norm: float = math.inf
    """The norm to which gradients are clipped before each optimizer step; infinite if they are not."""
    trainer: Trainer | None = None
    """The Lightning Trainer; None if there is none."""

    logged_step: int
    """The number of the optimizer step that the current batch belongs to, counted from 0: the step axis of loggers."""
    is_accumulating: bool
    """True if no optimizer step follows the current batch, because its gradients are added to those of the next."""
    stage: str
    """The running stage: `train`, `validate`, `test`, `predict` or `sanity_check`."""
    is_running: bool
    """True from the start of the run to its end."""
    is_fitting: bool = True
    """True in a training run, also in its validations; False in an evaluation outside of one."""

    log_every_n_steps: int = 1
    """The number of optimizer steps from one logged step to the next, for callbacks without a number of their own; 0
    for no logging."""
    has_validation: bool = False
    """True if the training run has validations."""
    evaluation_loss: Tensor | None = None
    """The loss of the latest validation, shape (); None if it is not known."""

    is_rank_zero: bool = True
    """True in the process that writes to the loggers."""
    world_size: int = 1
    """The number of processes."""
    weights_kept_by: str | None = None
    """The name of the strategy that keeps parts of the weights on other ranks, such as `FSDPStrategy`; None if this
    rank can read all of them."""
    is_model_parallel: bool = False
    """True if all ranks must call a module together, because its weights are sharded."""

    def __init__(self) -> None:
        self.members: list[Any] = []
        """The callbacks of hookboard that take part in the run."""
        self.in_batch: list[tuple[Any, Any]] = []
        """Who takes part in the running batch, with the state of its stage: only they are told what happens in it. When
        it has ended, those that change tensors stay, until the next begins."""

    def in_precision(self) -> AbstractContextManager[object]:
        """Return a context in which the model runs in the precision of the run, such as autocast."""
        return nullcontext()

    def stop(self) -> None:
        """Ask the run to end after the current batch."""

    def join(self, callback: Any) -> None:
        """Tell this `HookboardCallback` the events of the run from now on; no effect if it has joined already.

        Those that change tensors come first, so that others measure the change.
        """
        if not any(member is callback for member in self.members):
            self.members.append(callback)
            self.members.sort(key=lambda member: not member.changes_tensors)

    def leave(self, callback: Any) -> None:
        """Tell this `HookboardCallback` no more; no effect if it has not joined."""
        self.members[:] = [member for member in self.members if member is not callback]

    # The events of a run, in their order.

    def tell(self, event: str, *given: Any, to: Iterable[tuple[Any, Any]] | None = None) -> None:
        """Call a method of members, for a state of each: by default of those that take part in the running batch."""
        for member, state in [*(self.in_batch if to is None else to)]:
            if not state.has_fault:
                member.hear(state, getattr(member, event), self, state, *given)

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
