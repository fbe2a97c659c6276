"""Quantiles, shares and headroom as they are logged, and steps with two backward passes, against raw tensors."""

import pytest
import torch
from oracle import assert_derived, assert_true, normal
from torch import nn
from toys import EachStep, Raw, Toy, batches, events, fit, mlp, scalars

from hookboard import ActivationLogger, GradientLogger, ParameterLogger
from hookboard.measure.statistics import DERIVED, FORMULAS

ALL = tuple(DERIVED)


def pictures(*sizes):
    return [normal(size, 3, 6, 6) for size in sizes]


def convolutions():
    """Every other unit of the first ReLU is dead."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3))
    with torch.no_grad():
        net[0].bias[::2] = -100
        net[2].weight *= 30
    return nn.Sequential(*net, nn.Sigmoid())


def tokens():
    """Its channels stand in the last dimension."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Tanh())
    with torch.no_grad():
        net[0].bias[0] = -100
    return net


def assert_logged(folder, model, data, dim=1, **options):
    """Activations and their gradients at every step equal the oracle's, in memory and in the event file."""
    raw = Raw()
    loggers = [logger(statistics=ALL, every_n_steps=1) for logger in (ActivationLogger, GradientLogger)]
    kept = [EachStep(logger) for logger in loggers]
    fit(folder, model, data, raw, *loggers, *kept, **options)
    written = scalars(folder)
    checked = 0
    for step, tensors in enumerate(raw.steps[:-1]):
        for reading in (reading for each in kept for reading in each.readings[step]):
            site = reading.site
            true = tensors[site.role, site.name]
            assert_derived(reading.statistics, true, dim if true[0].dim() > 2 else 1)
            for name, value in reading.statistics.items():
                assert written[site.scalar_tag(name)][step] == pytest.approx(value, rel=1e-6, nan_ok=True)
            checked += 1
    assert checked


HALF = [batch.bfloat16() for batch in batches(4, 4)]
TOKENS = {"data": [normal(2, 7, 4)] * 2, "dim": -1}
CASES = {
    "lazy layers, whose weights have no shape when the fit starts": (
        lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)),
        {"data": pictures(4, 4)},
    ),
    "unequal micro-batches": (convolutions, {"data": pictures(3, 1, 4, 2), "accumulate_grad_batches": 2}),
    "tokens, whose channels are the last dimension": (tokens, TOKENS),
    "half precision, which has its own limits": (lambda: mlp().bfloat16(), {"data": HALF}),
    "autocast, which does not round what is measured": (tokens, {**TOKENS, "precision": "bf16-mixed"}),
}


@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_the_raw_tensors_of(tmp_path, case):
    make, options = CASES[case]
    assert_logged(tmp_path, Toy(make()), **options)


def test_a_quantile_puts_no_histogram_on_tensorboard(tmp_path):
    logger = ActivationLogger(statistics="p50")
    fit(tmp_path, Toy(mlp()), batches(4), logger)
    assert all(reading.histogram is None for reading in logger.readings)
    assert not events(tmp_path).Tags()["histograms"]
    assert "activation_p50/net.0" in scalars(tmp_path)


def test_of_a_parameter_a_dead_unit_has_nothing_but_zeros_for_weights(tmp_path):
    model = Toy(mlp())
    with torch.no_grad():
        model.net[2].weight[1] = 0
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=0.0)
    logger = ParameterLogger(statistics=ALL)
    fit(tmp_path, model, batches(4), logger)
    found = {reading.site.name: reading.statistics for reading in logger.readings}
    assert found["net.2.weight"]["dead_fraction"] == pytest.approx(1 / 3)
    for name, parameter in model.named_parameters():
        assert_derived(found[name], [parameter], 0)


class TwoBackwards(Toy):
    automatic_optimization = False

    def training_step(self, batch):
        output = self.net(batch)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(output.square().mean(), retain_graph=True)
        self.manual_backward(output.sum())
        optimizer.step()


class Penalized(Toy):
    def training_step(self, batch):
        x = batch.clone().requires_grad_()
        output = self.net(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.square().mean() + slope.square().mean()


@pytest.mark.parametrize("model", [TwoBackwards, Penalized])
def test_two_backwards_through_one_graph_and_an_inner_autograd_grad_both_count(tmp_path, model):
    logger = GradientLogger("net.2", statistics=tuple(FORMULAS))
    fit(tmp_path, model(mlp()), batches(4), logger)
    output = mlp()(batches(4)[0])
    assert_true(logger.readings[0].statistics, [torch.ones_like(output), 2 * output / output.numel()])
