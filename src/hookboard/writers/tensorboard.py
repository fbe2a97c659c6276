"""Writing to TensorBoard."""

import mmap
import time
from pathlib import Path

import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto import types_pb2
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG

from hookboard.images import Picture
from hookboard.record import PLUGIN
from hookboard.writers.entry import Entry, Scalars
from hookboard.writers.events import event_of, histogram_of, scalar_tags
from hookboard.writers.records import quicken
from hookboard.writers.tensorboard_private import file_writer_of, write_bytes

_RECORD = SummaryMetadata(
    plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN),
    display_name="record of hookboard",
    summary_description="What hookboard's tab knows beside the tags, see docs/record.md.",
    data_class=DATA_CLASS_TENSOR,
)


def write_to_tensorboard(logger: TensorBoardLogger, entry: Entry) -> list[str]:
    """Write an entry to TensorBoard, which takes everything.

    All values of a step are one event: an event for each costs some 20 times as much and fills the writer's queue,
    which then makes training wait.
    """
    if entry.layout and not _has_layout(logger):
        logger.experiment.add_custom_scalars(entry.layout)
    texts = entry.texts | {tag: table.text for tag, table in entry.tables.items()}
    for tag, text in texts.items():
        logger.experiment.add_text(tag, text, entry.step)
    if summary := _numbers(entry) + _others(entry):
        writer = file_writer_of(logger.experiment)
        quicken(writer)
        event = event_of(summary, entry.step, time.time())
        if not write_bytes(writer, event):
            writer.event_writer.add_event(Event.FromString(event))
    return []


def _numbers(entry: Entry) -> bytes:
    """The scalars and histograms, as the fields of a summary."""
    scalars, parts = entry.scalars, []
    if isinstance(scalars, Scalars):
        parts.append(scalars.tags.summary(scalars.values_in_order))
        scalars = scalars.others
    if scalars:
        parts.append(scalar_tags(*scalars).summary(np.array([*scalars.values()], dtype=np.float64)))
    for tag, reading in entry.histograms.items():
        assert reading.histogram is not None
        parts.append(histogram_of(tag, reading.moments, reading.histogram))
    return b"".join(parts)


def _others(entry: Entry) -> bytes:
    """The pictures and records, as the fields of a summary."""
    if not (entry.pictures or entry.records):
        return b""
    summary = Summary()
    values = summary.value  # filled in place: a message that is passed to another is copied
    for tag, picture in entry.pictures.items():
        values.append(_image(tag, picture))
    for tag, strings in entry.records.items():
        value = values.add(tag=tag, metadata=_RECORD)
        value.tensor.dtype = types_pb2.DT_STRING
        value.tensor.tensor_shape.dim.add(size=len(strings))
        value.tensor.string_val.extend(strings)
    found: bytes = summary.SerializeToString()
    return found


def _has_layout(logger: TensorBoardLogger) -> bool:
    """Whether the run has a layout of custom scalars: a second one would take its place, not join it."""
    logger.experiment.flush()
    for path in Path(logger.log_dir).glob("events.out.tfevents.*"):
        if not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(CONFIG_SUMMARY_TAG.encode()) >= 0:
                return True
    return False


def _image(tag: str, picture: Picture) -> Summary.Value:
    data, width, height = picture.encode()
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=data)
    plugin = SummaryMetadata.PluginData(plugin_name="images")
    metadata = SummaryMetadata(plugin_data=plugin, summary_description=picture.caption)
    return Summary.Value(tag=tag, image=image, metadata=metadata)
