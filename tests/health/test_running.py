"""Running statistics, read off what a batch norm takes and gives: held against those that it has."""

import math

import numpy as np
import pytest
import torch
from health.looks import look, reading, row
from torch import nn

from hookboard.health.stage_comparison import MOVED_CHANNEL_SHARE, running_of
from hookboard.model.layers import Layer

LAYERS = [Layer("fc", "Linear", "linear"), Layer("bn", "BatchNorm1d", "norm", ("bn.weight", "bn.bias"))]


def rows(x):
    return [row(len(c), c.mean(), c.std(), low=c.min(), high=c.max()) for c in x.double().numpy().T]


def seen(step, x, y, moved=0.0):
    update = reading("bn.bias", "parameter_update", [row(4, moved, 0.0)])
    return look(step, [reading("fc", "output", rows(x)), reading("bn", "output", rows(y)), update])


def norm(mean, deviation, gains=(1.5, -0.7, 0.2, -2.0)):
    made = nn.BatchNorm1d(4).double()
    made.weight.data, made.bias.data = torch.tensor(gains).double(), torch.tensor([0.3, -1.0, 0.0, 2.0]).double()
    made.running_mean, made.running_var = torch.full((4,), mean).double(), torch.full((4,), deviation**2).double()
    return made


def drawn(seed, mean=0.0, deviation=1.0):
    return mean + deviation * torch.randn(64, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(made, *batches, held_out=None, moved=0.0, layers=LAYERS):
    """What is read of a norm that is trained on some batches, a look each, and evaluated on another one."""
    mean, var = made.running_mean.clone(), made.running_var.clone()
    training = [seen(step, x, made.train()(x).detach(), moved) for step, x in enumerate(batches)]
    made.running_mean, made.running_var = mean, var
    x = drawn(99) if held_out is None else held_out
    return list(running_of(seen(len(batches), x, made.eval()(x).detach()), training, layers))


def truth(made, batch):
    """By how many deviations of a batch the running mean lies away, or by what power of e the deviation differs."""
    x, mean, deviation = batch.numpy(), made.running_mean.numpy(), np.sqrt(made.running_var.numpy())
    shift, factor = np.abs(mean - x.mean(0)) / x.std(0), np.abs(np.log(deviation / x.std(0)))
    return max(float(np.median(shift)), float(np.median(factor)))


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.6, 1.0), (0.1, 3.0), (-2.0, 0.3)])
def test_running_statistics_are_those_that_the_norm_has(mean, deviation):
    made, batch = norm(mean, deviation), drawn(0, 0.2, 1.3)
    (found,) = read(made, batch, held_out=drawn(1, 5.0, 0.4))
    assert found.layer.name == "bn"
    assert found.now == pytest.approx(truth(made, batch), rel=1e-3, abs=1e-4)
    assert found.before == math.inf


def test_statistics_of_an_earlier_batch_or_the_average_of_batches_are_known_again():
    made, earlier, last = norm(1.0, 2.0), drawn(0, 1.0, 2.0), drawn(1, 4.0, 0.5)
    (found,) = read(made, earlier, last)
    assert found.now == pytest.approx(truth(made, last), rel=1e-3)
    assert found.before == pytest.approx(truth(made, earlier), rel=1e-2)
    (found,) = read(norm(0.0, 1.0), drawn(0, -1.0), drawn(1, 1.0))
    assert found.now > 0.8
    assert found.before < 0.2


def test_nothing_is_known_of_a_norm_that_another_layer_feeds_or_whose_input_is_another_and_of_other_norms():
    fed, other = (
        [LAYERS[0], Layer("add", "Identity", "other"), LAYERS[1]],
        [LAYERS[0], Layer("bn", "LayerNorm", "norm")],
    )
    assert read(norm(0.0, 1.0), drawn(0), layers=fed) == read(norm(0.0, 1.0), drawn(0), layers=other) == []
    made, x = norm(0.0, 1.0), drawn(0)
    training = [seen(0, x.abs() ** 3, made.train()(x).detach())]
    assert list(running_of(seen(1, x.abs() ** 3, made.eval()(x).detach()), training, LAYERS)) == []


@pytest.mark.parametrize(("times", "count"), [(0.9, 1), (1.1, 0)])
def test_a_norm_whose_gains_are_small_beside_a_step_tells_nothing(times, count):
    made, batch = norm(0.0, 1.0, gains=(0.5, -0.5, 0.5, -0.5)), drawn(0)
    deviation = float(np.median(made.train()(batch).detach().numpy().std(0)))
    assert len(read(made, batch, moved=times * MOVED_CHANNEL_SHARE * deviation)) == count
