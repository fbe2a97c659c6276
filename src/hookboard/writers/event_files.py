"""The event files of a run: TensorBoard's, or others that are written for the time of a fit."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger

from hookboard.writers.loggers import Loggers, kind_of
from hookboard.writers.tensorboard import write_to_tensorboard


class _TemporaryLogger(TensorBoardLogger):
    """Writes event files that are removed at the end of the fit."""


class EventFiles:
    """The event files that a callback writes: those of its TensorBoard logger, or else temporary ones until `close`."""

    def __init__(self, loggers: Loggers) -> None:
        self._loggers = loggers.loggers
        self._own: _TemporaryLogger | None = None
        if not self._written():
            self._own = _TemporaryLogger(tempfile.mkdtemp(prefix="hookboard_"), name="run", version="")
            self._loggers.append(self._own)

    def _written(self) -> list[Any]:
        return [logger for logger in self._loggers if kind_of(logger).write is write_to_tensorboard]

    def folder(self) -> Path | None:
        """Flush what was written so far, and return the folder of the files; None if writing to it has failed."""
        written = self._written()
        if not written:
            return None
        written[-1].experiment.flush()
        return Path(written[-1].experiment.log_dir)

    def close(self) -> None:
        """Remove the logger that was added, and its folder; a second call does nothing."""
        if self._own is not None:
            if self._own in self._loggers:
                self._loggers.remove(self._own)
            self._own.finalize("success")
            shutil.rmtree(self._own.save_dir, ignore_errors=True)
