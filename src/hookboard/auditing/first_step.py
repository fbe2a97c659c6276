"""Reads the first training step of a fit before its turn, in a run of our own that leaves no trace."""

import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.auditing.optimizing import findings_of_optimizers
from hookboard.auditing.reading import Reader
from hookboard.auditing.rules import Finding
from hookboard.messages import inform, warn
from hookboard.replay import CannotRunAgainError, step_before
from hookboard.torch_private import CollectiveError

MOST_BYTES = 1 << 29
"""So many bytes of tensors and arrays, besides the parameters, are saved at most: to copy more would take too long (a
choice)."""

MOST_OBJECTS = 200_000
"""So many objects are looked at for what to save, which takes about a second (a choice)."""

_OF_OTHERS = frozenset({"tokenizers", "sentencepiece", "pandas", "pyarrow", "regex", "numpy", "torch"})
"""Libraries whose compiled objects a step reads and does not change."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Thread, threading.Event, threading.Condition)


def read_first_step(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> list[Finding]:
    """Read the step that is about to run, and its optimizers; where that cannot be, one line says why.

    Args:
        trainer: the Trainer.
        pl_module: its LightningModule.
        batch: the batch that `training_step` will get.
        batch_idx: its index.

    Returns:
        What is wrong with it, alarms first.
    """
    found, reached = _found_in_step(trainer, pl_module, batch, batch_idx)
    try:
        found += findings_of_optimizers(trainer, pl_module, reached, Restorable(trainer))
    except CannotRunAgainError as why:
        inform(f"the schedule was not read: {why}.")
    except Exception as error:
        warn(f"the optimizers were not read: {type(error).__name__}: {error}")
    return found


def _found_in_step(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
) -> tuple[list[Finding], set[str] | None]:
    """Return what is wrong, and the parameters that a gradient reaches; None if the step was not read."""
    try:
        return _read(trainer, pl_module, batch, batch_idx)
    except (CannotRunAgainError, CollectiveError) as why:
        inform(f"the training step was not read: {why}.")
    except Exception as error:
        warn(f"the training step was not read: {type(error).__name__}: {error}")
    return [], None


def _read(trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> tuple[list[Finding], set[str]]:
    _check_strategy(trainer)
    is_manual = not pl_module.automatic_optimization
    with step_before(trainer, pl_module, batch, batch_idx, Restorable(trainer)) as run:
        reader = Reader(pl_module, batch, at_backward=None if is_manual else _at_own_backward)
        try:
            try:
                with reader.reading(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the real step gives them
                    run(reader.take)
            except Exception:
                # No backward pass is made, so code after it that reads gradients fails. What came before is read.
                if not (is_manual and reader.losses):
                    raise
            return reader.findings(), reader.reached
        finally:
            reader.forget()


def _at_own_backward(loss: Tensor) -> None:
    raise CannotRunAgainError("it calls backward() itself")


def _check_strategy(trainer: Trainer) -> None:
    strategy = trainer.strategy
    if isinstance(strategy, DeepSpeedStrategy) or not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise CannotRunAgainError(f"{type(strategy).__name__} splits the model, and one process cannot run it alone")


class Restorable:
    """Raises for an object that a step may change and that cannot be restored.

    Args:
        trainer: the Trainer; what its optimizers do is known.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._optimizers = {id(optimizer) for optimizer in trainer.optimizers}
        self._bytes = self._objects = 0

    def __call__(self, value: object) -> None:
        """Look at one of the objects that the model or the batch holds.

        Raises:
            CannotRunAgainError: it cannot be restored, or there is too much of it.
        """
        self._objects += 1
        if isinstance(value, Tensor | np.ndarray) and not isinstance(value, nn.Parameter | np.memmap):
            self._bytes += value.nbytes if isinstance(value, np.ndarray) or not value.is_nested else 0
        if self._objects > MOST_OBJECTS or self._bytes > MOST_BYTES:
            raise CannotRunAgainError("the model holds too much in its attributes to put it back")
        what = None if isinstance(value, Tensor | nn.Module | np.ndarray) else self._fault_of(value)
        if what is not None:
            raise CannotRunAgainError(f"the model or the batch holds {what}, which cannot be put back")

    def _fault_of(self, value: object) -> str | None:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, Iterator):
            return f"an iterator ({name})"
        if isinstance(value, Optimizer):
            return None if id(value) in self._optimizers else f"an optimizer of its own ({name})"
        if isinstance(value, torch.amp.GradScaler):
            return f"what steps beside the optimizer ({name})"
        if isinstance(value, Logger) or kind.__module__.startswith("torch.utils.tensorboard"):
            return f"a logger of its own ({name})"
        library = kind.__module__.partition(".")[0]
        if library in ("lightning", "lightning_fabric", "pytorch_lightning", "torch", "logging", "hookboard"):
            return None
        if isinstance(value, _LOCKS) or any(
            isinstance(item, _LOCKS) for item in getattr(value, "__dict__", {}).values()
        ):
            return f"an object with a lock or a thread ({name})"
        is_compiled = not hasattr(value, "__dict__") and not hasattr(kind, "__slots__")
        if is_compiled and library not in sys.stdlib_module_names and library not in _OF_OTHERS:
            return f"an object of a compiled library ({name})"
        return None
