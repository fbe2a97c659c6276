"""Writing by Lightning's loggers other than TensorBoard's: CSV, Comet, MLflow and Weights & Biases."""

import re
from typing import Any

import numpy as np
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch.loggers import CometLogger, CSVLogger, MLFlowLogger, WandbLogger

from hookboard.writers.entry import Entry


def write_to_comet(logger: CometLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures as images, and texts, tables and pages as assets, the latest of each tag."""
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    for tag, picture in entry.pictures.items():
        logger.experiment.log_image(picture.image().convert("RGB"), name=tag, step=entry.step)
    for name, text in entry.files().items():
        logger.experiment.log_asset_data(text, name=name, overwrite=True, step=entry.step)
    return ["histograms"] if entry.histograms else []


def place_in_comet(logger: CometLogger) -> str:
    """Return the address of the experiment, or its folder."""
    experiment = logger.experiment
    place = getattr(experiment, "url", None) or getattr(experiment, "offline_directory", None) or ""
    return f"{place} (health/verdict.md among the assets)"


def write_to_mlflow(logger: MLFlowLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures as images; texts, tables and pages as artifacts, the latest of each tag."""
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


def write_to_wandb(logger: WandbLogger, entry: Entry) -> list[str]:
    """Write all but records in one row, as W&B makes a row of each call; a text is a table of one cell."""
    import wandb  # it is there if its logger is

    row: dict[str, Any] = {**entry.scalars}
    for tag, reading in entry.histograms.items():
        histogram = reading.histogram
        if histogram is not None and len(histogram.counts):  # at most 64 bins; W&B allows 512
            row[tag] = wandb.Histogram(np_histogram=(histogram.counts.astype(np.int64), histogram.edges))
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


def write_to_csv(logger: CSVLogger, entry: Entry) -> list[str]:
    """Write the scalars to the logger, and all but records to files in its `log_dir`: the latest of each tag."""
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
        if arrays:  # of all tags, in one file of this step, or in another if there is one already
            system.makedirs(f"{folder}/histograms", exist_ok=True)
            starts = (f"{entry.step:08}{suffix}" for suffix in ("", *(f"_{number}" for number in range(2, 1000))))
            paths = (f"{folder}/histograms/{start}.npz" for start in starts)
            with system.open(next(path for path in paths if not system.exists(path)), "wb") as file:
                np.savez_compressed(file, **arrays)
    return []


def place_beside_csv(logger: CSVLogger) -> str:
    """Return the folder of the files, and the names of some."""
    return f"{logger.log_dir} (health_verdict.md and health_*.png)"
