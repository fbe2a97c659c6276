"""Writes numbers, pictures and texts to loggers: one file for each kind of logger.

`entry.py` is what is written, `loggers.py` writes it to all loggers of a Trainer. To add a logger, write a file with a
function that takes the logger and an entry, and registers itself (`registry.py`): all files here are imported.
"""

from importlib import import_module
from pkgutil import iter_modules

from hookboard.writers.entry import Entry
from hookboard.writers.event_files import EventFiles
from hookboard.writers.loggers import Loggers, write_rows
from hookboard.writers.table import Table, escaped, markdown

__all__ = [
    "Entry",
    "EventFiles",
    "Loggers",
    "Table",
    "escaped",
    "markdown",
    "write_rows",
]

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
