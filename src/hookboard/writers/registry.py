"""The two functions that each file of this folder registers for its kind of logger: `write` and `place_of`."""

import functools

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.writers.entry import Entry


@functools.singledispatch
def write(logger: Logger, entry: Entry) -> list[str]:
    """Write an entry to a logger by the function that is registered for its type, otherwise by its public methods.

    Returns:
        The names of the parts of the entry that the logger cannot take, such as "histograms"; empty if it took all.
    """
    known = known_type(logger)
    return _write_by_methods(logger, entry) if known is None else write.dispatch(known)(logger, entry)


def known_type(logger: Logger) -> type | None:
    """Return the type for which a function is registered that writes to this logger; None if there is none."""
    # pytorch_lightning has loggers of the same names that are no subclasses.
    named = {cls.__name__: cls for cls in write.registry if cls not in (object, TensorBoardLogger)}
    twin = next((named[cls.__name__] for cls in type(logger).__mro__ if cls.__name__ in named), None)
    if twin is None and isinstance(getattr(logger, "experiment", None), SummaryWriter):
        twin = TensorBoardLogger
    return twin


@functools.singledispatch
def place_of(logger: Logger) -> str:
    """Return where a person finds what was written to a logger, such as a folder or an address; "" if unknown."""
    return str(getattr(logger, "log_dir", None) or "")


def _write_by_methods(logger: Logger, entry: Entry) -> list[str]:
    """Write the scalars by `log_metrics`, and the pictures by `log_image` if the logger has it; see `write`."""
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    refused = [name for name in ("histograms", "texts", "tables", "pages") if getattr(entry, name)]
    log_image = getattr(logger, "log_image", None)
    if log_image is None:
        return refused + (["pictures"] if entry.pictures else [])
    for tag, picture in entry.pictures.items():
        log_image(key=tag, images=[picture.image().convert("RGB")], step=entry.step, caption=[picture.caption])
    return refused
