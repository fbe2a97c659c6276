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


def constant(value, count=EQUAL_VALUES_MIN, **others):
    return [row(count, value, 0.0, **others)]


BYTES = [row(100, 127, 74, low=0, high=255)] * 3
PIXELS = [row(100, 0.1, 1.0, low=-0.42, high=2.8)] * 6
NEVER_CHANGES = "1 of 7 columns of the input never changes: column 6 is always -0.42"
WORDS = [row(100, 5.0 / rank, 5.0 / rank) for rank in range(1, 200)]
ALL = "in tensor 0 of the batch, all 64 values are"
INPUTS = {
    "of size 8": ([row(100, 8.0, 8.0)] * 3, falling, None),
    "of size 74": ([row(100, 74.0, 74.0)] * 3, falling, ("note", "")),
    "of size 0.05": ([row(100, 0.05, 0.05)] * 3, falling, None),
    "of size 0.005": ([row(100, 0.005, 0.005)] * 3, falling, ("note", "")),
    "of bytes, with harm": (
        BYTES,
        harmed,
        ("alarm", "in tensor 0 of the batch, the input ranges from 0 to 255, with an RMS of 147"),
    ),
    "that varies": ([row(100, -2.0, 0.3)] * 3, falling, None),
    "that hardly varies": ([row(100, -2.0, 0.02)] * 3, falling, ("note", "")),
    "with a column ten times as large": ([*standard(8), row(100, 0.0, 10.0)], falling, None),
    "with a column a hundred times as large": (
        [*standard(8), row(100, 0.0, 100.0)],
        falling,
        ("note", "column 8 of the input"),
    ),
    "of counts of words, which have a long tail": (WORDS, harmed, None),
    "with a border of 0 and a column of ones": (
        [*standard(6), row(100, 0.0, 0.0, zeros=100), row(100, 1.0, 0.0)],
        harmed,
        None,
    ),
    "with a border at the least number of scaled pixels": ([*PIXELS, row(100, -0.42, 0.0)], harmed, None),
    "with a column that never changes": ([*standard(6), row(100, -0.42, 0.0)], harmed, ("note", NEVER_CHANGES)),
    "of equal values": (constant(-0.42), falling, ("note", f"{ALL} -0.42")),
    "of zeros, with harm": (constant(0.0), harmed, ("alarm", f"{ALL} 0")),
    "of equal values, with harm": (constant(255.0), harmed, ("alarm", f"{ALL} 255")),
    "of a number for each sample": (constant(-0.42, EQUAL_VALUES_MIN - 1), harmed, None),
    "of a mask that lets all through": (constant(1.0), harmed, None),
    "of which one value differs": (constant(-0.42, high=-0.41), falling, None),
    # A deviation that was rounded is not taken for a difference, nor one that was rounded to 0 for none.
    "of equal values but for rounding": ([row(64, 0.1, 1e-9, low=0.1, high=0.1)], falling, ("note", f"{ALL} 0.1")),
    "of two columns of one value": ([row(32, -0.5, 0.0)] * 2, falling, ("note", f"{ALL} -0.5")),
}


@pytest.mark.parametrize(("columns", "losses", "said"), INPUTS.values(), ids=INPUTS)
def test_an_input(columns, losses, said):
    found = [(finding.module, finding.severity) for finding in judged(columns, losses)]
    assert found == ([] if said is None else [("", said[0])])
    assert said is None or said[1] in judged(columns, losses)[0].evidence


def test_an_input_of_columns_that_differ_is_no_constant():
    assert not [s for s in judged([row(32, -0.5, 0.0), row(32, -0.4, 0.0)]) if "all 64 values" in s.evidence]


@pytest.mark.parametrize(
    ("values", "fires"),
    [([0.0] * 12, True), ([0.0, 1.0] * 6, False), ([1.0, *[0.0] * 11], False), ([0.0] * 7, False), ([0.0] * 8, True)],
)
def test_a_batch_of_one_sample_may_be_constant_by_chance(values, fires):
    """Each sample is all 0 or all 1."""
    rows = {value: [row(1, value, 0.0, low=value, high=value)] * 128 for value in (0.0, 1.0)}
    run = run_of([linear("fc")], lambda n: [batch(rows[values[n]])], len(values), losses=falling)
    assert bool(findings(INPUT_SCALE, run)) is fires


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


@pytest.mark.parametrize(("left", "severity"), [(0, "note"), (5, "alarm")])
def test_missing_values_that_the_model_replaces_are_a_note(left, severity):
    given = [batch([row(90, nonfinite=10)] * 3), outputs("fc", [row(100, nonfinite=left)] * 4)]
    (finding,) = findings(INPUT_SCALE, run_of([linear("fc")], lambda n: given, losses=falling))
    assert finding.severity == severity
