"""Weights that a parametrization computes are left to it: none is computed for hookboard, which reads the originals."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from toys import Toy, fit, images

from hookboard import HealthMonitor, KernelLogger, ParameterLogger


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, weight):
        self.calls += 1
        return weight.abs()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))


def pictures():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(4)]


def test_a_parametrization_is_not_called_for_what_is_read(tmp_path):
    def calls_beside(*callbacks):
        model = Toy(net())
        parametrize.register_parametrization(model.net[0], "weight", Counts(), unsafe=True)
        fit(tmp_path, model, pictures(), *callbacks)
        return model.net[0].parametrizations.weight[0].calls

    readers = [kind(every_n_steps=1) for kind in (ParameterLogger, HealthMonitor, KernelLogger)]
    assert calls_beside(*readers) == calls_beside()


@pytest.mark.parametrize("wrap", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_the_originals_are_logged_and_kernels_are_left_out(tmp_path, wrap, lines):
    model, logger = Toy(net()), ParameterLogger(every_n_steps=1)
    wrap(model.net[0])
    fit(tmp_path, model, pictures(), logger, KernelLogger(every_n_steps=1))
    names = {reading.site.name for reading in logger.readings if "0.param" in reading.site.name}
    assert names == {name for name, _ in model.named_parameters() if "parametrizations" in name}
    assert "net.0.weight" not in {reading.site.name for reading in logger.readings}
    assert list(images(tmp_path)) == ["kernels/net.2"]
    assert "KernelLogger leaves out net.0: their weights are pruned or parametrized." in "".join(lines)


def test_what_a_parametrization_computes_with_belongs_to_the_layer_that_uses_it():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    nn.init.constant_(model[0].bias, -10.0)
    parametrizations.weight_norm(model[0])
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Toy(model), [torch.randn(16, 8) for _ in range(12)], monitor)
    assert [verdict.module for verdict in monitor.verdicts if verdict.rule == "dead_units"] == ["net.0"]
    assert {layer.name for layer in monitor._run.layers} == {"net.0", "net.1", "net.2"}
