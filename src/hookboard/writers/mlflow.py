"""Writing to MLflow, by its client."""

import re

from lightning.pytorch.loggers import MLFlowLogger

from hookboard.images import histogram_picture
from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write


@write.register
def write_to_mlflow(logger: MLFlowLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures and histograms as images, tables and texts as Markdown files.

    A file, among the artifacts, holds the latest text of its tag.

    Returns:
        `[]`: it takes everything.
    """
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    client, run = logger.experiment, logger.run_id
    drawn = {tag: reading.histogram for tag, reading in entry.histograms.items() if reading.histogram is not None}
    pictures = entry.pictures | {tag: histogram_picture(h.counts, h.edges) for tag, h in drawn.items() if len(h.counts)}
    for tag, picture in pictures.items():
        client.log_image(run, picture.image().convert("RGB"), key=_allowed(tag), step=entry.step)
    texts = entry.texts | {tag: table.text for tag, table in entry.tables.items()}
    for tag, text in texts.items():
        client.log_text(run, text, f"{_allowed(tag)}.md")
    for tag, page in entry.pages.items():
        client.log_text(run, page, f"{_allowed(tag)}.html")
    return []


@place_of.register
def _place(logger: MLFlowLogger) -> str:
    return f"MLflow run {logger.run_id} (health/verdict.md among the artifacts)"


def _allowed(tag: str) -> str:
    """Return the tag with "_" for each character that MLflow does not allow in names."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", tag)
