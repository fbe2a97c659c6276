"""Writing to Comet, by the experiment of Lightning's CometLogger."""

from lightning.pytorch.loggers import CometLogger

from hookboard.writers.entry import Entry
from hookboard.writers.registry import place_of, write


@write.register
def write_to_comet(logger: CometLogger, entry: Entry) -> list[str]:
    """Write scalars as metrics, pictures as images; texts, tables and pages as files. Histograms are left out.

    A file, among the assets, holds the latest text of its tag.
    """
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    experiment = logger.experiment
    for tag, picture in entry.pictures.items():
        experiment.log_image(picture.image().convert("RGB"), name=tag, step=entry.step)
    files = {f"{tag}.md": text for tag, text in entry.texts.items()}
    files |= {f"{tag}.md": table.text for tag, table in entry.tables.items()}
    files |= {f"{tag}.html": page for tag, page in entry.pages.items()}
    for name, text in files.items():
        experiment.log_asset_data(text, name=name, overwrite=True, step=entry.step)
    return ["histograms"] if entry.histograms else []


@place_of.register
def _place(logger: CometLogger) -> str:
    experiment = logger.experiment
    place = getattr(experiment, "url", None) or getattr(experiment, "offline_directory", None) or ""
    return f"{place} (health/verdict.md among the assets)"
