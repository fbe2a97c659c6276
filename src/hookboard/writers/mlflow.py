"""Writing to MLflow, by its client."""

import re

from lightning.pytorch.loggers import MLFlowLogger

from hookboard.writers.entry import Entry


def write_to_mlflow(logger: MLFlowLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures as images; texts, tables and pages as files. Histograms are left out.

    A file, among the artifacts, holds the latest text of its tag.
    """
    if entry.scalars:
        logger.log_metrics({_allowed(tag): number for tag, number in entry.scalars.items()}, entry.step)
    client, run = logger.experiment, logger.run_id
    for tag, picture in entry.pictures.items():
        client.log_image(run, picture.image().convert("RGB"), key=_allowed(tag), step=entry.step)
    for name, text in entry.files().items():
        client.log_text(run, text, _allowed(name))
    return ["histograms"] if entry.histograms else []


def place_in_mlflow(logger: MLFlowLogger) -> str:
    """Return the name of the run."""
    return f"MLflow run {logger.run_id} (health/verdict.md among the artifacts)"


def _allowed(tag: str) -> str:
    """Return the tag with "_" for each character, and each empty part, that MLflow does not allow in names.

    >>> _allowed("activation_mean/net.é"), _allowed("activation_mean/a//b/")
    ('activation_mean/net._', 'activation_mean/a/_/b/_')
    """
    parts = re.sub(r"[^A-Za-z0-9_\-. /]", "_", tag).split("/")
    return "/".join(part or "_" for part in parts)
