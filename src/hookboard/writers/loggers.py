"""Writing to all loggers of a Trainer, and what happens if one fails."""

import functools
from collections.abc import Iterable

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.messages import hand_over, warn, warn_switched_off
from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write

_REFUSED = "_hookboard_refused"
"""The attribute of a logger with what it has not taken, which is said once, whichever callbacks write it. No dictionary
with weak keys: what removes them may run in the garbage collector, where Python drops a KeyboardInterrupt."""


class Loggers:
    """The loggers that one callback writes to. If one cannot take something, or fails, there is one warning.

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
        """Where a person finds what has been written: a line for each logger of a known kind."""
        return [place for logger in self._loggers if (place := place_of(logger))]

    def prepare(self) -> None:
        """Have the loggers make now what they make when they are first written to, which the training thread must do.

        Without it each entry is written by the training thread.
        """
        if self._in_any_thread is None:
            self._in_any_thread = [logger for logger in self._loggers if _takes_in_any_thread(logger)]

    def write(self, entry: Entry) -> None:
        """Write an entry to each logger; one that fails gets no more.

        Any thread may call it: what goes to a logger that only the training thread may use is handed over to that one.
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
    """Return whether it is TensorBoard's, which puts what it is given into a queue.

    Others write at once, as CSVLogger does into the lists that Lightning's own values go to.
    """
    writer = write.dispatch(type(logger))
    if writer not in (write.dispatch(TensorBoardLogger), write.dispatch(object)):
        return False
    try:
        return isinstance(getattr(logger, "experiment", None), SummaryWriter)
    except Exception:  # it is said when an entry is written
        return False
