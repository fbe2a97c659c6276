"""Writing to Weights & Biases, by the public methods of Lightning's WandbLogger."""

from lightning.pytorch.loggers import WandbLogger

from hookboard.writers.entry import Entry


def write_to_wandb(logger: WandbLogger, entry: Entry) -> list[str]:
    """Write scalars, pictures, tables and texts.

    Returns:
        What the logger cannot take, in words.
    """
    if entry.scalars:
        logger.log_metrics(dict(entry.scalars), entry.step)
    for tag, picture in entry.pictures.items():
        logger.log_image(tag, [picture.image().convert("RGB")], entry.step, caption=[picture.caption])
    for tag, table in entry.tables.items():
        logger.log_table(tag, list(table.columns), [list(row) for row in table.rows], step=entry.step)
    for tag, text in entry.texts.items():
        logger.log_text(tag, ["text"], [[text]], step=entry.step)
    return ["histograms"] if entry.histograms else []
