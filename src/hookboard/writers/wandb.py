"""Writing to Weights & Biases, by `log_metrics` of Lightning's WandbLogger."""

from typing import Any

import numpy as np
from lightning.pytorch.loggers import WandbLogger

from hookboard.writers.entry import Entry


def write_to_wandb(logger: WandbLogger, entry: Entry) -> list[str]:
    """Write all but records in one row, as W&B makes a row of each call; a text is a table of one cell."""
    import wandb  # it is there if its logger is

    row: dict[str, Any] = {**entry.scalars}
    for tag, reading in entry.histograms.items():
        if (one := reading.histogram) is not None and len(one.counts):  # at most 64 bins; W&B allows 512
            row[tag] = wandb.Histogram(np_histogram=(one.counts.astype(np.int64), one.edges))
    for tag, picture in entry.pictures.items():
        row[tag] = [wandb.Image(picture.image().convert("RGB"), caption=picture.caption)]
    for tag, table in entry.tables.items():
        row[tag] = wandb.Table(list(table.columns), [list(row) for row in table.rows])
    for tag, text in entry.texts.items():
        row[tag] = wandb.Table(["text"], [[text]])
    for tag, page in entry.pages.items():
        row[tag] = wandb.Html(page, inject=False)
    if row:
        logger.log_metrics(row, entry.step)
    return []


def place_in_wandb(logger: WandbLogger) -> str:
    """Return the address of the run, or its folder."""
    run = logger.experiment
    return f"{getattr(run, 'url', None) or getattr(run, 'dir', '')} (health)"
