"""What is written to TensorBoard's files."""

import io

import pytest
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.summary.writer.record_writer import RecordWriter

from hookboard.writers.tensorboard import QuickRecordWriter


def own_checksum(data):
    """TensorBoard's own, for which conftest.py has put a quicker one."""
    return pywrap_tensorflow.crc_finalize(pywrap_tensorflow.crc_update(pywrap_tensorflow.CRC_INIT, data))


@pytest.mark.parametrize("data", [*(bytes(range(size)) for size in range(18)), bytes(range(256)) * 50])
def test_a_record_is_the_one_that_tensorboard_writes(data, monkeypatch):
    monkeypatch.setattr(pywrap_tensorflow, "crc32c", own_checksum)
    ours, theirs = io.BytesIO(), io.BytesIO()
    QuickRecordWriter(ours).write(data)
    RecordWriter(theirs).write(data)
    assert ours.getvalue() == theirs.getvalue()
