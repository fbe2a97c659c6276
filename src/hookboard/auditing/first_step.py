"""Reads the first training step of a fit before its turn, in a run of our own that leaves no trace."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch import Tensor

from hookboard.auditing.optimizing import findings_of_optimizers
from hookboard.auditing.reading import Reader
from hookboard.auditing.rules import Finding
from hookboard.flow import Flow
from hookboard.messages import inform, warn
from hookboard.replay import CannotRunAgainError, run_step, undisturbed
from hookboard.torch_private import CollectiveError


def read_first_step(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
) -> tuple[list[Finding], Flow]:
    """Read the step that is about to run, and its optimizers; where that cannot be, one line says why.

    Args:
        trainer: the Trainer.
        pl_module: its LightningModule.
        batch: the batch that `training_step` will get.
        batch_idx: its index.

    Returns:
        What is wrong with it, alarms first, and which layer's output flows into which; nothing if it was not read.
    """
    found, reached, flow = _found_in_step(trainer, pl_module, batch, batch_idx)
    try:
        found += findings_of_optimizers(trainer, pl_module, reached)
    except CannotRunAgainError as why:
        inform(f"the schedule was not read: {why}.")
    except Exception as error:
        warn(f"the optimizers were not read: {type(error).__name__}: {error}")
    return found, flow


def _found_in_step(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
) -> tuple[list[Finding], set[str] | None, Flow]:
    """Return what is wrong, the parameters that a gradient reaches (None if the step was not read), and the flow."""
    try:
        return _read(trainer, pl_module, batch, batch_idx)
    except (CannotRunAgainError, CollectiveError) as why:
        inform(f"the training step was not read: {why}.")
    except Exception as error:
        warn(f"the training step was not read: {type(error).__name__}: {error}")
    return [], None, Flow()


def _read(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
) -> tuple[list[Finding], set[str], Flow]:
    _check_strategy(trainer)
    is_manual = not pl_module.automatic_optimization
    with undisturbed(pl_module, batch, trainer=trainer, is_whole_step=True, is_strict=True):
        reader = Reader(pl_module, batch, at_backward=None if is_manual else _at_own_backward)
        try:
            try:
                with reader.reading():
                    run_step(trainer, pl_module, batch, batch_idx, reader.take)
            except Exception:
                # No backward pass is made, so code after it that reads gradients fails. What came before is read.
                if not (is_manual and reader.losses):
                    raise
            return reader.findings(), reader.reached, reader.flow()
        finally:
            reader.forget()


def _at_own_backward(loss: Tensor) -> None:
    raise CannotRunAgainError("it calls backward() itself")


def _check_strategy(trainer: Trainer) -> None:
    strategy = trainer.strategy
    if isinstance(strategy, DeepSpeedStrategy) or not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise CannotRunAgainError(f"{type(strategy).__name__} splits the model, and one process cannot run it alone")
