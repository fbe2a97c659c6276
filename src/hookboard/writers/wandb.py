"""Writing to Weights & Biases, by the public methods of Lightning's WandbLogger."""

from typing import Any

import numpy as np
from lightning.pytorch.loggers import WandbLogger

from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write


@write.register
def write_to_wandb(logger: WandbLogger, entry: Entry) -> list[str]:
    """Write scalars and histograms in one row, then pictures, tables and texts; W&B takes everything."""
    if row := {**entry.scalars, **_histograms(entry)}:
        logger.log_metrics(row, entry.step)
    for tag, picture in entry.pictures.items():
        logger.log_image(tag, [picture.image().convert("RGB")], entry.step, caption=[picture.caption])
    for tag, table in entry.tables.items():
        logger.log_table(tag, list(table.columns), [list(row) for row in table.rows], step=entry.step)
    for tag, text in entry.texts.items():
        logger.log_text(tag, ["text"], [[text]], step=entry.step)
    return []


@place_of.register
def _place(logger: WandbLogger) -> str:
    run = logger.experiment
    return f"{getattr(run, 'url', None) or getattr(run, 'dir', '')} (health)"


def _histograms(entry: Entry) -> dict[str, Any]:
    """Return the histograms that have a value, by tag. They have at most 64 bins; W&B allows 512."""
    import wandb  # it is there if its logger is

    found = ((tag, reading.histogram) for tag, reading in entry.histograms.items())
    return {
        tag: wandb.Histogram(np_histogram=(one.counts.astype(np.int64), one.edges))
        for tag, one in found
        if one is not None and len(one.counts)
    }
