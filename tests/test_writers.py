"""What is written to TensorBoard's files."""

import io

import pytest
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from hookboard.writers.tensorboard_private import QuickRecordWriter, quick_writer_of


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


def test_tensorboard_no_longer_computes_checksums(tmp_path, monkeypatch):
    writer = SummaryWriter(tmp_path)
    quick_writer_of(writer)
    asked = []
    monkeypatch.setattr("tensorboard.summary.writer.record_writer.masked_crc32c", asked.append)
    writer.add_scalar("loss", 1.0, 0)
    writer.flush()
    writer.close()
    assert not asked
