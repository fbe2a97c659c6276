"""Looks at compiled and half-precision models are those at the plain model, whose rows are true."""

import numpy as np
import pytest
import torch
from callbacks.heard import looks_of
from lightning.pytorch.plugins.precision import MixedPrecision
from oracle import rows_of_channels
from torch import nn
from toys import Raw, Toy, batches, fit, mlp

from hookboard import HealthMonitor, Rule


def net():
    torch.manual_seed(0)
    middle = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), middle, nn.Linear(8, 3))


def assert_alike(mine, theirs, rtol):
    assert len(mine) == len(theirs) >= 3
    for look, true in zip(mine, theirs, strict=True):
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

    def keep(run):
        looks.append(run.now)
        orders.append([layer.name for layer in run.layers])
        return ()

    monitor = HealthMonitor(rules=["dead_units", Rule("keep", keep)])
    fit(None, model, batches(*[64] * 6), *([monitor] if watched else []))
    said = [(verdict.rule, verdict.module, verdict.since) for verdict in monitor.verdicts]
    return looks, orders[-1:], said, model.state_dict()


@pytest.mark.compiles
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:The .grad attribute",
    "ignore:Skipping serialization of",
)
def test_what_inductor_compiles_has_the_looks_and_verdicts_of_the_plain_model_and_its_own_weights():
    """Slow where nothing is cached: inductor has C++ compiled, which users' models are, and other tests do without."""
    mine, order, said, weights = trained(compiled=True)
    theirs, true_order, expected, _ = trained(compiled=False)
    assert_alike(mine, theirs, 1e-5)
    assert order == true_order
    assert said == expected == [("dead_units", "net.0", 0)]
    for name, value in trained(compiled=True, watched=False)[3].items():
        assert value.equal(weights[name]), name


def test_fp16_with_scaled_gradients_is_near_the_full_precision():
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    data = batches(6, 6, 6)
    assert_alike(looks_of(Toy(net()), data, plugins=plugin), looks_of(Toy(net()), data), 0.02)


def test_the_rows_equal_a_float64_oracle_over_the_raw_tensors_of_that_step():
    raw = Raw()
    looks = looks_of(Toy(net()), batches(6, 6, 6), raw)
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
