"""Writing to any Lightning logger, by `log_metrics` and `log_image`."""

from lightning.pytorch.loggers import Logger

from hookboard.writers.entry import Entry


def write_to_other(logger: Logger, entry: Entry) -> list[str]:
    """Write the scalars by `log_metrics`, and the pictures by `log_image` where there is one.

    Returns:
        What the logger cannot take, in words; empty if it took everything.
    """
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    refused = [name for name in ("histograms", "texts", "tables") if getattr(entry, name)]
    log_image = getattr(logger, "log_image", None)
    if log_image is None:
        return refused + (["pictures"] if entry.pictures else [])
    for tag, picture in entry.pictures.items():
        log_image(key=tag, images=[picture.image().convert("RGB")], step=entry.step, caption=[picture.caption])
    return refused
