"""Units that are copies of each other."""

from dataclasses import replace

import numpy as np
import pytest
from health.looks import reading, row
from health.runs import findings, linear, noise, nothing, run_of, weights

from hookboard.health.rules.units import SYMMETRIC_UNITS


def equal(units, value=0.1):
    return [row(8, mean=value, deviation=value / 2) for _ in range(units)]


def symmetric(rows, gradient, layer=None):
    read = weights("fc0", len(rows), rows=rows, gradient=gradient)
    return findings(SYMMETRIC_UNITS, run_of([layer or linear("fc0", len(rows))], lambda n: read))


EMPTY = [0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.0, 0.0, float("inf"), -float("inf")]
"""A row without a finite value."""

ROUNDED = [[*r[:1], *(v * (1 + 1e-7 * i) for v in r[1:])] for i, r in enumerate(equal(8))]


@pytest.mark.parametrize(
    ("rows", "gradient", "is_said"),
    [
        (equal(8), equal(8, 0.01), True),
        (ROUNDED, equal(8, 0.01), True),
        (nothing(8), nothing(8), True),
        (equal(8), noise(8, scale=0.01), False),
        (noise(8), equal(8, 0.01), False),
        (nothing(8), noise(8, scale=0.01), False),
        (nothing(6) + noise(2), nothing(6) + noise(2, scale=0.01), False),
        ([*equal(2), *[EMPTY] * 6], [*equal(2), *[EMPTY] * 6], False),
    ],
    ids=["equal", "rounded", "zeros", "other gradients", "other weights", "zeros that learn", "pruned", "of NaN"],
)
def test_units_with_equal_weights_and_equal_gradients_are_an_alarm(rows, gradient, is_said):
    found = symmetric(rows, gradient)
    assert [(finding.module, finding.severity) for finding in found] == [("fc0", "alarm")] * is_said


def test_frozen_weights_and_embeddings_are_no_matter():
    assert not symmetric(equal(8), equal(8, 0.01), linear("fc0", trainable=False))
    assert not symmetric(equal(8), equal(8, 0.01), linear("fc0", kind="embedding"))


@pytest.mark.parametrize("shape", [(8,), (1, 8, 1, 1), (8, 1, 1)])
@pytest.mark.parametrize("gradient", [noise(8, scale=0.01), equal(8, 0.01)])
def test_a_factor_for_each_channel_has_no_units_that_could_be_copies(shape, gradient):
    ones = [row(1, 1.0, 0.0)] * 8
    scale = replace(linear("fc0", kind="other"), shapes={"fc0.weight": shape}, weights=("fc0.weight",))
    assert not symmetric(ones, gradient, scale)
    assert symmetric(ones, equal(8, 0.01), linear("fc0", 8, 1))  # which has one input


def test_of_several_layers_with_equal_units_the_first_is_named():
    layers = [linear("fc0"), linear("fc1")]
    read = [r for layer in layers for r in weights(layer.name, rows=equal(8), gradient=equal(8, 0.01))]
    (finding,) = findings(SYMMETRIC_UNITS, run_of(layers, lambda n: read))
    assert finding.module == "fc0"
    assert finding.evidence.endswith("The same is true of 1 later layer.")


def seen_of(weight, inputs, wanted):
    """What is said of a linear layer with this weight, in float64, where a squared error asks for other outputs.

    The numbers are those of the tensors themselves. The oracle is which of their rows are equal.
    """
    outputs = inputs @ weight.T
    gradient = (outputs - wanted).T @ inputs / len(inputs)

    def rows(tensor):
        return [row(len(r), r.mean(), r.std(), float((r == 0).sum()), r.min(), r.max()) for r in tensor]

    read = [
        reading("fc0", "output", rows(outputs.T)),
        reading("fc0.weight", "parameter_before", rows(weight)),
        reading("fc0.weight", "parameter_grad", rows(gradient)),
    ]
    found = findings(SYMMETRIC_UNITS, run_of([linear("fc0", *weight.shape)], lambda n: read))
    both = np.hstack([weight, gradient])
    equal = sum((both == one).all(axis=1).sum() > 1 for one in both)
    return found, int(equal)


RNG = np.random.default_rng(0)
ONE_HOT = np.tile(np.eye(8), (16, 1))


@pytest.mark.parametrize("inputs", [RNG.normal(size=(128, 8)), ONE_HOT])
@pytest.mark.parametrize("is_learnt", [True, False])
def test_the_rows_of_an_identity_are_no_copies_of_each_other(inputs, is_learnt):
    """Once it has nothing more to learn, all gradients are 0; the rows have the same elements in another order."""
    wanted = inputs if is_learnt else RNG.normal(size=inputs.shape)
    found, equal = seen_of(np.eye(8), inputs, wanted)
    assert (found, equal) == ([], 0)


def test_rows_with_the_same_elements_in_another_order_are_no_copies_though_their_gradients_are_so_too():
    weight = np.array([[1.0, 2, 3, 4, 0, 0, 0, 0], [4.0, 3, 2, 1, 0, 0, 0, 0]] * 4)
    weight[2:] = RNG.normal(size=(6, 8))
    inputs = RNG.normal(size=(128, 8))
    inputs[64:] = inputs[:64, [3, 2, 1, 0, 4, 5, 6, 7]]
    wanted = RNG.normal(size=(128, 8))
    wanted[:, 1] = np.roll(wanted[:, 0], 64)  # the second unit sees the samples of the first in mirrored order
    inputs[:, 4:] = RNG.normal(size=(128, 4)) * np.linspace(0.5, 2, 128)[:, None]
    found, equal = seen_of(weight, inputs, wanted)
    assert (found, equal) == ([], 0)


@pytest.mark.parametrize("copies", [2, 5, 8])
def test_as_many_units_are_said_to_be_copies_as_there_are_equal_rows(copies):
    weight, inputs, wanted = RNG.normal(size=(8, 8)), RNG.normal(size=(128, 8)), RNG.normal(size=(128, 8))
    weight[:copies], wanted[:, :copies] = weight[0], wanted[:, :1]
    ((finding,), equal) = seen_of(weight, inputs, wanted)
    assert equal == copies
    assert finding.evidence.startswith(
        f"{equal} of 8 units of fc0.weight have the same weights and gradient as another"
    )
    assert finding.severity == ("alarm" if copies > 4 else "note")
