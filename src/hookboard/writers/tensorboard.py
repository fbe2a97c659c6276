"""Writing to TensorBoard, with some private names of its writer."""

import shlex
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import google_crc32c
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto import types_pb2
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, HistogramProto, Summary, SummaryMetadata
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter

from hookboard.base.records import PLUGIN
from hookboard.images.picture import Picture
from hookboard.measure.row import Reading
from hookboard.writers.entry import Entry

_RECORD = SummaryMetadata(
    plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN),
    display_name="record of hookboard",
    summary_description="Data for hookboard's tab; see docs/inside.md.",
    data_class=DATA_CLASS_TENSOR,
)


def write_to_tensorboard(logger: TensorBoardLogger, entry: Entry) -> list[str]:
    """Write an entry to TensorBoard, which takes everything; a page is a file beside the event files."""
    for tag, text in entry.texts.items():
        logger.experiment.add_text(tag, text, entry.step)
    for tag, table in entry.tables.items():
        logger.experiment.add_text(tag, table.text, entry.step)
    for tag, page in entry.pages.items():
        Path(logger.experiment.log_dir, f"{tag}.html").write_text(page, encoding="utf-8")
    # One event for all values but texts: one each costs some 20 times as much, and training waits for a full queue.
    event = Event(wall_time=time.time(), step=entry.step)
    values = event.summary.value  # filled in place: a message that is passed to another is copied
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
    if values:
        quick_writer_of(logger.experiment).event_writer.add_event(event)
    return []


def place_in_tensorboard(logger: TensorBoardLogger) -> str:
    """Return what to type to see the logger's files, quoted for the shell, with a path if it is not on PATH."""
    program = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") or not program.exists():
        program = Path("tensorboard")
    elif program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    typed = [str(program), "--logdir", str(getattr(logger, "log_dir", ""))]  # others wrap a SummaryWriter
    return f"{subprocess.list2cmdline(typed) if sys.platform == 'win32' else shlex.join(typed)} (tab Hookboard)"


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


def quick_writer_of(writer: SummaryWriter) -> FileWriter:
    """Return the `FileWriter` of a writer, after having it compute checksums in C; a new one if it was closed."""
    file_writer: FileWriter = writer._get_file_writer()
    thread: Any = getattr(getattr(file_writer.event_writer, "_async_writer", None), "_worker", None)
    records: Any = getattr(thread, "_record_writer", None)
    # In Python, as TensorBoard computes them, they take milliseconds a step. The file stays the same, byte for byte.
    if type(records) is RecordWriter and hasattr(records, "_writer"):
        thread._record_writer = QuickRecordWriter(records._writer)
    return file_writer


class QuickRecordWriter(RecordWriter):  # type: ignore[misc]  # TensorBoard has no types
    """Writes the same records as its base class, with checksums by google-crc32c."""

    def write(self, data: bytes) -> None:
        """Write one record: the length of the data, the data, and after each its checksum."""
        length = struct.pack("<Q", len(data))
        self._writer.write(length + _checksum_of(length) + data + _checksum_of(data))


def _checksum_of(data: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord files."""
    crc = google_crc32c.value(data)
    turned = crc >> 15 | crc << 17
    return struct.pack("<I", (turned + 0xA282EAD8) & 0xFFFFFFFF)
