"""`Loggers`: writes entries to all loggers of a run; a logger that fails is left out from then on."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.base.messages import warn, warn_switched_off
from hookboard.writers.entry import Entry, joined
from hookboard.writers.registry import folder_of, known_type, place_of, write

_REFUSED = "_hookboard_refused"
"""The attribute of a logger with the parts of entries that it could not take: one warning for each, however many
callbacks write it. Not a WeakKeyDictionary: its callbacks may run in the garbage collector, where Python drops a
KeyboardInterrupt."""

_ROWS = "_hookboard_rows"
"""The attribute of a logger with the entries that wait to be written to it, by step, each with the `Loggers` that has
left it, in whatever thread: one of the user's may have finished the job of a callback."""


class Loggers:
    """The loggers that one callback writes to. There is one warning if a logger cannot take something, or fails."""

    def __init__(self, loggers: Iterable[Logger], owner: str) -> None:
        self.loggers = list(loggers)
        self.are_given = bool(self.loggers)
        """True also after all of them have failed, which takes them out of `loggers`."""
        self.owner = owner

    @property
    def places(self) -> list[str]:
        """Where a person finds what was written, see `place_of`: one line for each logger that has a place."""
        return [place for logger in self.loggers if (place := place_of(logger))]

    def places_of_page(self, tag: str) -> list[str]:
        """Return where the page of a tag is: its file, or the place of a logger that keeps files elsewhere."""
        taking = [logger for logger in self.loggers if known_type(logger) is not None and place_of(logger)]
        return [
            str(Path(folder, f"{tag}.html")) if (folder := folder_of(logger)) else place_of(logger) for logger in taking
        ]

    def write(self, entry: Entry) -> None:
        """Write an entry to TensorBoard; other loggers get it from `write_rows`.

        There it is joined with what other callbacks write at the same step.
        """
        for logger in list(self.loggers):
            if _takes_several(logger):
                self.write_row(logger, entry, [self])
            else:
                vars(logger).setdefault(_ROWS, {}).setdefault(entry.step, []).append((self, entry))

    def write_row(self, logger: Logger, entry: Entry, owners: "Sequence[Loggers]") -> None:
        """Write to one logger an entry that several owners have made together, unless it has failed for all of them.

        If it fails, the owners leave it out from now on. One that made several entries is there several times.
        """
        owners = [owner for owner in dict.fromkeys(owners) if logger in owner.loggers]
        if not owners:
            return
        name, names = type(logger).__name__, " and ".join(dict.fromkeys(owner.owner for owner in owners))
        try:
            refused = write(logger, entry)
        except Exception as error:  # a logger may fail in any way, as without a network; others still get the entry
            for owner in owners:
                owner.loggers.remove(logger)
            warn_switched_off(f"writing {names}'s values to {name}", error)
            return
        said: set[str] = vars(logger).setdefault(_REFUSED, set())
        for what in refused:
            if what not in said:
                said.add(what)
                warn(f"{names}: {name} does not support {what}, so they are left out there.")


def write_rows(loggers: Iterable[Logger], before: float = math.inf) -> None:
    """Write the entries that `Loggers.write` has left at these loggers: one joined entry for each logger and step.

    What was left for the step `before` and later ones goes on waiting: more of it may come.
    """
    for logger in loggers:
        rows: dict[int, list[tuple[Loggers, Entry]]] = vars(logger).get(_ROWS, {})
        for step in sorted(step for step in list(rows) if step < before):
            owners, entries = zip(*rows.pop(step), strict=True)
            owners[0].write_row(logger, joined(entries), owners)


def _takes_several(logger: Logger) -> bool:
    """Return True if the logger may get several entries of one step, which only TensorBoard's does."""
    writer = write.dispatch(type(logger))
    if writer not in (write.dispatch(TensorBoardLogger), write.dispatch(object)):
        return False
    try:
        return isinstance(getattr(logger, "experiment", None), SummaryWriter)
    except Exception:  # the same error is reported when an entry is written
        return False
