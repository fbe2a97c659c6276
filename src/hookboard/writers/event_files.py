"""The event files of a run: TensorBoard's, or others that are written for the time of a fit."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.writers.loggers import Loggers
from hookboard.writers.registry import place_of


class _TemporaryLogger(TensorBoardLogger):
    """Writes event files that are removed at the end of the fit; its `place_of` is "", so nobody is sent to them."""


@place_of.register
def _place(logger: _TemporaryLogger) -> str:
    return ""


class EventFiles:
    """The event files that a callback writes: those of its TensorBoard logger, or else temporary ones until `close`."""

    def __init__(self, loggers: Loggers) -> None:
        self._loggers = loggers.loggers
        self._own: _TemporaryLogger | None = None
        if not any(_is_tensorboard(logger) for logger in self._loggers):
            self._own = _TemporaryLogger(tempfile.mkdtemp(prefix="hookboard_"), name="run", version="")
            self._loggers.append(self._own)

    def folder(self) -> Path | None:
        """Flush what was written so far, and return the folder of the files; None if writing to it has failed."""
        written: list[Any] = [logger for logger in self._loggers if _is_tensorboard(logger)]
        if not written:
            return None
        written[-1].experiment.flush()
        return Path(written[-1].experiment.log_dir)

    def add(self, tag: str, values: Mapping[int, float]) -> None:
        """Write a scalar, given as step to value, unless the files are the user's; any thread may call it."""
        if self._own is not None:
            for step, value in values.items():
                self._own.experiment.add_scalar(tag, value, step)

    def close(self) -> None:
        """Remove the logger that was added, and its folder; a second call does nothing."""
        if self._own is not None:
            if self._own in self._loggers:
                self._loggers.remove(self._own)
            self._own.finalize("success")
            shutil.rmtree(self._own.save_dir, ignore_errors=True)


def _is_tensorboard(logger: Any) -> bool:
    return isinstance(getattr(logger, "experiment", None), SummaryWriter)
