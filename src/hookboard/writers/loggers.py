"""`Loggers`: writes entries to all loggers of a run; a logger that fails is left out. `EventFiles`: where they lie."""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.base.messages import warn, warn_switched_off
from hookboard.writers.entry import Entry, joined
from hookboard.writers.lightning_loggers import (
    place_beside_csv,
    place_in_comet,
    place_in_mlflow,
    place_in_wandb,
    write_to_comet,
    write_to_csv,
    write_to_mlflow,
    write_to_wandb,
)
from hookboard.writers.tensorboard import place_in_tensorboard, write_to_tensorboard


class Kind(NamedTuple):
    """How one kind of logger is written to."""

    write: Callable[[Any, Entry], list[str]]  # returns the names of the parts that it left out, as "histograms"
    place_of: Callable[[Any], str]  # where a person finds it: a command, a folder, an address; "" if unknown


KINDS = {
    "CometLogger": Kind(write_to_comet, place_in_comet),
    "CSVLogger": Kind(write_to_csv, place_beside_csv),
    "MLFlowLogger": Kind(write_to_mlflow, place_in_mlflow),
    "TensorBoardLogger": Kind(write_to_tensorboard, place_in_tensorboard),
    "_TemporaryLogger": Kind(write_to_tensorboard, lambda logger: ""),  # nobody is sent there
    "WandbLogger": Kind(write_to_wandb, place_in_wandb),
}
"""By the name of the class, because pytorch_lightning has loggers of the same names; subclasses count."""


def kind_of(logger: Any) -> Kind:
    """Return how to write to a logger; to one of an unknown kind, by its public methods."""
    for cls in type(logger).__mro__:
        if cls.__name__ in KINDS:
            return KINDS[cls.__name__]
    is_tensorboard = isinstance(getattr(logger, "experiment", None), SummaryWriter)
    return KINDS["TensorBoardLogger"] if is_tensorboard else Kind(_write_by_methods, folder_of)


def folder_of(logger: Any) -> str:
    """Return the folder that a logger writes to; "" if it has none."""
    return str(getattr(logger, "log_dir", None) or "")


_REFUSED = "_hookboard_refused"
"""The attribute of a logger with the parts of entries that it could not take: one warning for each. Not a
WeakKeyDictionary: its callbacks may run in the garbage collector, where Python drops a KeyboardInterrupt."""

_ROWS = "_hookboard_rows"
"""The attribute of a logger with the entries that wait to be written to it, by step, each with its `Loggers`."""


class Loggers:
    """The loggers that one callback writes to. There is one warning if a logger cannot take something, or fails."""

    def __init__(self, loggers: Iterable[Logger], owner: str) -> None:
        self.loggers = list(loggers)
        self.are_given = bool(self.loggers)  # also after all of them have failed, which takes them out of `loggers`
        self.owner = owner

    @property
    def places(self) -> list[str]:
        """Where a person finds what was written, see `Kind`: one line for each logger that has a place."""
        return [place for logger in self.loggers if (place := kind_of(logger).place_of(logger))]

    def places_of_page(self, tag: str) -> list[str]:
        """Return where the page of a tag is: its file, or the place of a logger that keeps files elsewhere."""
        known = [(logger, kind) for logger in self.loggers if (kind := kind_of(logger)).write is not _write_by_methods]
        places = [(folder_of(logger), place) for logger, kind in known if (place := kind.place_of(logger))]
        return [str(Path(folder, f"{tag}.html")) if folder else place for folder, place in places]

    def write(self, entry: Entry) -> None:
        """Write an entry to TensorBoard; `write_rows` gives it to other loggers, joined with the others of its step."""
        for logger in list(self.loggers):
            if kind_of(logger).write is write_to_tensorboard:
                _write_row(logger, entry, [self])
            else:
                vars(logger).setdefault(_ROWS, {}).setdefault(entry.step, []).append((self, entry))


def write_rows(loggers: Iterable[Logger], before: float = math.inf) -> None:
    """Write what `Loggers.write` has left of steps below `before`, joined by step; later ones wait for more."""
    for logger in loggers:
        if rows := vars(logger).get(_ROWS):
            for step in sorted(step for step in list(rows) if step < before):  # a list: other threads may add to it
                owners, entries = zip(*rows.pop(step), strict=True)
                _write_row(logger, joined(entries), dict.fromkeys(owners))


def _write_row(logger: Logger, entry: Entry, owners: Iterable[Loggers]) -> None:
    """Write the entry that several owners have made together; if that fails, they leave the logger out from now on."""
    owners = [owner for owner in owners if logger in owner.loggers]
    try:
        refused = kind_of(logger).write(logger, entry) if owners else []
    except Exception as error:  # a logger may fail in any way, as without a network; others still get the entry
        for owner in owners:
            owner.loggers.remove(logger)
        warn_switched_off(f"writing {_names(owners)}'s values to {type(logger).__name__}", error)
        return
    said: set[str] = vars(logger).setdefault(_REFUSED, set())
    for what in refused:
        if what not in said:
            said.add(what)
            warn(f"{_names(owners)}: {type(logger).__name__} does not support {what}, so they are left out there.")


def _names(owners: Iterable[Loggers]) -> str:
    return " and ".join(dict.fromkeys(owner.owner for owner in owners))


def _write_by_methods(logger: Logger, entry: Entry) -> list[str]:
    """Write the scalars by `log_metrics`, and the pictures by `log_image` if the logger has it."""
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    refused = [name for name in ("histograms", "texts", "tables", "pages") if getattr(entry, name)]
    log_image = getattr(logger, "log_image", None)
    if log_image is None:
        return refused + (["pictures"] if entry.pictures else [])
    for tag, picture in entry.pictures.items():
        log_image(key=tag, images=[picture.image().convert("RGB")], step=entry.step, caption=[picture.caption])
    return refused


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
