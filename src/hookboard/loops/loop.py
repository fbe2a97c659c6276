"""`Loop`: the interface through which callbacks read and control a run."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from hookboard.writers.loggers import write_rows

_FIRST_PENDING = attrgetter("first_pending_step")

_OF_BUSY_MEMBERS = {"before_backward", "after_backward", "before_optimizer_step", "end_batch", "leave_batch"}
"""The events that only members need which measure the batch, or have still to read what they measured."""


class Loop:
    """A run of a model: what callbacks can read of it, and how they take part in it.

    A loop tells each `HookboardCallback` that has joined it the events that `callback.py` lists.
    `TrainerLoop` is the loop of a Trainer, `BareLoop` of a loop written by the user. A subclass sets each attribute
    without a value here; the values here are those of a loop that only trains, in one process.
    """

    members: list[Any]
    """The callbacks of hookboard that take part."""
    model: nn.Module
    """The model. Tags contain the names of its modules."""
    device: torch.device
    """The device of the model."""
    optimizers: Sequence[Optimizer]
    """All optimizers of the run."""
    loggers: Sequence[Logger]
    """The loggers to write to; empty if there is none."""
    callbacks: Sequence[Callback]
    """All callbacks of the run, also those not of hookboard, in the order in which they are called."""
    scaler: GradScaler | None = None
    """The GradScaler that scales the loss; None if the loss is not scaled."""
    largest_norm: float = math.inf
    """The norm to which gradients are clipped before each optimizer step; infinite if they are not."""
    trainer: Trainer | None = None
    """The Lightning Trainer; None if there is none."""
    train_dataloader: Any = None
    """The data loader of the training batches; None if it is not known."""

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

    steps_left: float = math.inf
    """The number of optimizer steps still to come; infinite if it is not known."""
    log_every_n_steps: int
    """The number of optimizer steps from one logged step to the next, for callbacks without a number of their own; 0
    for no logging."""
    has_validation: bool = False
    """True if the training run has validations."""
    evaluation_loss: Tensor | None = None
    """The loss of the latest validation, shape (); None if it is not known."""
    why_not: str | None = None
    """Why callbacks cannot measure anything in this run, as a clause; None if they can."""

    is_rank_zero: bool = True
    """True in the process that writes to the loggers."""
    world_size: int = 1
    """The number of processes."""
    rank: int = 0
    """The number of this process."""
    weights_kept_by: str | None = None
    """The name of the strategy that keeps parts of the weights on other ranks, such as `FSDPStrategy`; None if this
    rank can read all of them."""
    is_model_parallel: bool = False
    """True if all ranks must call a module together, because its weights are sharded."""

    def in_precision(self) -> AbstractContextManager[object]:
        """Return a context in which the model runs in the precision of the run, such as autocast."""
        return nullcontext()

    def on_device(self, batch: Any) -> Any:
        """Return a batch of the data loader on the model's device, as `training_step` gets it."""
        return batch

    def stop(self) -> None:
        """Ask the run to end after the current batch."""
        raise NotImplementedError

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

    def tell(self, event: str, *given: Any) -> None:
        """Tell all members an event, see `HookboardCallback`; in the middle of a batch those that take part in it."""
        for member in self.members:
            if member.is_busy or event not in _OF_BUSY_MEMBERS:
                member.hear(event, self, *given)

    def begin_batch(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Tell all members to leave the batch before, and then that another begins.

        Before a training batch, rows of steps that are over are written: those with their validation, of which no
        member has still something to read.
        """
        self.tell("leave_batch")
        if self.stage == "train":
            write_rows(self.loggers, min([self.logged_step, *map(_FIRST_PENDING, self.members)]))
        self.tell("begin_batch", batch, batch_idx, dataloader_idx)

    def end_training(self) -> None:
        """Tell all members that the training has ended, and write the last rows."""
        try:
            self.tell("end_training")
        finally:
            write_rows(self.loggers)

    def end_run(self, has_failed: bool = False) -> None:
        """Have all members leave, and write what they have logged."""
        try:
            for member in list(self.members):
                member.end_run(self, has_failed)
        finally:
            write_rows(self.loggers)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Switch the members' hooks on modules and gradients off inside the context."""
        states = [state for member in self.members for state in member.states if state.is_due]
        for state in states:
            state.observe(False)
        try:
            yield
        finally:
            for state in states:
                state.observe(True)
