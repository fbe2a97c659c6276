"""The two functions that each file of this folder registers for its kind of logger: `write` and `place_of`."""

import functools

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.writers.entry import Entry
from hookboard.writers.others import write_to_other


@functools.singledispatch
def write(logger: Logger, entry: Entry) -> list[str]:
    """Write an entry to a logger by the function that is registered for its type.

    Returns:
        What this kind of logger cannot take, in words; empty if it took everything.
    """
    # pytorch_lightning has loggers of the same names that are no subclasses.
    named = {cls.__name__: cls for cls in write.registry if cls not in (object, TensorBoardLogger)}
    twin = next((named[cls.__name__] for cls in type(logger).__mro__ if cls.__name__ in named), None)
    if twin is None and isinstance(getattr(logger, "experiment", None), SummaryWriter):
        twin = TensorBoardLogger
    return write_to_other(logger, entry) if twin is None else write.dispatch(twin)(logger, entry)


@functools.singledispatch
def place_of(logger: Logger) -> str:
    """Return the line that says where a person finds what was written to a logger; "" if unknown."""
    return str(getattr(logger, "log_dir", None) or "")
