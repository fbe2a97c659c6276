"""Looks at compiled, checkpointed and half-precision models are those at the plain model."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from toys import Raw, Toy, batches, fit

from hookboard import HealthMonitor, Rule


class Net(nn.Module):
    """Runs its layers in another order than it names them; its middle may be checkpointed."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.norm, self.relu = nn.Linear(8, 3), nn.LayerNorm(8), nn.ReLU()
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.first, self.is_checkpointed = nn.Linear(4, 8), is_checkpointed

    def forward(self, x):
        y = self.relu(self.norm(self.first(x)))
        y = checkpoint(self.middle, y, use_reentrant=False) if self.is_checkpointed else self.middle(y)
        return self.last(y)


def looks_of(model, *others, **options):
    looks, orders = [], []

    def keep(run):
        looks.append(run.now)
        orders.append([layer.name for layer in run.layers])
        return ()

    fit(None, model, batches(6, 6, 6), HealthMonitor(rules=Rule("keep", keep)), *others, **options)
    return looks, orders[-1]


def assert_alike(mine, theirs, rtol):
    assert len(mine[0]) == len(theirs[0]) == 3
    assert mine[1] == theirs[1]
    for look, true in zip(mine[0], theirs[0], strict=True):
        assert look.readings.keys() == true.readings.keys()
        for site, reading in true.readings.items():
            found = look.readings[site]
            assert found.moments.count == reading.moments.count, site
            assert (found.channels is None) == (reading.channels is None), site
            assert found.moments.rms == pytest.approx(reading.moments.rms, rel=rtol), site
            if reading.channels is not None:
                np.testing.assert_allclose(found.channels[:, 1:3], reading.channels[:, 1:3], rtol=rtol, atol=rtol)


def test_a_checkpointed_model_is_counted_once():
    assert_alike(looks_of(Toy(Net(is_checkpointed=True))), looks_of(Toy(Net())), 1e-6)


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute")
def test_a_compiled_model_has_the_looks_of_the_plain_one():
    torch.compiler.reset()
    model = Toy(Net())
    model.net.compile(backend="aot_eager")
    mine = looks_of(model)
    torch.compiler.reset()
    assert_alike(mine, looks_of(Toy(Net())), 1e-5)


def test_bf16_is_near_the_full_precision():
    assert_alike(looks_of(Toy(Net()), precision="bf16-mixed"), looks_of(Toy(Net())), 0.1)


def test_the_rows_equal_a_float64_oracle_over_the_raw_tensors_of_that_step():
    from oracle import rows_of_channels

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
