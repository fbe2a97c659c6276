"""The two functions that each file of this folder registers for its kind of logger: `write` and `place_of`.

Below them is what several of these files use.
"""

import functools
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from hookboard.writers.entry import Entry


@functools.singledispatch
def write(logger: Logger, entry: Entry) -> list[str]:
    """Write an entry by the function for the logger's type, otherwise by its public methods.

    Returns the names of the parts of the entry that the logger cannot take, such as "histograms".
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
    """Return where a person finds what was written to a logger: a command, a folder or an address; "" if unknown."""
    known = known_type(logger)
    of_known = None if known is None else place_of.dispatch(known)
    return folder_of(logger) if of_known in (None, place_of.dispatch(object)) else of_known(logger)


def folder_of(logger: Logger) -> str:
    """Return the folder that a logger writes to; "" if it has none."""
    return str(getattr(logger, "log_dir", None) or "")


def command(name: str, *arguments: str) -> str:
    """Return what to type to start a program, quoted for the shell where a path has a space.

    The program is given by its name, or by its path if it is only beside this Python, not on PATH.
    """
    program = Path(sys.executable).with_name(name)
    if shutil.which(name) or not program.exists():
        program = Path(name)
    elif program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    typed = [str(program), *arguments]
    return subprocess.list2cmdline(typed) if sys.platform == "win32" else shlex.join(typed)


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
