"""What each callback has of its own: everything that it may override. `life.py` says when it is called."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.distributed import is_available, is_initialized
from torch.optim import Optimizer

from hookboard.callbacks.trainer import is_fast_dev_run, log_every_n_steps
from hookboard.callbacks.watch import Selection, Watch
from hookboard.sites import Stage

W = TypeVar("W", bound=Watch)


class NothingToShowError(ValueError):
    """The model or its data give nothing that the callback could show: no fault, but no reason to go on either."""


class Duties(Callback, ABC, Generic[W]):
    """What a callback selects, when it watches, and what it does then."""

    verb = "shows"
    """What it does, used in messages."""

    undoes_with_delay = False
    """Whether what holds during a batch is undone before the next batch, not at the end of this one.

    Then it still holds while other callbacks see the end of the batch, whatever their order.
    """

    may_stop_the_run = False
    """Whether an error goes on to the Trainer."""

    # What a callback says of itself.

    @abstractmethod
    def _stages(self, trainer: Trainer) -> Sequence[Stage]:
        """Where it watches."""

    @abstractmethod
    def _select(self, pl_module: LightningModule) -> Selection:
        """What it watches; raises ValueError where its configuration does not fit the model."""

    @abstractmethod
    def _watch(self, trainer: Trainer, pl_module: LightningModule, watch: Watch) -> W:
        """The same watch with what this callback needs beside, nothing hooked yet."""

    def _reset(self) -> None:
        """Forget the last run."""

    def _why_not(self, trainer: Trainer, pl_module: LightningModule) -> str | None:
        """Why nothing can be watched in this run, if so."""
        if is_fast_dev_run(trainer):
            return "fast_dev_run has no log to write to"
        if not trainer.loggers:
            return "the Trainer has no logger"
        if trainer.world_size > 1 and not (is_available() and is_initialized()):
            return (
                f"the Trainer has {trainer.world_size} processes, but there is no process group to merge what they "
                "measure (torch.distributed is not initialized)"
            )
        return None

    def _takes_part(self, trainer: Trainer) -> bool:
        """Whether this rank watches."""
        return True

    def _cadence(self, trainer: Trainer) -> int:
        """The optimizer steps from one that is due to the next."""
        return log_every_n_steps(trainer)

    def written_tags(self) -> Iterable[str]:
        """The tags that it writes in the run that has started, as far as they are known before the first batch."""
        return ()

    # What it does at each point of its life.

    def _attach(self, trainer: Trainer, pl_module: LightningModule, watch: W) -> None:
        """Hook what is hooked as long as the watch lives; also anew, when the selection has changed."""

    def _begin_training(self, trainer: Trainer, watch: W) -> None:
        """Before the first batch of a fit: by now a checkpoint has been loaded."""

    def _begin_loop(self, trainer: Trainer, watch: W) -> None:
        """Before the first batch of an evaluation."""

    @abstractmethod
    def _wants(self, trainer: Trainer, watch: W, batch_idx: int, dataloader_idx: int) -> bool:
        """Whether this batch is watched."""

    @abstractmethod
    def _begin_batch(self, trainer: Trainer, pl_module: LightningModule, watch: W, batch: Any) -> None:
        """Before a batch that is watched."""

    def _before_backward(self, watch: W) -> None:
        """Before the backward pass of a batch that is watched."""

    def _after_backward(self, watch: W) -> None:
        """After the backward pass of a batch that is watched."""

    def _before_optimizer_step(self, watch: W, optimizer: Optimizer) -> None:
        """Before a step of this optimizer, in a batch that is watched."""

    def _end_batch(self, trainer: Trainer, watch: W) -> None:
        """After a batch that was watched; in training the optimizer has stepped, unless it accumulates."""

    def _end_loop(self, trainer: Trainer, watch: W) -> None:
        """After the last batch of an evaluation."""

    def _end_training(self, trainer: Trainer, watch: W) -> None:
        """After the last batch of a fit."""

    def _stays_after_a_fault(self, watch: W) -> bool:
        """Whether the watch must live on, because other ranks wait for it."""
        return False
