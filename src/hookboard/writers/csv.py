"""Writing to a CSVLogger: scalars to its table, everything else to files beside it."""

import re
from pathlib import PurePosixPath

from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import CSVLogger

from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write


@write.register
def write_to_csv(logger: CSVLogger, entry: Entry) -> list[str]:
    """Write the scalars to the logger, and the latest picture, table and text of each tag to a file in its `log_dir`.

    Returns:
        The parts of the entry that were not written: `["histograms"]` if it has some, otherwise `[]`.
    """
    if entry.scalars:
        logger.log_metrics({**entry.scalars}, entry.step)
    files: dict[str, bytes] = {}
    for tag, picture in entry.pictures.items():
        files[_file(tag, "jpg" if picture.is_photo else "png")] = picture.encode()[0]
    texts = entry.texts | {tag: table.text for tag, table in entry.tables.items()}
    files |= {_file(tag, "md"): text.encode() for tag, text in texts.items()}
    if files:
        folder = logger.experiment.log_dir  # the experiment makes it
        system = get_filesystem(folder)
        for name, content in files.items():
            with system.open(str(PurePosixPath(folder) / name), "wb") as file:
                file.write(content)
    return ["histograms"] if entry.histograms else []


@place_of.register
def _place(logger: CSVLogger) -> str:
    return f"{logger.log_dir} (health_verdict.md, health_*.png)"


def _file(tag: str, suffix: str) -> str:
    """Return the name of the file of a tag.

    >>> _file("health/verdict", "md")
    'health_verdict.md'
    """
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', tag)}.{suffix}"
