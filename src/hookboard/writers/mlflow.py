"""Writing to MLflow, by its client."""

import re

from lightning.pytorch.loggers import MLFlowLogger

from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write


@write.register
def write_to_mlflow(logger: MLFlowLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures as images, tables and texts as Markdown files among the artifacts.

    A file holds the latest text of its tag.

    Returns:
        The names of the parts of the entry that were not written, such as "histograms"; empty if all were.
    """
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    client, run = logger.experiment, logger.run_id
    for tag, picture in entry.pictures.items():
        client.log_image(run, picture.image().convert("RGB"), key=_allowed(tag), step=entry.step)
    texts = entry.texts | {tag: table.text for tag, table in entry.tables.items()}
    for tag, text in texts.items():
        client.log_text(run, text, f"{_allowed(tag)}.md")
    return ["histograms"] if entry.histograms else []


@place_of.register
def _place(logger: MLFlowLogger) -> str:
    return f"MLflow run {logger.run_id} (health/verdict.md among the artifacts)"


def _allowed(tag: str) -> str:
    """Return the tag with "_" for each character that MLflow does not allow in names."""
    return re.sub(r"[^A-Za-z0-9_\-. /]", "_", tag)
