"""What was spoiled in one run, was never ours or cannot be read: it is said, and all else is shown."""

import contextlib
import json
import math
import os
import shutil
import struct
import time
import tracemalloc
import warnings
import zlib

import google_crc32c
import pytest
from board import logs, runs
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING

from hookboard import HookboardWarning
from hookboard.base.records import HEALTH, LAYERS
from hookboard.board.folders import open_folders

GOOD = [logs.scalars(0, {"activation_std/net.0": 1.0}), logs.record(0, f"{LAYERS}/Mine", runs.LAYERS_RECORD.strings())]

WHOLE = {"version": 1, "callback": "ParameterLogger", "every_n_steps": 1}


def with_fields(columns=None, **fields):
    first, *own = runs.HEALTH_RECORD.strings()
    return logs.record(0, HEALTH, [json.dumps(json.loads(first) | fields).encode(), *(columns or own)])


@contextlib.contextmanager
def little_of(seconds, megabytes):
    """What is done inside takes no more than this; Python's own count of memory makes all of it slower."""
    start = time.process_time()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
        assert time.process_time() - start < seconds
    finally:
        tracemalloc.stop()


def with_tensor(tag, plugin, dtype, size, content):
    """A tensor whose content does not fill its shape."""
    event = logs.histogram(0, tag, [0.0, 1.0], [1])
    value = event.summary.value[0]
    value.ClearField("histo")
    value.metadata.plugin_data.plugin_name = plugin
    value.metadata.data_class = 2
    value.tensor.dtype = dtype
    value.tensor.tensor_shape.dim.add(size=size)
    value.tensor.tensor_content = content
    return event


SPOILED = {
    "a step that is none": with_fields(steps=[0, 10, 20, math.inf]),
    "a verdict that is none": with_fields(verdicts=[runs.VERDICT | {"until": [1]}]),
    "more values than it holds": with_fields(
        2 * [zlib.compress(bytes(81_920_000))], layers=[f"{i:x}" for i in range(40_000)], steps=list(range(1024))
    ),
    "nested without end": logs.record(0, HEALTH, [b"[" * 200_000]),
    "less than none": with_tensor(HEALTH, "hookboard", DT_STRING, -1, b""),
}


@pytest.mark.parametrize("event", SPOILED.values(), ids=SPOILED)
def test_a_spoiled_record_is_said_and_all_else_is_shown(tmp_path, event):
    logs.write(tmp_path / "good", GOOD)
    logs.write(tmp_path / "spoiled", [*GOOD, event])
    with logs.slow(tmp_path) as board:
        status, answer = board.ask("runs")
        assert (status, [run["name"] for run in answer["runs"]]) == (200, ["good", "spoiled"])
        status, answer = board.ask("run", run="spoiled")
        assert (status, answer["is_ordered"], len(answer["layers"])) == (200, True, len(runs.FACTS) + 1)
        assert [HEALTH in warning for warning in answer["warnings"]] == [True]


def test_what_is_no_histogram_is_said(tmp_path):
    spoiled = with_tensor("activations/net.0", "histograms", DT_FLOAT, 3, b"ab")
    logs.write(tmp_path, [*GOOD, spoiled])
    with logs.slow(tmp_path) as board:
        status, answer = board.ask("histogram", run=".", tag="activations/net.0")
    assert (status, answer["error"].startswith("hookboard failed with an internal error")) == (500, True)


def test_parameters_of_the_whole_model_are_rows_of_it(tmp_path):
    layers = [{"name": "", "types": ["my.Model"], "output": None, "parameters": {"scale": [3], "a.b": [2]}}]
    record = json.dumps(WHOLE | {"layers": layers}).encode()
    logs.write(tmp_path, [logs.record(0, f"{LAYERS}/P", [record]), logs.scalars(0, {"parameter_l2/scale": 2.0})])
    logs.write(tmp_path, [with_fields(layers=["", "b", "c", "d"], verdicts=[runs.VERDICT | {"module": ""}])])
    with logs.slow(tmp_path) as board:
        assert board.ask("map", run=".", series="train/parameter/l2")[1]["modules"] == [""]
        status, answer = board.ask("layer", run=".", layer="")
        assert (status, answer["layer"]["type"], answer["verdicts"][0]["module"]) == (200, "Model", "")
        assert [one["row"] for one in answer["series"] if one["id"] == "train/parameter/l2"] == ["scale"]


def test_a_run_with_a_shape_that_no_tensor_has_is_shown(tmp_path):
    given = {"name": "net.0", "types": [], "output": None, "parameters": {"net.0.weight": [10**4000] * 100}}
    spoiled = logs.record(0, f"{LAYERS}/Spoiled", [json.dumps(WHOLE | {"layers": [given]}).encode()])
    logs.write(tmp_path, [*GOOD, spoiled])
    with logs.slow(tmp_path) as board:
        status, answer = board.ask("run", run=".")
    assert (status, len(answer["layers"]), len(answer["warnings"])) == (200, len(runs.FACTS) + 1, 1)


@pytest.mark.parametrize("letters", ["/", "1a"])
def test_a_tag_of_very_many_letters_is_left_out(tmp_path, letters):
    spoiled = logs.scalars(0, {"activation_std/net.1" + 400_000 * letters: 1.0})
    logs.write(tmp_path, [*GOOD, spoiled, logs.picture(0, "cam/" + 400_000 * letters, b"")])
    with logs.slow(tmp_path) as board, little_of(seconds=10, megabytes=20):
        status, answer = board.ask("map", run=".", series="train/activation/std")
        assert (status, answer["rows"]) == (200, ["net.0"])
        assert board.ask("layer", run=".", layer="net.0")[0] == 200


NAME = "events.out.tfevents.1.x"


def framed(data):
    """As TensorBoard frames an event in a file, with the right checksums."""
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


def checksum(data):
    sum_of_all = google_crc32c.value(data)
    return struct.pack("<I", ((sum_of_all >> 15 | sum_of_all << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def event_of(tag):
    event = Event(step=1, wall_time=1.0)
    event.summary.value.add(tag=tag, simple_value=1.0)
    return event.SerializeToString()


LENGTH = struct.pack("<Q", 1 << 60)
FLIPPED = bytearray(framed(event_of("a")))
FLIPPED[-6] ^= 255
DAMAGED = {
    "garbage": framed(event_of("a")) + framed(b"\xff\xfe garbage"),
    "a tag that is no text": framed(event_of("tag").replace(b"tag", b"\xff\xfea")),
    "a flipped byte": framed(event_of("a")) + bytes(FLIPPED) + framed(event_of("b")),
    "a length of 2**60": framed(event_of("a")) + LENGTH + checksum(LENGTH) + b"abc",
}


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
    (tmp_path / NAME).write_bytes(framed(event_of("activation_std/net.0")))
    with (
        pytest.warns(HookboardWarning, match="the rest of its event files cannot be read"),
        pytest.raises(ValueError, match="no event file"),
    ):
        open_folders([tmp_path])


def test_a_record_that_is_still_being_written_is_no_damage(both):
    (both / "bad" / NAME).write_bytes(framed(event_of("a")) + framed(event_of("b"))[:-3])
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
