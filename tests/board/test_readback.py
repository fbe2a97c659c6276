"""`hookboard.read`: verdicts and numbers of a run from its event files."""

from dataclasses import replace

import numpy as np
import pytest
from board import runs
from board.logs import record, scalars, write
from board.sick_logs import SICK, STEPS, VERDICTS, layers_of, sick_values

from hookboard import Verdict, read
from hookboard.base.records import HEALTH
from hookboard.board.folders import ReadRun

NAMES = [name for name, _, _ in layers_of()]


@pytest.fixture(scope="module")
def sick(logs):
    return read(logs / "sick")


def test_verdicts_are_those_of_the_monitor(sick):
    assert sick.verdicts == tuple(Verdict(**verdict) for verdict in VERDICTS)
    assert sick.headline.startswith("1 alarm and 1 note")
    assert repr(sick).startswith("ReadRun('sick': 1 alarm and 1 note in 75 layers")


def test_what_a_verdict_follows_from_is_read(tmp_path):
    cause = {**runs.VERDICT, "module": "net.10"}
    verdicts = (cause, {**runs.VERDICT, "follows_from": ["dead_units", "net.10"]})
    health = replace(runs.HEALTH_RECORD, verdicts=verdicts, cards=())
    write(tmp_path / "run", [record(0, HEALTH, health.strings())])
    assert read(tmp_path / "run").verdicts[1].follows_from == ("dead_units", "net.10")


def test_readings_are_arrays_of_layers_by_steps(sick):
    activations, gradients = sick_values(layers_of())
    health, logged = ["health/activation_rms", "health/gradient_rms"], ["train/activation/std", "train/gradient/std"]
    assert list(sick.readings) == health + logged
    read_back = sick.readings["train/gradient/std"]
    assert repr(read_back) == "Measured(75 layers, 60 steps, from step 0 to 118)"
    order = [NAMES.index(name) for name in read_back.layers]
    assert read_back.steps.tolist() == list(STEPS)
    np.testing.assert_array_equal(read_back.values, gradients.astype(np.float32)[order])
    measured = sick.readings["health/activation_rms"][SICK]
    np.testing.assert_array_equal(measured, activations[NAMES.index(SICK)].astype("f4"))


def test_no_step_of_a_long_run_is_left_out(tmp_path):
    write(tmp_path / "run", [scalars(step, {"activation_std/a": step}) for step in range(5000)])
    assert read(tmp_path / "run").readings["train/activation/std"]["a"].tolist() == list(range(5000))


def test_what_was_not_measured_is_nan(tmp_path):
    write(tmp_path / "run", runs.RUNS["nested/recorded"])
    measured = read(tmp_path / "run").readings["health/activation_rms"]
    np.testing.assert_array_equal(measured["net.10"], [1, np.nan, np.inf, 4])


def test_a_frame_of_pandas_has_a_row_for_each_value(sick):
    pandas = pytest.importorskip("pandas")
    frame = sick.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["quantity", "layer", "step", "value"]
    assert len(frame) == 4 * 75 * 60
    assert list(frame.quantity.unique()) == list(sick.readings)
    one = frame[(frame.quantity == "train/activation/std") & (frame.layer == SICK) & (frame.step == 10)]
    assert one.value.tolist() == [np.float32(9.9)]
    empty = ReadRun("bare", "", [], {}).to_pandas()
    assert (list(empty.columns), len(empty)) == (list(frame.columns), 0)


def test_several_runs_are_an_error_that_names_them(logs):
    with pytest.raises(ValueError, match=r"contains 3 runs; pass the folder of one run: .*logs/sick"):
        read(logs)
