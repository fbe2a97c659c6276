"""`Restorable`: tells whether what a step may change can be put back."""

import sys
import threading
from collections.abc import Collection, Iterator

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

MOST_BYTES = 1 << 29
"""So many bytes of tensors and arrays, besides the parameters, are saved at most: to copy more would take too long (a
choice)."""

MOST_OF_WEIGHTS = 1 << 32
"""So many bytes of parameters in the host's memory are saved at most (a choice)."""

MOST_OF_FREE = 0.5
"""Of the memory that is free on a GPU, the copy of the parameters takes at most this share (a choice)."""

MOST_OBJECTS = 200_000
"""So many objects are looked at for what to save, which takes about a second (a choice)."""

_OF_OTHERS = frozenset({"tokenizers", "sentencepiece", "pandas", "pyarrow", "regex", "numpy", "torch"})
"""Libraries whose compiled objects a step reads and does not change."""

OF_FILES = frozenset({"_io", "_csv", "sqlite3", "h5py", "lmdb"})
"""Libraries whose objects are files, or write to one."""

_OURS = frozenset({"lightning", "lightning_fabric", "pytorch_lightning", "torch", "logging", "hookboard"})
"""Libraries whose objects are known to be left alone, or put back."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Thread, threading.Event, threading.Condition)


class CannotRunAgainError(RuntimeError):
    """The step must not be run again. The message says why, as the end of a sentence."""


class Restorable:
    """Raises for an object that a step may change and that cannot be restored.

    Args:
        optimizers: those of the Trainer; what they do is known.
    """

    def __init__(self, optimizers: Collection[Optimizer] = ()) -> None:
        self._optimizers = {id(optimizer) for optimizer in optimizers}
        self._bytes = self._objects = 0
        self._weights: dict[torch.device, int] = {}

    def __call__(self, value: object) -> None:
        """Look at one of the objects that the model, its code or the batch holds.

        Raises:
            CannotRunAgainError: it cannot be restored, or there is too much of it.
        """
        self._objects += 1
        if isinstance(value, nn.Parameter):
            self._add_weight(value)
        elif isinstance(value, Tensor | np.ndarray) and not isinstance(value, np.memmap):
            self._bytes += value.nbytes if isinstance(value, np.ndarray) or not value.is_nested else 0
        if self._objects > MOST_OBJECTS or self._bytes > MOST_BYTES:
            raise CannotRunAgainError("the model holds too much in its attributes to put it back")
        what = None if isinstance(value, Tensor | nn.Module | np.ndarray) else self._fault_of(value)
        if what is not None:
            raise CannotRunAgainError(f"the model, its code or the batch holds {what}, which cannot be put back")

    def _add_weight(self, weight: nn.Parameter) -> None:
        if is_lazy(weight) or weight.is_meta:
            return
        device = weight.device
        self._weights[device] = self._weights.get(device, 0) + weight.nbytes
        if self._weights[device] > MOST_BYTES and self._weights[device] > _room_on(device):
            raise CannotRunAgainError(f"its weights are too large to copy on {device}")

    def _fault_of(self, value: object) -> str | None:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        library = kind.__module__.partition(".")[0]
        if library in OF_FILES:
            is_printed = any(value is stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
            return None if is_printed else f"an open file ({name})"
        if isinstance(value, Iterator):
            return f"an iterator ({name})"
        if isinstance(value, Optimizer):
            return None if id(value) in self._optimizers else f"an optimizer of its own ({name})"
        if isinstance(value, torch.amp.GradScaler):
            return f"what steps beside the optimizer ({name})"
        if isinstance(value, Logger) or kind.__module__.startswith("torch.utils.tensorboard"):
            return f"a logger of its own ({name})"
        if library in _OURS:
            return None
        if isinstance(value, _LOCKS) or any(
            isinstance(item, _LOCKS) for item in getattr(value, "__dict__", {}).values()
        ):
            return f"an object with a lock or a thread ({name})"
        is_compiled = not hasattr(value, "__dict__") and not hasattr(kind, "__slots__")
        if is_compiled and library not in sys.stdlib_module_names and library not in _OF_OTHERS:
            return f"an object of a compiled library ({name})"
        return None


def _room_on(device: torch.device) -> float:
    if device.type != "cuda":
        return MOST_OF_WEIGHTS
    free, _ = torch.cuda.mem_get_info(device)
    return MOST_OF_FREE * free
