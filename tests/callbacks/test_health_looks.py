"""Looks at compiled and half-precision models are those at the plain model, whose rows are true."""

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from oracle import rows_of_channels
from torch import nn
from toys import Raw, Toy, batches, fit, mlp

from hookboard import HealthMonitor, Rule


class Net(nn.Module):
    """Runs its layers in another order than it names them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.norm, self.relu = nn.Linear(8, 3), nn.LayerNorm(8), nn.ReLU()
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.first = nn.Linear(4, 8)

    def forward(self, x):
        return self.last(self.middle(self.relu(self.norm(self.first(x)))))


def keeping(looks, orders):
    """A rule that keeps each look and the order of the layers there."""

    def keep(run):
        looks.append(run.now)
        orders.append([layer.name for layer in run.layers])
        return ()

    return Rule("keep", keep)


def looks_of(model, *others, **options):
    looks, orders = [], []
    fit(None, model, batches(6, 6, 6), HealthMonitor(rules=keeping(looks, orders)), *others, **options)
    return looks, orders


def assert_alike(mine, theirs, rtol):
    assert len(mine[0]) == len(theirs[0]) >= 3
    assert mine[1][-1] == theirs[1][-1]
    for look, true in zip(mine[0], theirs[0], strict=True):
        assert look.readings.keys() == true.readings.keys()
        for site, reading in true.readings.items():
            found = look.readings[site]
            assert found.moments.count == reading.moments.count, site
            assert (found.channels is None) == (reading.channels is None), site
            assert found.moments.rms == pytest.approx(reading.moments.rms, rel=rtol), site
            if reading.channels is not None:
                np.testing.assert_allclose(found.channels[:, 1:3], reading.channels[:, 1:3], rtol=rtol, atol=rtol)


def trained(*, compiled, watched=True):
    """The looks, the order of the layers, the verdicts and the weights of a training."""
    looks, orders, model = [], [], Toy(mlp())
    nn.init.constant_(model.net[0].bias, -100.0)  # no unit ever fires
    if compiled:
        model.net.compile()
    monitor = HealthMonitor(rules=["dead_units", keeping(looks, orders)])
    fit(None, model, batches(*[64] * 6), *([monitor] if watched else []))
    said = [(verdict.rule, verdict.module, verdict.since) for verdict in monitor.verdicts]
    return looks, orders, said, model.state_dict()


@pytest.mark.compiles
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:The .grad attribute",
    "ignore:Skipping serialization of",
)
def test_what_inductor_compiles_has_the_looks_and_verdicts_of_the_plain_model_and_its_own_weights():
    """Slow where nothing is cached: inductor has C++ compiled, which users' models are, and other tests do without."""
    *mine, said, weights = trained(compiled=True)
    *theirs, expected, _ = trained(compiled=False)
    assert_alike(mine, theirs, 1e-5)
    assert said == expected == [("dead_units", "net.0", 0)]
    for name, value in trained(compiled=True, watched=False)[3].items():
        assert value.equal(weights[name]), name


def test_fp16_with_scaled_gradients_is_near_the_full_precision():
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    assert_alike(looks_of(Toy(Net()), plugins=plugin), looks_of(Toy(Net())), 0.02)


def test_the_rows_equal_a_float64_oracle_over_the_raw_tensors_of_that_step():
    raw = Raw()
    looks, _ = looks_of(Toy(Net()), raw)
    columns = [0, 1, 2, 4, 5, 6, 7, 8, 9]  # all but abs_mean, which is not measured
    for look, step in zip(looks, raw.steps, strict=False):
        for site, reading in look.readings.items():
            given = step.get((site.role, site.name))
            if given and reading.channels is not None:
                dim = 0 if site.role == "parameter_grad" else given[0].dim() - 1
                true = rows_of_channels(given, dim)
                np.testing.assert_allclose(reading.channels[:, columns], true[:, columns], rtol=1e-6, atol=1e-12)
                step["checked"] = True
        assert step["checked"]
