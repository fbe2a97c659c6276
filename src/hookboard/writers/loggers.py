"""Writing to all loggers of a Trainer: chooses the function for each logger, and handles failures."""

import functools
from collections.abc import Iterable

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.messages import warn, warn_switched_off
from hookboard.writers.csv import write_to_csv
from hookboard.writers.entry import Entry
from hookboard.writers.mlflow import write_to_mlflow
from hookboard.writers.others import write_to_other
from hookboard.writers.places import place_of
from hookboard.writers.tensorboard import write_to_tensorboard
from hookboard.writers.wandb import write_to_wandb


class Loggers:
    """The loggers that one callback writes to. If one cannot take something, or fails, there is one warning.

    Args:
        loggers: the loggers of the Trainer.
        owner: the callback's name, used in warnings.
    """

    def __init__(self, loggers: Iterable[Logger], owner: str) -> None:
        self._loggers = list(loggers)
        self._owner = owner
        self._refused: set[str] = set()

    @property
    def places(self) -> list[str]:
        """Where a person finds what has been written: a line for each logger of a known kind."""
        return [place for logger in self._loggers if (place := place_of(logger))]

    def write(self, entry: Entry) -> None:
        """Write an entry to each logger; one that fails gets no more."""
        for logger in list(self._loggers):
            name = type(logger).__name__
            try:
                refused = write(logger, entry)
            except Exception as error:
                self._loggers.remove(logger)
                warn_switched_off(f"writing {self._owner}'s values to {name}", error)
                continue
            for what in refused:
                if f"{name} {what}" not in self._refused:
                    self._refused.add(f"{name} {what}")
                    warn(f"{self._owner}: {name} takes no {what}; they are left out there.")


@functools.singledispatch
def write(logger: Logger, entry: Entry) -> list[str]:
    """Write an entry to a logger by the function that is registered for its type.

    Returns:
        What this kind of logger cannot take, in words; empty if it took everything.
    """
    # pytorch_lightning has loggers of the same names that are no subclasses.
    named = {cls.__name__: cls for cls in (CSVLogger, MLFlowLogger, WandbLogger)}
    twin = next((named[cls.__name__] for cls in type(logger).__mro__ if cls.__name__ in named), None)
    if twin is not None:
        return write.dispatch(twin)(logger, entry)
    if isinstance(getattr(logger, "experiment", None), SummaryWriter):
        return write_to_tensorboard(logger, entry)  # type: ignore[arg-type]  # pytorch_lightning's has the same
    return write_to_other(logger, entry)


write.register(TensorBoardLogger, write_to_tensorboard)
write.register(CSVLogger, write_to_csv)
write.register(MLFlowLogger, write_to_mlflow)
write.register(WandbLogger, write_to_wandb)
