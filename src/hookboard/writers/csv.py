"""Writing to a CSVLogger: scalars to its table, everything else to files beside it."""

import re

import numpy as np
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import CSVLogger

from hookboard.writers.entry import Entry


def write_to_csv(logger: CSVLogger, entry: Entry) -> list[str]:
    """Write the scalars to the logger, and everything else but records to files in its `log_dir`.

    A picture, table, text or page is in a file of its tag, which holds the latest. Histograms of a step are the arrays
    `<tag>.counts` and `<tag>.edges` of one file, `histograms/<step>.npz`, or `<step>_2.npz` if there is one already.
    """
    if entry.scalars:
        logger.log_metrics({**entry.scalars}, entry.step)
    files = {name: text.encode() for name, text in entry.files().items()}
    for tag, picture in entry.pictures.items():
        files[f"{tag}.{'jpg' if picture.is_photo else 'png'}"] = picture.encode()[0]
    if files or entry.histograms:
        folder = logger.experiment.log_dir  # the experiment makes it
        system = get_filesystem(folder)
        for name, content in files.items():
            with system.open(f"{folder}/{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}", "wb") as file:
                file.write(content)
        found = {tag: one for tag, reading in entry.histograms.items() if (one := reading.histogram) is not None}
        arrays = {f"{tag}.{name}": getattr(one, name) for tag, one in found.items() for name in ("counts", "edges")}
        if arrays:
            system.makedirs(f"{folder}/histograms", exist_ok=True)
            starts = (f"{entry.step:08}{more}" for more in ("", *(f"_{number}" for number in range(2, 1000))))
            paths = (f"{folder}/histograms/{start}.npz" for start in starts)
            with system.open(next(path for path in paths if not system.exists(path)), "wb") as file:
                np.savez_compressed(file, **arrays)
    return []


def place_beside_csv(logger: CSVLogger) -> str:
    """Return the folder of the files, and the names of some."""
    return f"{logger.log_dir} (health_verdict.md and health_*.png)"
