"""Writing to Weights & Biases, by `log_metrics` of Lightning's WandbLogger."""

from typing import Any

import numpy as np
from lightning.pytorch.loggers import WandbLogger

from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write


@write.register
def write_to_wandb(logger: WandbLogger, entry: Entry) -> list[str]:
    """Write all but records in one row, as W&B makes a row of each call; a text is a table of one cell."""
    import wandb  # it is there if its logger is

    row: dict[str, Any] = {**entry.scalars, **_histograms(entry)}
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


@place_of.register
def _place(logger: WandbLogger) -> str:
    run = logger.experiment
    return f"{getattr(run, 'url', None) or getattr(run, 'dir', '')} (health)"


def _histograms(entry: Entry) -> dict[str, Any]:
    """Return the histograms that have a value, by tag. They have at most 64 bins; W&B allows 512."""
    import wandb

    found = ((tag, reading.histogram) for tag, reading in entry.histograms.items())
    return {
        tag: wandb.Histogram(np_histogram=(one.counts.astype(np.int64), one.edges))
        for tag, one in found
        if one is not None and len(one.counts)
    }
