"""What rules say of layers and inputs of which every k-th channel was measured."""

import dataclasses
import math

import pytest
from health.looks import reading, row
from health.runs import falling, findings, linear, noise, nothing, outputs, rectified, run_of, weights, without_weights

from hookboard.health.rules.input_data import INPUT_SCALE
from hookboard.health.rules.signal import COLLAPSED
from hookboard.health.rules.units import DEAD_UNITS
from hookboard.measure.row import channel_row_count
from hookboard.model.sites import Site

WIDE = 16_384
ROWS = channel_row_count(WIDE)


def wide(given, width=WIDE):
    """The same reading, of as many channels."""
    count = given.moments.count * width / len(given.channels)
    return dataclasses.replace(given, width=width, moments=given.moments._replace(count=count))


def judged(columns):
    batch = dataclasses.replace(wide(reading("", "input", columns), 12_288), site=Site("", "input", "0"))
    return findings(INPUT_SCALE, run_of([linear("fc")], lambda n: [batch], losses=falling))


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (
            row(100, 0.0, 500.0),
            "column 96 of the input has an RMS of 500, while a typical column has 1 (1 of 1,024 sampled columns (of "
            "12,288) is",
        ),
        (
            row(100, 7.0, 0.0),
            "1 of 1,024 sampled columns (of 12,288) of the input never changes: column 96 is always 7",
        ),
    ],
    ids=["wild", "constant"],
)
def test_a_column_is_named_by_its_place_among_all(odd, said):
    (finding,) = judged([odd if i == 8 else row(100, 0.1, 1.0) for i in range(1024)])
    assert said in finding.evidence


def rectifier(rows, weight, units=WIDE):
    """What is said of a wide rectifier behind a layer of so many units."""
    layers = [linear("fc", units, 4), without_weights("act"), linear("head", 3)]
    readings = [
        wide(outputs("fc", noise(ROWS)), units),
        wide(outputs("act", rows)),
        outputs("head", noise(3)),
        *weights("fc", rows=weight, gradient=noise(len(weight))),
        *weights("head", 3, seed=6),
    ]
    return findings(DEAD_UNITS, run_of(layers, lambda n: readings, losses=falling))


def test_pruned_units_of_a_wide_layer_do_not_count():
    half = ROWS // 2
    assert not rectifier(nothing(half) + rectified(half), nothing(half) + noise(half))
    (finding,) = rectifier(nothing(half) + rectified(half), noise(ROWS))
    assert finding.evidence.startswith("512 of 1,024 sampled units (of 16,384) in act (ReLU) have been 0")


def test_the_units_of_a_narrower_layer_with_as_many_rows_are_no_units_of_a_wide_one():
    # The layer before has 1024 units, and all of its weights are 0: that says nothing of the 16,384.
    (finding,) = rectifier(nothing(ROWS), nothing(ROWS), units=ROWS)
    assert finding.module == "act"


def test_chance_goes_by_the_number_of_classes_and_not_by_that_of_rows():
    layers = [linear("fc"), linear("head", WIDE)]
    of_softmax = wide(reading("head", "grad_output", [row(100, 0.0, 0.1)] * ROWS))
    readings = [outputs("fc", noise(8)), wide(outputs("head", noise(ROWS))), of_softmax, *weights("fc")]
    assert run_of(layers, lambda n: readings).losses.chance == math.log(WIDE)


@pytest.mark.parametrize(("each", "is_said"), [(4, False), (8, True)])
def test_whether_a_wide_layer_gives_enough_answers_goes_by_all_of_its_units(each, is_said):
    def seen(n):
        flat = [row(each, 1.0, 1e-5 if n else 0.5) for _ in range(ROWS)]
        return [outputs("fc", noise(8)), wide(outputs("head", flat)), *weights("fc")]

    found = findings(COLLAPSED, run_of([linear("fc"), linear("head", WIDE)], seen, losses=falling))
    assert bool(found) is is_said
