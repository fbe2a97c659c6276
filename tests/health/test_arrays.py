"""A look as arrays over all layers, and the order statistics that stand for NumPy's."""

import math

import numpy as np
from health.looks import look, reading, row
from health.runs import linear, noise, outputs, weights, without_weights

from hookboard.health.arrays import LayerArrays, LookArrays
from hookboard.health.robust import medians, percentiles

LAYERS = [linear("a"), without_weights("relu"), linear("b", takes=4)]


def arrays_of(*readings):
    return LookArrays(look(0, readings), LayerArrays(LAYERS))


def test_a_layer_that_gave_nothing_has_counts_of_0_and_no_numbers():
    rows = arrays_of(outputs("b", noise(8))).rows["output"]
    assert rows.is_there.tolist() == [False, False, True]
    assert rows.count.tolist() == [0, 0, 800]
    assert rows.nonfinite.tolist() == [0, 0, 0]
    assert np.isnan(rows.rms).tolist() == [True, True, False]


def test_weights_that_were_0_before_the_first_step_are_known_though_their_bias_was_not():
    zero, bias = [row(deviation=0.0, zeros=100)] * 8, [row(mean=1.0)]
    began = [reading("b.weight", "parameter_before", zero), reading("b.bias", "parameter_before", bias)]
    assert arrays_of(*weights("a"), *began).began_at_zero.tolist() == [False, False, True]


def test_percentiles_are_those_of_numpy():
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 10, 62, 257):
        values = np.sort(rng.lognormal(size=count))
        assert percentiles(values.tolist(), (10, 50, 90)) == np.percentile(values, [10, 50, 90]).tolist()


def test_medians_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=(5, 4))
    values[2, 1] = math.nan
    for columns in (3, 4):
        np.testing.assert_array_equal(medians(values[:, :columns]), np.median(values[:, :columns], axis=1))
