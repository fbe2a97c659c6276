"""From readings and pictures to a Lightning logger, which is the only thing that each function here knows."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from torch.utils.tensorboard import SummaryWriter

from hookboard.images.picture import Picture
from hookboard.messages import warn, warn_switched_off
from hookboard.recording.reading import Reading


@dataclass(frozen=True)
class Entry:
    """Everything that one callback logs at one step.

    Args:
        step: where on the logger's step axis.
        scalars: tag to value.
        histograms: tag to the reading that has the histogram.
        pictures: tag to picture.
        texts: tag to text in Markdown.
    """

    step: int
    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Reading] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


class Loggers:
    """The loggers that one callback writes to. What one of them cannot take, or fails at, is said once.

    Args:
        loggers: those of the Trainer.
        owner: the callback's name, for what is said.
    """

    def __init__(self, loggers: Iterable[Logger], owner: str) -> None:
        self._loggers = list(loggers)
        self._owner = owner
        self._refused: set[str] = set()

    def write(self, entry: Entry) -> None:
        """Write an entry to each logger; one that fails gets no more."""
        for logger in list(self._loggers):
            name = type(logger).__name__
            try:
                refused = write(logger, entry)
            except Exception as error:
                self._loggers.remove(logger)
                warn_switched_off(f"writing of {self._owner} to {name}", error)
                continue
            for what in refused:
                if f"{name} {what}" not in self._refused:
                    self._refused.add(f"{name} {what}")
                    warn(f"{self._owner}: {name} takes no {what}.")


@functools.singledispatch
def write(logger: Logger, entry: Entry) -> list[str]:
    """Write an entry to a logger.

    A logger that nothing better is registered for gets the scalars through `log_metrics`, and the pictures through its
    `log_image` if it has one, as Lightning's WandbLogger has.

    Returns:
        What this kind of logger cannot take, in words; empty if it took everything.
    """
    if isinstance(getattr(logger, "experiment", None), SummaryWriter):
        return _write_to_tensorboard(logger, entry)  # type: ignore[arg-type]  # pytorch_lightning's has the same
    if entry.scalars:
        logger.log_metrics(entry.scalars, entry.step)
    refused = [name for name in ("histograms", "texts") if getattr(entry, name)]
    log_image = getattr(logger, "log_image", None)
    if log_image is None:
        return refused + (["pictures"] if entry.pictures else [])
    for tag, picture in entry.pictures.items():
        log_image(key=tag, images=[picture.image().convert("RGB")], step=entry.step, caption=[picture.caption])
    return refused


@write.register
def _write_to_tensorboard(logger: TensorBoardLogger, entry: Entry) -> list[str]:
    for tag, text in entry.texts.items():
        logger.experiment.add_text(tag, text, entry.step)
    # One event for the whole step: an event for each value costs some 20 times as much and fills the writer's
    # queue, which then makes training wait.
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in entry.scalars.items()]
    values += [Summary.Value(tag=tag, histo=_proto(reading)) for tag, reading in entry.histograms.items()]
    values += [_image(tag, picture) for tag, picture in entry.pictures.items()]
    if values:
        logger.experiment._get_file_writer().add_summary(Summary(value=values), entry.step)
    return []


def _image(tag: str, picture: Picture) -> Summary.Value:
    data, width, height = picture.encode()
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
    plugin = SummaryMetadata.PluginData(plugin_name="images")
    metadata = SummaryMetadata(plugin_data=plugin, summary_description=picture.caption)
    return Summary.Value(tag=tag, image=image, metadata=metadata)


def _proto(reading: Reading) -> HistogramProto:
    moments, histogram = reading.moments, reading.histogram
    assert histogram is not None
    return HistogramProto(
        min=moments.min,
        max=moments.max,
        num=moments.count,
        sum=moments.count * moments.mean,
        sum_squares=moments.square_sum,
        bucket_limit=histogram.edges[1:],
        bucket=histogram.counts,
    )
