"""Everything that needs private names of torch's writer to TensorBoard. No other file uses them."""

import struct
from typing import Any

import google_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter


def quick_writer_of(writer: SummaryWriter) -> FileWriter:
    """Return the `FileWriter` of a writer, after having it compute checksums in C; a new one if it was closed.

    TensorBoard computes them in Python, which takes milliseconds for the values of a step. The file stays the same,
    byte for byte.
    """
    file_writer: FileWriter = writer._get_file_writer()
    thread: Any = getattr(getattr(file_writer.event_writer, "_async_writer", None), "_worker", None)
    records: Any = getattr(thread, "_record_writer", None)
    if type(records) is RecordWriter and hasattr(records, "_writer"):
        thread._record_writer = QuickRecordWriter(records._writer)
    return file_writer


class QuickRecordWriter(RecordWriter):  # type: ignore[misc]  # TensorBoard has no types
    """Writes the same records as its base class, with checksums by google-crc32c."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._file = file

    def write(self, data: bytes) -> None:
        """Write one record: the length of the data, the data, and after each its checksum."""
        length = struct.pack("<Q", len(data))
        self._file.write(length + _checksum_of(length) + data + _checksum_of(data))


def _checksum_of(data: bytes) -> bytes:
    """Return the masked CRC-32C of TFRecord files."""
    crc = google_crc32c.value(data)
    turned = crc >> 15 | crc << 17
    return struct.pack("<I", (turned + 0xA282EAD8) & 0xFFFFFFFF)
