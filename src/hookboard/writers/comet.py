"""Writing to Comet, by the experiment of Lightning's CometLogger."""

from lightning.pytorch.loggers import CometLogger

from hookboard.writers.entry import Entry


def write_to_comet(logger: CometLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures as images; texts, tables and pages as files. Histograms are left out.

    A file, among the assets, holds the latest text of its tag.
    """
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
