"""`Loop`: everything that callbacks ask of what runs the model."""

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from hookboard.auditing import Finding
from hookboard.flow import Flow
from hookboard.replay import CannotRunAgainError, RandomState


class Loop:
    """What runs the model: it answers what callbacks ask, and calls them at each point of the run (`callback.py`).

    `TrainerLoop` does this for a Trainer. Another loop has each attribute too; what has a value here is that of a loop
    in one process that only trains.
    """

    model: nn.Module
    """The model, whose names of modules are those in tags."""
    device: torch.device
    """The device of the model."""
    optimizers: Sequence[Optimizer]
    loggers: Sequence[Logger]
    callbacks: Sequence[Callback]
    """All callbacks of the run, in their order."""
    scaler: GradScaler | None = None
    """The GradScaler that scales the loss; None without one."""
    largest_norm: float = math.inf
    """The norm to which the loop clips the gradients; infinite if it does not."""
    trainer: Trainer | None = None
    """The Trainer, for experiments; None if there is none."""
    train_dataloader: Any = None
    """What gives the batches of the training."""

    logged_step: int
    """The number that loggers write for the optimizer step that the current batch belongs to."""
    is_accumulating: bool
    """Whether that step is still to come when the current batch ends."""
    stage: str
    """The stage that runs now: one of `Stage`, or `sanity_check`."""
    is_running: bool
    """Whether a run is going on."""
    is_fitting: bool = True
    """Whether the run trains; False in an evaluation outside of a fit."""
    batch_to_repeat: tuple[int, int] | None = None
    """The optimizer step and the index of the running batch, if a run continued from now runs it again."""

    steps_left: float = math.inf
    """How many optimizer steps are still to come."""
    log_every_n_steps: int
    """The default cadence; 0 for no logging."""
    has_validation: bool = False
    """Whether the fit validates too."""
    why_not: str | None = None
    """Why nothing can be watched in this run; None if there is no reason."""

    is_rank_zero: bool = True
    """Whether this process writes."""
    world_size: int = 1
    """The number of processes."""
    weights_kept_by: str | None = None
    """What keeps parts of the weights on other ranks, such as `FSDPStrategy`; None if this rank can read all."""
    is_model_parallel: bool = False
    """Whether all ranks must call a module together, because its weights are sharded."""

    def in_precision(self) -> AbstractContextManager[object]:
        """Return a context in which calls of the model have the precision of the run."""
        return nullcontext()

    def on_device(self, batch: Any) -> Any:
        """Return a batch of the data loader as the step gets it."""
        return batch

    def step_again(
        self, batch: Any, batch_idx: int, state: RandomState, backward: int
    ) -> AbstractContextManager[Callable[[], Tensor]]:
        """Prepare to run the training step on a batch once more, which leaves no trace.

        Args:
            batch: as the step got it.
            batch_idx: its index.
            state: the random state before the step.
            backward: under manual optimization, the backward pass to stop at, counted from 1.

        Returns:
            A context with a function that runs the step and returns its loss, without the backward pass.

        Raises:
            CannotRunAgainError: it could leave a trace, or could differ.
        """
        raise CannotRunAgainError("there is no training_step to call again")

    def read_first_step(self, batch: Any, batch_idx: int) -> tuple[list[Finding], Flow]:
        """See `hookboard.auditing.read_first_step`; nothing if there is no step that can be called before its turn."""
        return [], Flow()

    def stop(self) -> None:
        """End the run after the current batch."""
        raise NotImplementedError

    def join(self, callback: Callback) -> None:
        """Call this callback of hookboard too, from now on."""
        raise NotImplementedError

    def leave(self, callback: Callback) -> None:
        """Call this callback of hookboard no longer."""
        raise NotImplementedError

    def weakly(self) -> "Callable[[], Loop | None]":
        """Return a function that gives this loop as long as it is there, and does not keep it there."""
        return weakref.ref(self)
