"""Layers that answer all samples alike."""

import pytest
from health.looks import row
from health.runs import falling, harmed, linear, noise, outputs, run_of, symptoms

from hookboard.health.rules.collapse import COLLAPSED

NAMES = [f"fc{i}" for i in range(8)]
CHAIN = [linear(name) for name in NAMES]


def answers(spreads, names=NAMES):
    """Looks at which the outputs differ between samples by these shares of their RMS."""
    rows = [[row(100, 1.0, s), row(100, -1.0, s)] for s in spreads]
    return [outputs(name, part) for name, part in zip(names, rows, strict=True)]


@pytest.mark.parametrize(("spread", "fires"), [(2e-3, False), (5e-4, True)])
def test_a_layer_from_which_on_all_samples_are_answered_alike_has_collapsed(spread, fires):
    run = run_of(CHAIN, lambda n: answers([1, 1, 1, 1, spread, spread, spread, spread]))
    found = symptoms(COLLAPSED, run)
    assert [(symptom.module, symptom.severity) for symptom in found] == ([("fc4", "note")] if fires else [])


def test_a_collapse_is_an_alarm_where_the_loss_shows_harm():
    (symptom,) = symptoms(COLLAPSED, run_of(CHAIN, lambda n: answers([1] * 4 + [1e-5] * 4), losses=harmed))
    assert symptom.severity == "alarm"


def test_nothing_left_of_the_samples_is_an_alarm_by_itself():
    (symptom,) = symptoms(COLLAPSED, run_of(CHAIN, lambda n: answers([1] * 4 + [0] * 4), losses=falling))
    assert symptom.severity == "alarm"


def test_a_layer_whose_input_is_constant_by_design_is_healthy():
    # A query or a place is embedded beside the main path.
    assert not symptoms(COLLAPSED, run_of(CHAIN, lambda n: answers([1, 1, 0, 0, 1, 1, 1, 1]), losses=harmed))


def test_a_constant_input_is_not_the_fault_of_a_layer():
    assert not symptoms(COLLAPSED, run_of(CHAIN, lambda n: answers([0] * 8), losses=harmed))


def test_one_sample_tells_nothing():
    rows = [row(1, 1.0, 0.0), row(1, -1.0, 0.0)]
    read = [outputs("fc0", noise(8)), *(outputs(name, rows) for name in NAMES[1:])]
    assert not symptoms(COLLAPSED, run_of(CHAIN, lambda n: read, losses=harmed))
