"""The quantities of a look, against float64 over the raw tensors; and the block that keeps the latest of them."""

import itertools
import math

import numpy as np
import torch
from health.looks import look, reading, row
from health.runs import linear, noise, outputs, weights, without_weights
from oracle import normal

from hookboard.health.arrays import COLUMN_OF, QUANTITIES, SPOILED, LayerArrays, LookArrays, numbers_of
from hookboard.health.look import Look
from hookboard.health.robust import medians, percentiles
from hookboard.health.run import COURSE_COLUMNS, RECENT_LOOKS, Run
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.layers import Layer
from hookboard.model.sites import Site

LAYERS = [
    Layer("a", "Linear", "linear", ("a.weight", "a.bias")),
    Layer("b", "ReLU", "rectifier"),
    Layer("c", "Linear", "linear", ("c.weight",)),
    Layer("d", "Linear", "linear"),
]


def arrays_of(tensors):
    table = Table(plan(["rms", "zero_fraction"]), torch.device("cpu"), channels=lambda site, tensor: 1)
    for (name, role), tensor in tensors.items():
        table.open(Site(name, role))(tensor)
    look = Look(0, 0, table.send()())
    return LookArrays(look, LayerArrays(LAYERS))


def named(arrays):
    """Values, and where they are spoiled, by quantity."""
    columns = dict(zip(COLUMN_OF, numbers_of(arrays), strict=True))
    return columns, {quantity: columns[name] == 1 for quantity, name in SPOILED.items()}


def rms(*tensors):
    return torch.cat([tensor.double().flatten() for tensor in tensors]).square().mean().sqrt().item()


def test_quantities_are_those_of_the_raw_tensors():
    out, rectified, grad = normal(9, 6, mean=2.0), normal(9, 6).relu(), normal(9, 6, std=1e-3)
    rectified[:, 1] = 0.0
    weight, bias = normal(6, 5), normal(6, 1, mean=3.0)
    moved, kept = normal(6, 5, std=1e-3), torch.zeros(6, 1)
    tensors = {("a", "output"): out, ("b", "output"): rectified, ("a", "grad_output"): grad}
    tensors |= {("a.weight", role): weight for role in ("parameter_before", "parameter_grad")}
    tensors["a.bias", "parameter_before"] = bias
    tensors |= {("a.weight", "parameter_update"): moved, ("a.bias", "parameter_update"): kept}
    tensors["c.weight", "parameter_before"] = weight  # in no optimizer
    found, spoiled = named(arrays_of(tensors))
    within = (
        out.double().var(0, correction=0).sum() / (out.double().var(0, correction=0) + out.double().mean(0) ** 2).sum()
    )
    nan = math.nan
    true = {
        "activation_rms": [rms(out), rms(rectified), nan, nan],
        "gradient_rms": [rms(grad), nan, nan, nan],
        "weight_rms": [rms(weight, bias), nan, rms(weight), nan],
        "weight_gradient_rms": [rms(weight), nan, nan, nan],
        "update_ratio": [rms(moved, kept) / rms(weight, bias), nan, nan, nan],
        "dead_fraction": [0.0, 1 / 6, nan, nan],
    }
    for name, values in true.items():
        # Where there is no C compiler, torch measures instead: off by 7e-9 here, where 1e-6 is promised.
        np.testing.assert_allclose(found[name], values, rtol=1e-7, err_msg=name)
    np.testing.assert_allclose(found["sample_spread"][0], within.sqrt(), rtol=1e-7)
    assert not any(where.any() for where in spoiled.values())


def test_weights_that_began_at_zero_have_moved_without_bounds():
    tensors = {("c.weight", "parameter_before"): torch.zeros(4, 4), ("c.weight", "parameter_update"): normal(4, 4)}
    assert named(arrays_of(tensors))[0]["update_ratio"][2] == math.inf
    tensors["c.weight", "parameter_update"] = torch.zeros(4, 4)
    assert math.isnan(named(arrays_of(tensors))[0]["update_ratio"][2])


def test_what_held_nan_is_spoiled_and_a_mask_of_minus_infinity_is_not():
    bad, masked = normal(9, 6), normal(9, 6)
    bad[2, 2], masked[3, 3] = math.nan, -math.inf
    tensors = {("a", "output"): bad, ("b", "output"): masked, ("c", "output"): torch.full((3, 2), -math.inf)}
    tensors |= {("c.weight", "parameter_before"): normal(2, 2), ("c.weight", "parameter_update"): bad}
    _, spoiled = named(arrays_of(tensors))
    assert spoiled["activation_rms"].tolist() == [True, False, True, False]
    assert spoiled["update_ratio"].tolist() == [False, False, True, False]
    assert spoiled.keys() == QUANTITIES.keys() - {"weight_rms", "weight_gradient_rms", "expert_share"}


def run_of_two(steps):
    """A run of two layers whose outputs have the RMS of the step's number, and twice that."""
    run = Run({layer.name: layer for layer in LAYERS[:2]}, 3)
    for step in steps:
        run.see(look(step, [reading(name, "output", [row(deviation=k * step)]) for k, name in ((1, "a"), (2, "b"))]))
    return run


def test_the_latest_looks_are_kept_in_their_order():
    for count in (1, RECENT_LOOKS, RECENT_LOOKS + 1, 2 * RECENT_LOOKS + 1):
        run = run_of_two(range(count))
        steps = list(range(max(0, count - RECENT_LOOKS), count))
        assert run.recent("activation_rms").tolist() == [steps, [2 * step for step in steps]]
        assert run.recent_steps == steps


def test_the_course_has_looks_of_the_whole_run_evenly_spaced():
    for count in (COURSE_COLUMNS, COURSE_COLUMNS + 1, 5 * COURSE_COLUMNS + 7):
        run = run_of_two(range(count))
        assert len({after - before for before, after in itertools.pairwise(run.course_steps)}) == 1
        assert run.course_steps[0] == 0
        assert count / 4 < run.course_steps[-1] < count
        assert run.course("activation_rms").tolist() == [run.course_steps, [2 * step for step in run.course_steps]]


def test_layers_in_another_order_keep_their_numbers():
    run = run_of_two(range(3))
    run.follow({layer.name: layer for layer in LAYERS[1:]})
    run.follow({layer.name: layer for layer in LAYERS[:3]})
    assert [layer.name for layer in run.layers] == ["b", "c", "a"]
    for numbers in (run.recent("activation_rms"), run.course("activation_rms")):
        np.testing.assert_equal(numbers, [[0, 2, 4], [math.nan] * 3, [math.nan] * 3])


CHAIN = LayerArrays([linear("a"), without_weights("relu"), linear("b", takes=4)])


def test_a_layer_that_gave_nothing_has_counts_of_0_and_no_numbers():
    rows = LookArrays(look(0, [outputs("b", noise(8))]), CHAIN).rows["output"]
    assert rows.is_there.tolist() == [False, False, True]
    assert rows.count.tolist() == [0, 0, 800]
    assert rows.nonfinite.tolist() == [0, 0, 0]
    assert np.isnan(rows.rms).tolist() == [True, True, False]


def test_weights_that_were_0_before_the_first_step_are_known_though_their_bias_was_not():
    zero, bias = [row(deviation=0.0, zeros=100)] * 8, [row(mean=1.0)]
    began = [reading("b.weight", "parameter_before", zero), reading("b.bias", "parameter_before", bias)]
    assert LookArrays(look(0, [*weights("a"), *began]), CHAIN).began_at_zero.tolist() == [False, False, True]


def test_percentiles_and_medians_are_those_of_numpy():
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 10, 62, 257):
        values = np.sort(rng.lognormal(size=count))
        assert percentiles(values.tolist(), (10, 50, 90)) == np.percentile(values, [10, 50, 90]).tolist()
    values = np.random.default_rng(0).normal(size=(5, 4))
    values[2, 1] = math.nan
    for columns in (3, 4):
        np.testing.assert_array_equal(medians(values[:, :columns]), np.median(values[:, :columns], axis=1))
