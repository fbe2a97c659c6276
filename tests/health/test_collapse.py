"""Layers that answer all samples alike."""

import pytest
from health.looks import reading, row
from health.runs import apart, falling, findings, harmed, linear, noise, outputs, run_of

from hookboard.health.rules.signal import COLLAPSED
from hookboard.model.layers import Layer

NAMES = [f"fc{i}" for i in range(8)]
CHAIN = [linear(name) for name in NAMES]


def answers(spreads, names=NAMES):
    """Looks at which the outputs differ between samples by these shares of their RMS."""
    rows = [[row(100, 1.0, s), row(100, -1.0, s)] for s in spreads]
    return [outputs(name, part) for name, part in zip(names, rows, strict=True)]


@pytest.mark.parametrize(
    ("end", "losses", "severities"), [(0.03, falling, []), (0.01, falling, ["note"]), (0.01, harmed, ["alarm"])]
)
def test_a_model_that_answers_all_samples_nearly_alike_is_a_note_and_with_harm_an_alarm(end, losses, severities):
    run = run_of(CHAIN, lambda n: answers([1, 1, 1, 1, 0.5, 0.2, 0.1, end]), losses=losses, count=12)
    assert [finding.severity for finding in findings(COLLAPSED, run)] == severities


@pytest.mark.parametrize(("end", "count", "severity"), [(5e-4, 6, "alarm"), (5e-4, 3, "note"), (1e-7, 3, "alarm")])
def test_it_is_an_alarm_by_itself_where_nothing_is_left_after_the_first_steps(end, count, severity):
    gradient = reading("fc7", "grad_output", [row(100, 0.01, 0.01), row(100, -0.01, 0.01)])  # as after a softmax
    read = [*answers([1] * 7 + [end]), gradient]
    (finding,) = findings(COLLAPSED, run_of(CHAIN, lambda n: read, count=count, losses=falling))
    assert finding.severity == severity


def test_numbers_to_be_hit_may_differ_by_a_thousandth_of_their_size():
    gradient = reading("fc7", "grad_output", [row(100, 0.01, 0.01), row(100, 0.02, 0.01)])
    run = run_of(CHAIN, lambda n: [*answers([1] * 7 + [5e-4]), gradient], losses=falling)
    assert [finding.severity for finding in findings(COLLAPSED, run)] == ["note"]


@pytest.mark.parametrize(
    ("spreads", "module"),
    [([1, 0.8, 1, 1e-4, 1e-4, 2e-4, 1e-4, 1e-4], "fc3"), ([10 ** (-0.6 * i) for i in range(8)], "")],
    ids=["in one layer", "from layer to layer"],
)
def test_the_layer_is_named_that_loses_what_tells_samples_apart_if_it_is_one(spreads, module):
    (finding,) = findings(COLLAPSED, run_of(CHAIN, lambda n: answers(spreads)))
    assert finding.module == module


def test_a_branch_that_gives_a_constant_is_healthy_unless_it_was_none_at_first():
    constant = [1, 1, 0, 0, 1, 1, 1, 1]
    assert not findings(COLLAPSED, run_of(CHAIN, lambda n: answers(constant), losses=harmed))
    (finding,) = findings(COLLAPSED, run_of(CHAIN, lambda n: answers(constant if n else [1] * 8), losses=harmed))
    assert (finding.module, finding.severity) == ("fc2", "note")


@pytest.mark.parametrize(("feeds", "fires"), [([], False), (NAMES[:7], True)])
def test_a_learned_prompt_that_runs_last_is_the_same_for_all_samples_by_design(feeds, fires):
    run = run_of(CHAIN, lambda n: answers([1] * 7 + [0]), losses=harmed)
    run.facts = apart(**{name: NAMES[:i] for i, name in enumerate(NAMES[:7])}, fc7=feeds)
    assert bool(findings(COLLAPSED, run)) is fires


def test_a_constant_input_is_not_the_fault_of_a_layer():
    assert not findings(COLLAPSED, run_of(CHAIN, lambda n: answers([0] * 8), losses=harmed))


def test_a_single_number_far_from_0_is_healthy():
    # A year: 2000, give or take 1.
    read = [outputs("fc0", noise(8)), outputs("fc1", noise(8)), outputs("fc2", [row(100, 2000.0, 1.0)])]
    assert not findings(COLLAPSED, run_of(CHAIN[:3], lambda n: read, losses=harmed))


def test_one_sample_tells_nothing():
    rows = [row(1, 1.0, 0.0), row(1, -1.0, 0.0)]
    read = [outputs("fc0", noise(8)), *(outputs(name, rows) for name in NAMES[1:])]
    assert not findings(COLLAPSED, run_of(CHAIN, lambda n: read, losses=harmed))


def test_what_a_softmax_makes_of_the_answers_is_no_matter():
    softmax = Layer("softmax", "Softmax", "other")
    read = [*answers([1, 1], NAMES[:2]), outputs("softmax", [row(100, 0.1, 1e-4) for _ in range(10)])]
    assert not findings(COLLAPSED, run_of([*CHAIN[:2], softmax], lambda n: read, losses=harmed))
