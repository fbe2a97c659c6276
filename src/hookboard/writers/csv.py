"""Writing to a CSVLogger: scalars to its table, everything else to files beside it."""

import re

import numpy as np
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import CSVLogger

from hookboard.writers.entry import Entry
from hookboard.writers.registry import folder_of, place_of, write

MAX_FILE_NAME_CHARS = 255
"""Maximum number of characters in the name of a file; few file systems take more."""


@write.register
def write_to_csv(logger: CSVLogger, entry: Entry) -> list[str]:
    """Write the scalars to the logger, and everything else but records to files in its `log_dir`.

    A picture, table, text or page is in a file of its tag, which holds the latest. Histograms of a step are the arrays
    `<tag>.counts` and `<tag>.edges` of one file, `histograms/<step>.npz`, or `<step>_2.npz` if there is one already.
    """
    if entry.scalars:
        logger.log_metrics({**entry.scalars}, entry.step)
    files = {
        _file(tag, "jpg" if picture.is_photo else "png"): picture.encode()[0] for tag, picture in entry.pictures.items()
    }
    texts = entry.texts | {tag: table.text for tag, table in entry.tables.items()}
    files |= {_file(tag, "md"): text.encode() for tag, text in texts.items()}
    files |= {_file(tag, "html"): page.encode() for tag, page in entry.pages.items()}
    taken = {name: content for name, content in files.items() if len(name) <= MAX_FILE_NAME_CHARS}
    if taken or entry.histograms:
        folder = logger.experiment.log_dir  # the experiment makes it
        system = get_filesystem(folder)
        for name, content in taken.items():
            with system.open(f"{folder}/{name}", "wb") as file:
                file.write(content)
        if arrays := _arrays(entry):
            system.makedirs(f"{folder}/histograms", exist_ok=True)
            names = (f"{folder}/histograms/{entry.step:08}{more}.npz" for more in ("", *map("_{}".format, _FURTHER)))
            with system.open(next(name for name in names if not system.exists(name)), "wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # no array is named allow_pickle
    return [f"files whose names are longer than {MAX_FILE_NAME_CHARS} characters"] if len(taken) < len(files) else []


_FURTHER = range(2, 1000)
"""Numbers of further files of one step: of callbacks that write later, or of a step that is run again."""


def _arrays(entry: Entry) -> dict[str, np.ndarray]:
    found = {tag: reading.histogram for tag, reading in entry.histograms.items() if reading.histogram is not None}
    return {f"{tag}.{name}": getattr(one, name) for tag, one in found.items() for name in ("counts", "edges")}


@place_of.register
def _place(logger: CSVLogger) -> str:
    return f"{folder_of(logger)} (health_verdict.md and health_*.png)"


def _file(tag: str, suffix: str) -> str:
    """Return the name of the file of a tag.

    >>> _file("health/verdict", "md")
    'health_verdict.md'
    """
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', tag)}.{suffix}"
