"""Folders with event files that cannot be read: the others are read, and one warning names the folder and the cause."""

import os
import shutil
import struct
import warnings

import google_crc32c
import pytest
from tensorboard.compat.proto.event_pb2 import Event

from hookboard import HookboardWarning
from hookboard.board.folders import open_folders

NAME = "events.out.tfevents.1.x"


def framed(data):
    """As TensorBoard frames an event in a file, with the right checksums."""
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


def checksum(data):
    sum_of_all = google_crc32c.value(data)
    return struct.pack("<I", ((sum_of_all >> 15 | sum_of_all << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def event(tag):
    event = Event(step=1, wall_time=1.0)
    event.summary.value.add(tag=tag, simple_value=1.0)
    return event.SerializeToString()


LENGTH = struct.pack("<Q", 1 << 60)
DAMAGED = {
    "garbage": framed(event("a")) + framed(b"\xff\xfe garbage"),
    "a tag that is no text": framed(event("tag").replace(b"tag", b"\xff\xfea")),
    "a length of 2**60": framed(event("a")) + LENGTH + checksum(LENGTH) + b"abc",
}


FLIPPED = bytearray(framed(event("a")))
FLIPPED[-6] ^= 255
DAMAGED["a flipped byte"] = framed(event("a")) + bytes(FLIPPED) + framed(event("b"))


@pytest.fixture
def both(logs, tmp_path):
    """A folder with a run that can be read, and one for what cannot."""
    shutil.copytree(logs / "sick", tmp_path / "sick")
    (tmp_path / "bad").mkdir()
    return tmp_path


def names_with_warning(folder, match):
    with pytest.warns(HookboardWarning, match=match) as caught:
        _, names = open_folders([folder])
    assert len(caught) == 1
    return names


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_leaves_the_other_runs(both, data):
    (both / "bad" / NAME).write_bytes(data)
    assert names_with_warning(both, r"bad: the rest of its event files cannot be read") == [f"{both.name}/sick"]


def test_a_file_whose_first_record_is_said_to_be_huge_ends_in_no_error_of_memory(tmp_path):
    (tmp_path / "events.out.tfevents.0.x").write_bytes(LENGTH + checksum(LENGTH) + b"abc")
    (tmp_path / NAME).write_bytes(framed(event("activation_std/net.0")))
    with (
        pytest.warns(HookboardWarning, match="the rest of its event files cannot be read"),
        pytest.raises(ValueError, match="no event file"),
    ):
        open_folders([tmp_path])


def test_a_record_that_is_still_being_written_is_no_damage(both):
    (both / "bad" / NAME).write_bytes(framed(event("a")) + framed(event("b"))[:-3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_folders([both])[1] == [f"{both.name}/sick"]


def test_a_folder_that_may_not_be_read_leaves_the_others(both, monkeypatch):
    scandir = os.scandir

    def refused(path):
        if str(path).endswith("bad"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert names_with_warning(both, r"left out: .*Permission denied: '.*bad'") == [f"{both.name}/sick"]
