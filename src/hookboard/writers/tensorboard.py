"""Writing to TensorBoard."""

import time
from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto import types_pb2
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, HistogramProto, Summary, SummaryMetadata

from hookboard.base.records import PLUGIN
from hookboard.images import Picture
from hookboard.measure import Reading
from hookboard.writers.entry import Entry
from hookboard.writers.registry import command, folder_of, place_of, write
from hookboard.writers.tensorboard_private import quick_writer_of

_RECORD = SummaryMetadata(
    plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN),
    display_name="record of hookboard",
    summary_description="Data for hookboard's tab; see docs/inside.md.",
    data_class=DATA_CLASS_TENSOR,
)


@write.register
def write_to_tensorboard(logger: TensorBoardLogger, entry: Entry) -> list[str]:
    """Write an entry to TensorBoard, which takes everything; a page is a file beside the event files.

    All values of a step are one event: an event for each costs some 20 times as much and fills the writer's queue,
    which then makes training wait.
    """
    for tag, text in entry.texts.items():
        logger.experiment.add_text(tag, text, entry.step)
    for tag, table in entry.tables.items():
        logger.experiment.add_text(tag, table.text, entry.step)
    for tag, page in entry.pages.items():
        Path(logger.experiment.log_dir, f"{tag}.html").write_text(page, encoding="utf-8")
    event = Event(wall_time=time.time(), step=entry.step)
    _fill(event.summary, entry)  # in place: a message that is passed to another is copied
    if event.summary.value:
        quick_writer_of(logger.experiment).event_writer.add_event(event)
    return []


@place_of.register
def _place(logger: TensorBoardLogger) -> str:
    return f"{command('tensorboard', '--logdir', folder_of(logger))} (tab Hookboard)"


def _fill(summary: Summary, entry: Entry) -> None:
    """Add the scalars, histograms, pictures and records of an entry to a summary."""
    values = summary.value
    for tag, number in entry.scalars.items():
        values.add(tag=tag, simple_value=number)
    for tag, reading in entry.histograms.items():
        values.add(tag=tag, histo=_histogram(reading))
    for tag, picture in entry.pictures.items():
        values.append(_image(tag, picture))
    for tag, strings in entry.records.items():
        value = values.add(tag=tag, metadata=_RECORD)
        value.tensor.dtype = types_pb2.DT_STRING
        value.tensor.tensor_shape.dim.add(size=len(strings))
        value.tensor.string_val.extend(strings)


def _histogram(reading: Reading) -> HistogramProto:
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


def _image(tag: str, picture: Picture) -> Summary.Value:
    data, width, height = picture.encode()
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
    plugin = SummaryMetadata.PluginData(plugin_name="images")
    metadata = SummaryMetadata(plugin_data=plugin, summary_description=picture.caption)
    return Summary.Value(tag=tag, image=image, metadata=metadata)
