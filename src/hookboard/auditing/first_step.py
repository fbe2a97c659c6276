"""Finds faults in the first training step of a fit: runs it once before its turn, and restores everything."""

import math
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch import Tensor

from hookboard.auditing.optimizing import Outsider, findings_of_optimizers, outsiders
from hookboard.auditing.reading import Reader
from hookboard.auditing.rules import Finding
from hookboard.either_lightning import is_lightning
from hookboard.layers import Flow
from hookboard.messages import inform, warn
from hookboard.replay import CannotRunAgainError, run_step, undisturbed
from hookboard.torch_private import CollectiveError


class FirstStep(NamedTuple):
    """What is known of the first training step; by default nothing.

    Args:
        findings: what is wrong in it.
        flow: which layer's output flows into which.
        constant_loss: the least loss of a model that gives every sample the same output; NaN if it is not known.
    """

    findings: list[Finding]
    flow: Flow
    constant_loss: float = math.nan


def read_first_step(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> FirstStep:
    """Find faults in the step that is about to run, and in its optimizers and schedulers.

    If the step or the schedule cannot be run without a trace, or our code fails, one line says so.

    Args:
        trainer: the Trainer.
        pl_module: its LightningModule.
        batch: the batch that `training_step` will get.
        batch_idx: its index.

    Returns:
        The findings, the flow and the constant loss; if the step was not traced, only findings of the optimizers.
    """
    first, reached = FirstStep([], Flow()), None
    outside: list[Outsider] = []
    try:
        first, reached, outside = _traced(trainer, pl_module, batch, batch_idx)
    except (CannotRunAgainError, CollectiveError) as why:
        inform(f"the training step was not read: {why}.")
    except Exception as error:
        warn(f"the training step was not read: {type(error).__name__}: {error}")
    try:
        first.findings.extend(findings_of_optimizers(trainer, pl_module, reached, outside))
    except CannotRunAgainError as why:
        inform(f"the schedule was not read: {why}.")
    except Exception as error:
        warn(f"the optimizers were not read: {type(error).__name__}: {error}")
    return first


def _traced(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
) -> tuple[FirstStep, set[str], list[Outsider]]:
    """Run the step, and return what is known of it, and the parameters that a gradient reaches.

    These are the names of the model's, and those that the model does not have, see `Reader.outside`.

    Raises:
        CannotRunAgainError: the step cannot be run by this process alone, or what it changes cannot be restored.
    """
    strategy = trainer.strategy
    if is_lightning(strategy, DeepSpeedStrategy) or not is_lightning(strategy, SingleDeviceStrategy, DDPStrategy):
        raise CannotRunAgainError(f"{type(strategy).__name__} splits the model, and one process cannot run it alone")
    is_manual = not pl_module.automatic_optimization
    with undisturbed(pl_module, batch, trainer=trainer, is_whole_step=True, is_strict=True):
        reader = Reader(pl_module, batch, at_backward=None if is_manual else _at_own_backward)
        try:
            try:
                with reader.reading():
                    run_step(trainer, pl_module, batch, batch_idx, reader.take_loss)
            except Exception:
                # Under manual optimization code that uses gradients fails here, as there was no backward pass.
                if not (is_manual and reader.losses):
                    raise
            first = FirstStep(reader.findings(), reader.flow(), reader.constant_loss())
            return first, reader.reached, outsiders(pl_module, reader.outside)
        finally:
            reader.forget()


def _at_own_backward(loss: Tensor) -> None:
    """Raise, in place of a `backward()` that `training_step` calls under automatic optimization."""
    raise CannotRunAgainError("it calls backward() itself")
