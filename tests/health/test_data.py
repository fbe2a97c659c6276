"""What goes into the model."""

import dataclasses

import pytest
from health.looks import reading, row
from health.runs import falling, findings, harmed, linear, outputs, run_of

from hookboard.health.rules.input_data import EQUAL_VALUES_MIN, INPUT_SCALE
from hookboard.health.run import StepFacts
from hookboard.model.layers import Layer
from hookboard.model.sites import Site


def batch(rows):
    return dataclasses.replace(reading("", "input", rows), site=Site("", "input", "0"))


def judged(rows, losses=falling):
    return findings(INPUT_SCALE, run_of([linear("fc")], lambda n: [batch(rows)], losses=losses))


def standard(columns):
    return [row(100, 0.1 * i, 1.0) for i in range(columns)]


@pytest.mark.parametrize(("deviation", "fires"), [(8.0, False), (74.0, True), (0.05, False), (0.005, True)])
def test_an_input_far_from_1_is_worth_a_note(deviation, fires):
    found = judged([row(100, deviation, deviation) for _ in range(3)])
    assert [finding.severity for finding in found] == (["note"] if fires else [])


def test_it_is_an_alarm_where_the_loss_shows_harm():
    (finding,) = judged([row(100, 127, 74, low=0, high=255)] * 3, harmed)
    assert (finding.module, finding.severity) == ("", "alarm")
    assert finding.evidence.startswith("in tensor 0 of the batch, the input ranges from 0 to 255, with an RMS of 147")


@pytest.mark.parametrize(
    ("values", "fires"),
    [([0.0] * 12, True), ([0.0, 1.0] * 6, False), ([1.0, *[0.0] * 11], False), ([0.0] * 7, False), ([0.0] * 8, True)],
)
def test_a_batch_of_one_sample_may_be_constant_by_chance(values, fires):
    """Each sample is all 0 or all 1."""
    rows = {value: [row(1, value, 0.0, low=value, high=value)] * 128 for value in (0.0, 1.0)}
    run = run_of([linear("fc")], lambda n: [batch(rows[values[n]])], len(values), losses=falling)
    assert bool(findings(INPUT_SCALE, run)) is fires


@pytest.mark.parametrize(("deviation", "fires"), [(0.3, False), (0.02, True)])
def test_an_input_that_hardly_varies_is_worth_a_note(deviation, fires):
    assert bool(judged([row(100, -2.0, deviation)] * 3)) is fires


@pytest.mark.parametrize(("times", "fires"), [(10, False), (100, True)])
def test_a_column_a_hundred_times_as_large_as_the_others_is_named(times, fires):
    found = judged([*standard(8), row(100, 0.0, 1.0 * times)])
    assert ["column 8 of the input" in finding.evidence for finding in found] == ([True] if fires else [])


def test_counts_of_words_have_a_long_tail():
    assert not judged([row(100, 5.0 / rank, 5.0 / rank) for rank in range(1, 200)], harmed)


@pytest.mark.parametrize(
    "columns",
    [
        [*standard(6), row(100, 0.0, 0.0, zeros=100), row(100, 1.0, 0.0)],
        [*[row(100, 0.1, 1.0, low=-0.42, high=2.8)] * 6, row(100, -0.42, 0.0)],
    ],
    ids=["0 and 1", "the least number of scaled pixels"],
)
def test_columns_that_never_change_are_healthy_at_numbers_that_a_border_has(columns):
    assert not judged(columns, harmed)


def test_a_column_that_never_changes_is_worth_a_note_and_no_more():
    (finding,) = judged([*standard(6), row(100, -0.42, 0.0)], harmed)
    assert finding.severity == "note"
    assert "1 of 7 columns of the input never changes: column 6 is always -0.42" in finding.evidence


def entrance(rms, gives, losses=harmed, kind="linear"):
    """A first layer with weights of a gain of 1, which is given an input of this RMS."""
    layer = Layer("fc", "Linear", kind, ("fc.weight",), frozenset({"fc.weight"}), {"fc.weight": (8, 4)})
    read = [
        batch([row(100, 0.0, rms) for _ in range(3)]),
        outputs("fc", [row(100, 0.0, gives) for _ in range(8)]),
        reading("fc.weight", "parameter_before", [row(4, 0.0, 0.5) for _ in range(8)]),
    ]
    run = run_of([layer], lambda n: read, losses=losses)
    return [finding.severity for finding in findings(INPUT_SCALE, run)]


def test_an_input_that_a_norm_takes_first_is_well():
    assert entrance(rms=200, gives=200) == ["alarm"]
    assert entrance(rms=200, gives=1, kind="norm") == []


@pytest.mark.parametrize(
    ("what", "which", "fires"),
    [
        ("unread", {"0"}, False),
        ("unread", {"1"}, True),
        ("taken", {"0": 1.0}, False),
        ("taken", {"0": 50.0}, True),
        ("taken", {"1": 1.0}, True),
    ],
)
def test_a_tensor_that_the_loss_does_not_need_or_the_model_scales_may_have_any_scale(what, which, fires):
    run = run_of([linear("fc")], lambda n: [batch([row(100, 0.0, 300.0)] * 3)], losses=harmed)
    run.facts = StepFacts(**{what: which})
    assert bool(findings(INPUT_SCALE, run)) is fires


@pytest.mark.parametrize(
    ("index", "fires"),
    [("0", True), ("0/1", True), ("image", True), ("1", False), ("1/0", False), ("target", False), ("0/label", False)],
)
def test_a_target_is_not_taken_for_what_goes_into_the_model(index, fires):
    given = dataclasses.replace(batch([row(100, 150.0, 80.0)] * 3), site=Site("", "input", index))
    found = findings(INPUT_SCALE, run_of([linear("fc")], lambda n: [given], losses=harmed))
    assert bool(found) is fires


@pytest.mark.parametrize(("finite", "share"), [(90, "10%"), (0.1, "99.9%")])
def test_nan_among_the_targets_is_named_all_the_same_and_its_share_has_no_exponent(finite, share):
    given = dataclasses.replace(batch([row(finite, nonfinite=100 - finite)] * 3), site=Site("", "input", "1"))
    (finding,) = findings(INPUT_SCALE, run_of([linear("fc")], lambda n: [given], losses=harmed))
    assert finding.evidence.startswith(f"in tensor 1 of the batch, {share} of the values are NaN or infinite")


def constant(value, count, **others):
    return [row(count, value, 0.0, **others)]


@pytest.mark.parametrize("value", [0.0, -0.42, 255.0])
def test_an_input_whose_values_are_all_equal_is_an_alarm_where_the_loss_shows_harm(value):
    assert [finding.severity for finding in judged(constant(value, EQUAL_VALUES_MIN))] == ["note"]
    (finding,) = judged(constant(value, EQUAL_VALUES_MIN), harmed)
    assert (finding.module, finding.severity) == ("", "alarm")
    assert finding.evidence.startswith(f"in tensor 0 of the batch, all 64 values are {value:.3g}")


def test_a_number_for_each_sample_or_a_mask_that_lets_all_through_may_be_a_constant():
    assert not judged(constant(-0.42, EQUAL_VALUES_MIN - 1), harmed)
    assert not judged(constant(1.0, EQUAL_VALUES_MIN), harmed)


def test_an_input_of_which_one_value_differs_is_no_constant():
    assert not judged(constant(-0.42, EQUAL_VALUES_MIN, high=-0.41), falling)
    # A deviation that was rounded is not taken for a difference, nor one that was rounded to 0 for none.
    assert judged([row(EQUAL_VALUES_MIN, 0.1, 1e-9, low=0.1, high=0.1)])


def test_an_input_of_columns_that_differ_is_no_constant():
    assert not [s for s in judged([row(32, -0.5, 0.0), row(32, -0.4, 0.0)]) if "all 64 values" in s.evidence]
    assert [s for s in judged([row(32, -0.5, 0.0), row(32, -0.5, 0.0)]) if "all 64 values" in s.evidence]


@pytest.mark.parametrize(("left", "severity"), [(0, "note"), (5, "alarm")])
def test_missing_values_that_the_model_replaces_are_a_note(left, severity):
    given = [batch([row(90, nonfinite=10)] * 3), outputs("fc", [row(100, nonfinite=left)] * 4)]
    (finding,) = findings(INPUT_SCALE, run_of([linear("fc")], lambda n: given, losses=falling))
    assert finding.severity == severity
