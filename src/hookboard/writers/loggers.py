"""`Loggers`: writes entries to all loggers of a run; a logger that fails is left out from then on."""

import functools
from collections.abc import Iterable

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.messages import hand_over, warn, warn_switched_off
from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write

_REFUSED = "_hookboard_refused"
"""The attribute of a logger with the parts of entries that it could not take: one warning for each, however many
callbacks write it. Not a WeakKeyDictionary: its callbacks may run in the garbage collector, where Python drops a
KeyboardInterrupt."""


class Loggers:
    """The loggers that one callback writes to. There is one warning if a logger cannot take something, or fails.

    Args:
        loggers: the loggers of the Trainer.
        owner: the callback's name, used in warnings.
    """

    def __init__(self, loggers: Iterable[Logger], owner: str) -> None:
        self._loggers = list(loggers)
        self._owner = owner
        self._in_any_thread: list[Logger] | None = None

    @property
    def places(self) -> list[str]:
        """Where a person finds what was written, see `place_of`: one line for each logger that has a place."""
        return [place for logger in self._loggers if (place := place_of(logger))]

    def prepare(self) -> None:
        """Create the loggers' experiments, such as event files, in this thread; further calls do nothing.

        The training thread must call it before another thread may write: until then, `write` hands all entries over to
        the training thread.
        """
        if self._in_any_thread is None:
            self._in_any_thread = [logger for logger in self._loggers if _takes_in_any_thread(logger)]

    def write(self, entry: Entry) -> None:
        """Write an entry to each logger.

        Any thread may call it. Loggers that only the training thread may use are left to that thread (`hand_over`).
        """
        for logger in list(self._loggers):
            if logger in (self._in_any_thread or ()):
                self._write_to(logger, entry)
            else:
                hand_over(functools.partial(self._write_to, logger, entry))

    def _write_to(self, logger: Logger, entry: Entry) -> None:
        if logger not in self._loggers:  # it has failed since
            return
        name = type(logger).__name__
        try:
            refused = write(logger, entry)
        except Exception as error:
            self._loggers.remove(logger)
            warn_switched_off(f"writing {self._owner}'s values to {name}", error)
            return
        said: set[str] = vars(logger).setdefault(_REFUSED, set())
        for what in refused:
            if what not in said:
                said.add(what)
                warn(f"{self._owner}: {name} takes no {what}; they are left out there.")


def _takes_in_any_thread(logger: Logger) -> bool:
    """Return True if any thread may write to the logger: only TensorBoard's, whose writer puts all into a queue."""
    writer = write.dispatch(type(logger))
    if writer not in (write.dispatch(TensorBoardLogger), write.dispatch(object)):
        return False
    try:
        return isinstance(getattr(logger, "experiment", None), SummaryWriter)
    except Exception:  # the same error is reported when an entry is written
        return False
