"""What was spoiled in one run, or was never ours: it is said, and all else is shown."""

import json
import math

import pytest
from board import logs, runs
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_STRING

from hookboard.record import HEALTH, LAYERS

GOOD = [logs.scalars(0, {"activation_std/net.0": 1.0}), logs.record(0, f"{LAYERS}/Mine", runs.LAYERS_RECORD.strings())]


def with_fields(**fields):
    first, *columns = runs.HEALTH_RECORD.strings()
    return logs.record(0, HEALTH, [json.dumps(json.loads(first) | fields).encode(), *columns])


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
    "a step beyond all": with_fields(steps=[0, 10, 20, 2**63]),
    "a cadence that is none": with_fields(every_n_steps=math.inf),
    "a verdict since ever": with_fields(verdicts=[runs.VERDICT | {"since": -math.inf}]),
    "nested without end": logs.record(0, HEALTH, [b"[" * 200_000]),
    "half a number": with_tensor(HEALTH, "hookboard", DT_FLOAT, 3, b"ab"),
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
    assert status == 400
    assert "no tensor at 'activations/net.0'" in answer["error"]


WHOLE = {"version": 1, "callback": "ParameterLogger", "every_n_steps": 1}


def test_parameters_of_the_whole_model_are_rows_of_it(tmp_path):
    layers = [{"name": "", "types": ["my.Model"], "output": None, "parameters": {"scale": [3], "a.b": [2]}}]
    record = json.dumps(WHOLE | {"layers": layers}).encode()
    logs.write(tmp_path, [logs.record(0, f"{LAYERS}/P", [record]), logs.scalars(0, {"parameter_l2/scale": 2.0})])
    logs.write(tmp_path, [with_fields(layers=["", "b", "c", "d"], verdicts=[runs.VERDICT | {"module": ""}])])
    with logs.slow(tmp_path) as board:
        assert board.ask("map", run=".", series="train/parameter/l2")[1]["modules"] == [""]
        status, answer = board.ask("layer", run=".", layer="")
        assert (status, answer["layer"]["type"], answer["verdicts"][0]["module"]) == (200, "Model", "")
        assert [(one["row"], one["values"]) for one in answer["series"] if one["id"] == "train/parameter/l2"] == [
            ("scale", [2.0])
        ]
