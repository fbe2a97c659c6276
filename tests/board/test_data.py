"""Each number that the page gets, against the event files read raw, on both of TensorBoard's loaders."""

import math
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from board import logs, runs

from hookboard.base.records import HEALTH, LAYERS, HealthRecord, LayerFacts
from hookboard.board.folders import open_folders

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what TensorBoard comes with
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from hookboard.board.logged_run import LoggedRun, default_of

WIDTHS = [1, 7, 2000]


@cache
def raw_events(folder):
    raw = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    raw.Reload()
    return raw


@cache
def points(log_directory, run, tag):
    """The points of a tag, as the file has them; after a restart, without those that were written again."""
    events = [(event.step, event.value) for event in raw_events(log_directory / run).Scalars(tag)]
    return [point for i, point in enumerate(events) if all(later[0] > point[0] for later in events[i + 1 :])]


def shown(value):
    """A number as JSON has it."""
    return value if value is None or math.isfinite(value) else str(value)


def cells(curve, steps, *, is_held=False):
    """What a row shows in each column: the last value since the column before, or the last that is not finite."""
    found = []
    for i, step in enumerate(steps):
        within = [value for at, value in curve if at <= step and (i == 0 or at > steps[i - 1])]
        bad = [value for value in within if not math.isfinite(value)]
        before = [value for at, value in curve if at <= step] if is_held else []
        found.append(shown([None, *before[-1:], *within[-1:], *bad[-1:]][-1]))
    return found


def assert_same(found, expected):
    # Event files hold float32.
    assert [type(one) for one in found] == [type(one) for one in expected]
    numbers = [(f, e) for f, e in zip(found, expected, strict=True) if isinstance(f, float)]
    assert [f for f in found if not isinstance(f, float)] == [e for e in expected if not isinstance(e, float)]
    np.testing.assert_array_equal([f for f, _ in numbers], [e for _, e in numbers])


def test_all_runs_with_our_data_are_listed_in_natural_order(board):
    status, answer = board.ask("runs")
    names = [run["name"] for run in answer["runs"]]
    ours = [".", "corrupt", "first_2", "first_10", "mixed", "nested/recorded", "nested/recorded/second"]
    assert (status, names, answer["hint"]) == (200, [*ours, "nested/wild run"], "")
    judged = {run["name"]: (run["alarms"], run["notes"], run["is_over"]) for run in answer["runs"]}
    assert {name for name, said in judged.items() if said == (None, None, False)} == {*ours[:5], "nested/wild run"}
    assert judged["nested/recorded"] == (1, 2, False)
    recorded = next(run for run in answer["runs"] if run["name"] == "nested/recorded")
    assert (recorded["step"], recorded["loss"]) == (40, 1.0)
    assert [run["step"] for run in answer["runs"] if run["name"] == "nested/recorded/second"] == [45]
    assert recorded["written"] <= answer["now"]


@pytest.mark.parametrize("run", [".", "nested/wild run", "nested/recorded", "first_10", "mixed"])
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_map_shows_the_numbers_of_the_file(board, log_directory, run, columns):
    for series in board.ask("run", run=run)[1]["series"]:
        if series["source"] == "health":
            continue
        _, answer = board.ask("map", run=run, series=series["id"], columns=columns)
        stage = "" if series["stage"] == "train" else f"{series['stage']}_"
        tag = f"{stage}{series['kind']}_{series['statistic']}"
        curves = {row: points(log_directory, run, f"{tag}/{row}") for row in answer["rows"]}
        assert len(curves) == series["rows"]
        union = sorted({step for curve in curves.values() for step, _ in curve})
        steps = answer["steps"]
        assert len(steps) == min(columns, len(union))
        assert steps[-1] == union[-1]
        assert columns == 1 or steps[0] == union[0]
        places = [union.index(step) for step in steps]
        gaps = np.diff(places)
        assert (gaps > 0).all()
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
        for curve, values in zip(curves.values(), answer["values"], strict=True):
            assert_same(values, cells(curve, steps))


def test_of_what_was_written_twice_the_last_counts(board):
    _, answer = board.ask("map", run=".", series="train/activation/std")
    assert answer["steps"] == list(range(0, 130, 10))
    assert answer["values"] == [[0.0, 10.0, 20.0, *(2000.0 + step for step in range(30, 130, 10))]]
    assert board.ask("map", run=".", series="train/activation/rms")[1]["values"] == [[2.0]]


@pytest.mark.parametrize(
    ("quantity", "rows"),
    [("activation_rms", ["net.stem", "net.10", "net.9", "net.head"]), ("dead_fraction", ["net.stem", "net.9"])],
)
def test_a_map_of_the_health_record_shows_its_numbers_and_a_row_of_a_sick_layer_without_any(board, quantity, rows):
    _, answer = board.ask("map", run="nested/recorded", series=f"health/{quantity}")
    given = dict(zip(runs.HEALTH_RECORD.layers, runs.HEALTH_RECORD.values[quantity].tolist(), strict=True))
    assert (answer["steps"], answer["rows"]) == ([0, 10, 20, 40], rows)
    for row, values in zip(answer["rows"], answer["values"], strict=True):
        assert_same(values, [None if math.isnan(value) else shown(value) for value in given[row]])


def test_rows_are_in_the_order_in_which_layers_ran(board):
    rows = board.ask("map", run="nested/recorded", series="train/activation/std")[1]["rows"]
    assert rows == ["net.stem", "net.10", "net.10/0", "net.9", "net.head"]
    _, answer = board.ask("map", run="nested/recorded", series="train/parameter/l2")
    assert answer["rows"] == [name for layer in runs.FACTS for name in layer.parameters]
    assert answer["modules"] == ["net.10", "net.10", "net.9", "net.9", "net.head", "net.head"]


def test_without_a_record_rows_are_in_natural_order_and_somebodys_own_tags_are_no_series(board):
    assert not board.ask("run", run="first_2")[1]["is_ordered"]
    rows = board.ask("map", run="first_2", series="train/gradient/mean")[1]["rows"]
    assert rows == ["layers.1", "layers.9", "layers.10"]
    ids = [series["id"] for series in board.ask("run", run="mixed")[1]["series"]]
    assert ids == ["train/activation/std", "train/activation/near_zero"]


def test_what_a_run_holds(board):
    _, answer = board.ask("run", run="nested/recorded")
    assert answer["is_ordered"]
    assert [layer["name"] for layer in answer["layers"]] == ["net.stem", "net.10", "net.9", "net.head"]
    assert answer["layers"][1] == {
        "name": "net.10",
        "type": "Linear",
        "types": ["torch.nn.modules.linear.Linear"],
        "output": [4, 8],
        "parameters": {"net.10.weight": [8, 8], "net.10.bias": [8]},
        "frozen": ["net.10.bias"],
        "count": 72,
    }
    assert list(answer["layers"][2]["parameters"]) == ["net.9.weight", "net.9.bias"]  # two records tell of it
    assert answer["headline"] == "1 alarm in 4 layers."
    assert answer["verdicts"] == [{**verdict, "names": []} for verdict in runs.HEALTH_RECORD.verdicts]
    assert answer["warnings"] == []
    ids = [series["id"] for series in answer["series"]]
    assert ids == ["health/activation_rms", "health/dead_fraction", "train/activation/std", "train/parameter/l2"]
    assert [series["id"] for series in answer["series"] if series["is_default"]] == ["health/activation_rms"]
    assert [series["scale"] for series in answer["series"]] == ["log", "linear", "log", "log"]


@pytest.mark.parametrize(
    ("shows", "first"),
    [("gradient_rms", "health/gradient_rms"), ("", "health/activation_rms"), ("gone", "health/activation_rms")],
)
def test_the_series_that_shows_the_worst_verdict_is_shown_first(shows, first):
    health = replace(runs.HEALTH_RECORD, shows=shows)
    assert default_of(["train/activation/std", "health/activation_rms", "health/gradient_rms"], health) == first


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(board):
    status, answer = board.ask("run", run="corrupt")
    assert status == 200
    assert [series["id"] for series in answer["series"]] == ["train/activation/std"]
    text = "\n".join(answer["warnings"])
    assert len(answer["warnings"]) == 3
    assert "written by a newer hookboard" in text
    assert all(tag in text for tag in (HEALTH, f"{LAYERS}/Newer", f"{LAYERS}/Strange"))


@pytest.mark.parametrize("columns", WIDTHS)
def test_two_runs_are_compared_row_by_row(board, log_directory, columns):
    first, second = "nested/recorded", "nested/recorded/second"
    _, answer = board.ask("map", run=second, series="train/activation/std", against=first, columns=columns)
    assert answer["unmatched"] == []
    for row, own, other in zip(answer["rows"], answer["values"], answer["against_values"], strict=True):
        tag = f"activation_std/{row}"
        assert_same(own, cells(points(log_directory, second, tag), answer["steps"]))
        assert_same(other, cells(points(log_directory, first, tag), answer["steps"], is_held=True))


def test_two_stages_of_a_run_are_compared_row_by_row(tmp_path):
    values = {step: {"activation_std/a": 1.0 + step, "activation_std/b": 2.0} for step in range(3)}
    values[1] |= {"validate_activation_std/a": 7.0, "validate_activation_std/c": 8.0}
    logs.write(tmp_path, [logs.scalars(step, scalars) for step, scalars in values.items()])
    given = {"run": ".", "series": "train/activation/std", "against": ".", "against_series": "validate/activation/std"}
    with logs.slow(tmp_path) as board:
        _, answer = board.ask("map", **given)
    assert (answer["rows"], answer["unmatched"]) == (["a"], ["b", "c"])
    assert (answer["values"], answer["against_values"]) == ([[1.0, 2.0, 3.0]], [[None, 7.0, 7.0]])


@pytest.mark.parametrize(
    ("own", "other", "rows"), [("judged", "healthy", ["both", "sick"]), ("healthy", "judged", ["both"])]
)
def test_only_a_row_with_values_in_one_of_two_runs_is_named(tmp_path, own, other, rows):
    """The row `one` has values only in `judged`, and `sick`, which has none, a verdict there."""
    names, nan = ("both", "one", "sick"), math.nan
    for name, value in (("judged", 2.0), ("healthy", nan)):
        verdicts = ({**runs.VERDICT, "module": "sick"},) if name == "judged" else ()
        values = {"update_ratio": np.array([[1.0], [value], [nan]])}
        strings = HealthRecord(1, "A headline.", verdicts, names, (0,), values).strings()
        logs.write(tmp_path / name, [logs.record(0, HEALTH, strings)])
    with logs.slow(tmp_path) as board:
        _, answer = board.ask("map", run=own, series="health/update_ratio", against=other)
    assert (answer["rows"], answer["unmatched"]) == (rows, ["one"])


def test_a_layer_has_its_own_rows_histograms_and_pictures_and_the_verdicts_on_it_and_on_its_blocks(board):
    _, answer = board.ask("layer", run="nested/recorded", layer="net.9")
    assert [(series["id"], series["row"]) for series in answer["series"]] == [
        ("health/dead_fraction", "net.9"),  # its RMS was never measured
        ("train/activation/std", "net.9"),
        ("train/parameter/l2", "net.9.weight"),
        ("train/parameter/l2", "net.9.bias"),
    ]
    assert [verdict["module"] for verdict in answer["verdicts"]] == ["net.9", "net"]
    assert answer["histograms"] == [
        {"tag": "activations/net.9", "stage": "train", "kind": "activation", "row": "net.9"},
        {"tag": "parameters/net.9.weight", "stage": "train", "kind": "parameter", "row": "net.9.weight"},
    ]
    _, drawn = board.ask("histogram", run="nested/recorded", tag="activations/net.9")
    assert drawn["steps"] == [0, 10, 20, 30, 40]
    assert drawn["left"] == 5 * [[-1.0, 0.0, 2.0]]
    assert drawn["right"] == 5 * [[0.0, 2.0, 3.0]]
    assert drawn["counts"] == [[1.0 + step, 0.0, 2.0] for step in range(0, 50, 10)]
    assert [(p["tag"], p["label"], p["steps"]) for p in answer["pictures"]] == [
        ("cam/net.9/gradcam", "cam gradcam", [0, 20]),
        ("feature_maps/net.9", "feature maps", [0, 20]),
    ]
    for pictures, kind in zip(answer["pictures"], ("jpeg", "png"), strict=True):
        for key in pictures["keys"]:
            served = board.get("picture", key=key)
            assert (served.status_code, served.mimetype) == (200, f"image/{kind}")
            assert served.data == runs.picture_bytes(kind.upper())


def test_a_run_that_grows_is_followed(tmp_path):
    logs.write(tmp_path, [logs.scalars(step, {"activation_std/net": step}) for step in (0, 10)])
    with logs.slow(tmp_path) as board:
        tokens = [board.ask("runs")[1]["runs"][0]["token"] for _ in range(2)]
        assert board.ask("map", run=".", series="train/activation/std")[1]["values"] == [[0.0, 10.0]]
        later = [logs.scalars(20, {"activation_std/net": 5.0}), logs.scalars(20, {"gradient_std/net": 1.0})]
        logs.write(tmp_path, later, started=2000.0)
        board.reload()
        _, run = board.ask("run", run=".")
        listed = board.ask("runs")[1]["runs"][0]
        assert tokens[0] == tokens[1] != listed["token"]
        assert listed["step"] == 20
        assert len(run["series"]) == 2
        assert board.ask("map", run=".", series="train/activation/std")[1]["values"] == [[0.0, 10.0, 5.0]]


def test_a_run_has_the_curve_of_its_training_loss(tmp_path):
    losses = [(step, math.inf if step == 7 else 1 / (1 + step)) for step in range(20)]
    events = [
        logs.scalars(step, {"train_loss": loss, "val_loss": 9.0, "activation_std/a": 1.0}) for step, loss in losses
    ]
    logs.write(tmp_path, events)
    with logs.slow(tmp_path) as board:
        _, answer = board.ask("run", run=".")
    assert (answer["loss"]["tag"], answer["loss"]["steps"]) == ("train_loss", [step for step, _ in losses])
    assert_same(answer["loss"]["values"], [shown(float(np.float32(loss))) for _, loss in losses])


def test_a_verdict_on_the_whole_model_makes_no_empty_row_and_one_on_a_layer_does(tmp_path):
    values = {"activation_rms": np.array([[np.nan], [1.0], [np.nan], [np.nan]])}
    verdicts = ({"severity": "alarm", "module": ""}, {"severity": "alarm", "module": "sick"})
    record = HealthRecord(1, "Two alarms.", verdicts, ("", "well", "sick", "silent"), (0,), values)
    logs.write(tmp_path / "run", [logs.record(0, HEALTH, record.strings())])
    board, (name,) = open_folders([tmp_path / "run"])
    assert board.logged_run(name).rows == {"health/activation_rms": ["well", "sick"]}


@pytest.mark.parametrize(
    ("evidence", "names"),
    [
        ("9 of 16 units of net.2 (ReLU) gave 0; usual: 0.1.", ["net.2"]),
        ("Adam holds no net.2.weight.", ["net.2"]),
        ("It came from linear() in '0.1', and from tanh (in head).", ["0.1", "head"]),
        ("A head of 0.1 (Linear) all look at 0.1.", ["0.1"]),
        ("The head has 0.1 of net.20.", []),
        ("Only zeros reach net.1 (it follows from dead_units in net.2).", []),
    ],
)
def test_the_layers_that_the_evidence_of_a_verdict_names(evidence, names):
    types = {"net.1": "Linear", "net.2": "ReLU", "0.1": "Linear", "head": "Linear"}
    layers = {name: LayerFacts(name, (f"torch.nn.{of}",)) for name, of in types.items()}
    verdict = {**runs.VERDICT, "module": "net.1", "evidence": evidence}
    health = replace(runs.HEALTH_RECORD, verdicts=(verdict,))
    run = LoggedRun("run", "", {}, layers, True, health, [], {"net.2.weight": "net.2"})
    assert [one["names"] for one in run.verdicts] == [names]
