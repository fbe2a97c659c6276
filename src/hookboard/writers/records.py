"""The records of TensorBoard's files, with a checksum that is computed in C."""

import struct
from typing import Any

from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.writer import FileWriter

from hookboard.writers.tensorboard_private import exchange_record_writer

try:
    import hookboard.writers._checksum as _checksum
except ImportError:  # there was no C compiler when hookboard was installed
    _checksum = None  # type: ignore[assignment]  # a module otherwise


def quicken(writer: FileWriter) -> None:
    """Have TensorBoard's thread compute checksums in C; the file stays the same, byte for byte.

    TensorBoard computes them in Python, where a step's values take milliseconds during which training cannot run.
    """
    if _checksum is not None:
        exchange_record_writer(writer, RecordWriter, QuickRecordWriter)


class QuickRecordWriter(RecordWriter):  # type: ignore[misc]  # TensorBoard has no types
    """Writes the records that its base writes.

    Args:
        file: open for writing, in TensorBoard's terms.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._file = file

    def write(self, data: bytes) -> None:
        """Write one record: the length of the data, the data, and behind each its checksum."""
        length = struct.pack("<Q", len(data))
        self._file.write(length + _checksum_of(length) + data + _checksum_of(data))


def _checksum_of(data: bytes) -> bytes:
    crc = _checksum.crc32c(data)
    turned = crc >> 15 | crc << 17
    return struct.pack("<I", (turned + 0xA282EAD8) & 0xFFFFFFFF)
