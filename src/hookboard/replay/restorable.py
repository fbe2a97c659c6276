"""`RestorableCheck`: raises for an object that a training step may change and that cannot be restored."""

import sys
import threading
from collections.abc import Collection, Iterator

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.either_lightning import PACKAGES, is_lightning
from hookboard.layouts import bytes_of

MAX_SAVED_BYTES = 1 << 29
"""Maximum bytes of tensors and arrays that are saved, besides parameters; copying more would take too long (a choice).
Parameters up to this size are always saved."""

MAX_CPU_WEIGHT_BYTES = 1 << 32
"""Maximum bytes of parameters that are saved in the host's memory (a choice)."""

MAX_FREE_MEMORY_SHARE = 0.5
"""Maximum share of a GPU's free memory that all copies may take (a choice)."""

MAX_VISITED_OBJECTS = 200_000
"""Maximum number of objects that are visited; this many take about a second (a choice)."""

_UNCHANGED_LIBRARIES = frozenset({"tokenizers", "sentencepiece", "pandas", "pyarrow", "regex", "numpy", "torch"})
"""Libraries whose compiled objects a step only reads."""

FILE_LIBRARIES = frozenset({"_io", "_csv", "sqlite3", "h5py", "lmdb"})
"""Top-level modules whose objects are open files, or write to one."""

_KNOWN_LIBRARIES = PACKAGES | {"torch", "logging", "hookboard"}
"""Libraries whose objects a step either leaves unchanged, or `State` restores."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Thread, threading.Event, threading.Condition)


class CannotRunAgainError(RuntimeError):
    """Raised where code must not run once more. The message gives the reason as a clause, without a full stop."""


class RestorableCheck:
    """Raises for an object that a step may change and that cannot be restored. It is the `check` of a `State`.

    Args:
        optimizers: the Trainer's optimizers, which are allowed; any other optimizer is refused.
    """

    def __init__(self, optimizers: Collection[Optimizer] = ()) -> None:
        self._optimizers = {id(optimizer) for optimizer in optimizers}
        self._bytes = self._objects = 0
        self._copies: dict[torch.device, int] = {}

    def __call__(self, value: object) -> None:
        """Check one object that the model, its code or the batch holds, and add its size to the totals.

        Raises:
            CannotRunAgainError: it is a file, an iterator, a logger, a lock or another object that cannot be restored,
                or all objects together are too many or too large to save.
        """
        self._objects += 1
        if isinstance(value, nn.Parameter):
            self.add_copy(value)
        elif isinstance(value, Tensor | np.ndarray) and not isinstance(value, np.memmap):
            self._bytes += value.nbytes if isinstance(value, np.ndarray) else bytes_of(value)
        if self._objects > MAX_VISITED_OBJECTS or self._bytes > MAX_SAVED_BYTES:
            raise CannotRunAgainError("the model holds too much in its attributes to put it back")
        what = None if isinstance(value, Tensor | nn.Module | np.ndarray) else self._why_not(value)
        if what is not None:
            raise CannotRunAgainError(f"the model, its code or the batch holds {what}, which cannot be put back")

    def add_copy(self, tensor: Tensor) -> None:
        """Add the size of a tensor of which there will be a copy.

        Raises:
            CannotRunAgainError: the copies would take too much memory.
        """
        if is_lazy(tensor) or tensor.is_meta:
            return
        device = tensor.device
        self._copies[device] = self._copies.get(device, 0) + bytes_of(tensor)
        if self._copies[device] > MAX_SAVED_BYTES and self._copies[device] > _free_bytes(device):
            raise CannotRunAgainError(f"its weights are too large to copy on {device}")

    def _why_not(self, value: object) -> str | None:
        """Return what the object is, as a noun phrase, if it cannot be restored; None if it can."""
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        library = kind.__module__.partition(".")[0]
        if library in FILE_LIBRARIES:
            is_printed = any(value is stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
            return None if is_printed else f"an open file ({name})"
        if isinstance(value, Iterator):
            return f"an iterator ({name})"
        if isinstance(value, Optimizer):
            return None if id(value) in self._optimizers else f"an optimizer of its own ({name})"
        if isinstance(value, torch.amp.GradScaler):
            return f"what steps beside the optimizer ({name})"
        if is_lightning(value, Logger) or kind.__module__.startswith("torch.utils.tensorboard"):
            return f"a logger of its own ({name})"
        if library in _KNOWN_LIBRARIES:
            return None
        if isinstance(value, _LOCKS) or any(
            isinstance(item, _LOCKS) for item in getattr(value, "__dict__", {}).values()
        ):
            return f"an object with a lock or a thread ({name})"
        is_compiled = not hasattr(value, "__dict__") and not hasattr(kind, "__slots__")
        if is_compiled and library not in sys.stdlib_module_names and library not in _UNCHANGED_LIBRARIES:
            return f"an object of a compiled library ({name})"
        return None


def _free_bytes(device: torch.device) -> float:
    if device.type != "cuda":
        return MAX_CPU_WEIGHT_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return MAX_FREE_MEMORY_SHARE * free
