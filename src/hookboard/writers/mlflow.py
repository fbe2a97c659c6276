"""Writing to MLflow, by its client."""

import re
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger

from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write
from hookboard.writers.table import Table

MAX_NAME_CHARS = 250
"""Maximum number of characters in the name of a metric; MLflow refuses a whole call for a longer one."""


@write.register
def write_to_mlflow(logger: MLFlowLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures as images; texts, tables and pages as files. Histograms are left out.

    A file, among the artifacts, holds the latest text of its tag. The rows of a table are also added, with their step,
    to one of MLflow's own, which needs pandas.
    """
    metrics = {_allowed(tag): number for tag, number in entry.scalars.items()}
    taken = {name: number for name, number in metrics.items() if len(name) <= MAX_NAME_CHARS}
    if taken:
        logger.log_metrics(taken, entry.step)
    client, run = logger.experiment, logger.run_id
    for tag, picture in entry.pictures.items():
        client.log_image(run, picture.image().convert("RGB"), key=_allowed(tag), step=entry.step)
    texts = entry.texts | {tag: table.text for tag, table in entry.tables.items()}
    for tag, text in texts.items():
        client.log_text(run, text, f"{_allowed(tag)}.md")
    if find_spec("pandas") is not None:
        for tag, table in entry.tables.items():
            if table.rows:
                client.log_table(run, _frame(entry.step, table), f"{_allowed(tag)}.json")
    for tag, page in entry.pages.items():
        client.log_text(run, page, f"{_allowed(tag)}.html")
    too_long = f"metrics whose names are longer than {MAX_NAME_CHARS} characters"
    return [*["histograms"][: bool(entry.histograms)], *[too_long][: len(taken) < len(metrics)]]


@place_of.register
def _place(logger: MLFlowLogger) -> str:
    return f"MLflow run {logger.run_id} (health/verdict.md among the artifacts)"


def _frame(step: int, table: Table) -> Any:
    """Return a table as a frame of pandas, after a column with the step."""
    import pandas

    # As objects: MLflow reads columns of text in a way that pandas 3 warns of.
    rows = [(step, *row) for row in table.rows]
    return pandas.DataFrame(rows, columns=["step", *table.columns], dtype=object)


def _allowed(tag: str) -> str:
    """Return the tag with "_" for each character, and each empty part, that MLflow does not allow in names.

    >>> _allowed("activation_mean/net.é"), _allowed("activation_mean/a//b/")
    ('activation_mean/net._', 'activation_mean/a/_/b/_')
    """
    parts = re.sub(r"[^A-Za-z0-9_\-. /]", "_", tag).split("/")
    return "/".join(part or "_" for part in parts)
