"""Weights that a parametrization computes are read without a trace."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn.utils import parametrizations, parametrize
from toys import RecordsLoss, Toy, fit

from hookboard import ActivationLogger, HealthMonitor, HookboardWarning, KernelLogger, ParameterLogger


class Noisy(nn.Module):
    def forward(self, weight):
        return weight + 0.1 * torch.randn_like(weight)


class NoisyByOthers(nn.Module):
    """Draws from every other generator there is on a CPU."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, weight):
        drawn = torch.rand(weight.shape, generator=self.generator) + random.random() + np.random.rand()
        return weight + 0.1 * drawn


class SetsItsScaleAtFirst(nn.Module):
    """Its parameter gets its value from the first weight that it sees, as in learned step size quantization."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("uses", torch.zeros((), dtype=torch.long))

    def forward(self, weight):
        if self.uses == 2:  # after that of registering and that of the first step
            self.scale.data.copy_(weight.detach().abs().mean())
        self.uses += 1
        return weight * (1 + self.scale)


def observing():
    return FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)


def convolution(parametrization):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    parametrize.register_parametrization(net[0], "weight", parametrization(), unsafe=True)
    return net


def pictures(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(count)]


def readers():
    return [ParameterLogger(every_n_steps=1), HealthMonitor(every_n_steps=1), KernelLogger(every_n_steps=1)]


def trained(folder, make_net, callbacks, model=RecordsLoss):
    random.seed(0)
    np.random.seed(0)
    model = model(make_net())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* had nothing to measure", HookboardWarning)
        fit(folder, model, pictures(6), *callbacks)
    drawn = torch.rand(1), torch.tensor(random.random()), torch.tensor(np.random.rand())
    return {**model.state_dict(), **dict(enumerate([*model.losses, *drawn]))}


def assert_same(folder, make_net, **options):
    bare = trained(None, make_net, [], **options)
    watched = trained(folder, make_net, readers(), **options)
    assert bare.keys() == watched.keys()
    for name, value in bare.items():
        assert value.equal(watched[name]), name


@pytest.mark.parametrize("kind", [NoisyByOthers, SetsItsScaleAtFirst, observing])
def test_a_parametrization_with_a_state_is_read_without_a_trace(tmp_path, kind):
    assert_same(tmp_path, lambda: convolution(kind))


@pytest.mark.filterwarnings("ignore:.*weight_norm.:FutureWarning")
@pytest.mark.parametrize("wrap", [parametrizations.orthogonal, nn.utils.spectral_norm, nn.utils.weight_norm])
def test_a_weight_that_torch_computes_is_read_without_a_trace(tmp_path, wrap):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(wrap(nn.Conv2d(3, 4, 3)), nn.ReLU(), nn.Conv2d(4, 2, 3))

    assert_same(tmp_path, make)


class SavesItsBuffer(nn.Module):
    """Its buffer changes in place, and the backward pass needs it; its shift is not needed there."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, weight):
        self.factor += 0.1
        return weight * self.factor + self.shift


class StepsBetweenBackwards(RecordsLoss):
    """An optimizer steps between two backward passes through the same graph."""

    automatic_optimization = False

    def training_step(self, batch):
        loss = super().training_step(batch)
        self.manual_backward(loss, retain_graph=True)
        self.optimizers().step()
        self.manual_backward(loss)

    def configure_optimizers(self):
        return torch.optim.SGD([self.net[0].parametrizations.weight[0].shift], lr=0.1)


def test_a_graph_that_holds_a_buffer_of_a_parametrization_can_be_used_again(tmp_path):
    assert_same(tmp_path, lambda: convolution(SavesItsBuffer), model=StepsBetweenBackwards)


def last(logger, role, name):
    (reading,) = [r for r in logger.readings if (r.site.role, r.site.name) == (role, name)]
    return reading.statistics


class KeepsOriginals(Toy):
    """Keeps the original of its first weight as the forward of each step finds it."""

    def __init__(self, net):
        super().__init__(net)
        self.kept = []

    def training_step(self, batch):
        self.kept.append(self.net[0].parametrizations.weight.original.detach().double().clone())
        return super().training_step(batch)


class DropsHalf(nn.Module):
    """Drops in evaluation too."""

    def forward(self, weight):
        return nn.functional.dropout(weight, 0.5, training=True)


def test_the_update_of_a_random_weight_is_that_of_its_original_and_not_of_the_noise(tmp_path):
    model, logger = KeepsOriginals(convolution(Noisy)), ParameterLogger(statistics=["update_norm"])
    fit(tmp_path, model, pictures(3), logger)
    moved = model.net[0].parametrizations.weight.original.detach().double() - model.kept[-1]
    assert last(logger, "parameter_update", "net.0.weight")["update_norm"] == pytest.approx(
        moved.norm().item(), rel=1e-4
    )


def test_a_weight_of_which_half_is_dropped_keeps_its_mask_from_before_to_after(tmp_path):
    model, logger = KeepsOriginals(convolution(DropsHalf)), ParameterLogger(statistics=["zero_fraction", "update_norm"])
    fit(tmp_path, model, pictures(3), logger)
    moved = 2 * (model.net[0].parametrizations.weight.original.detach().double() - model.kept[-1])
    assert 0.3 < last(logger, "parameter", "net.0.weight")["zero_fraction"] < 0.7
    # With two masks whole weights would come and go: they are a hundred times as large as an update.
    assert last(logger, "parameter_update", "net.0.weight")["update_norm"] < moved.norm().item()


class Product(nn.Module):
    def forward(self, weight):
        return (weight.flatten(1) @ weight.flatten(1).T @ weight.flatten(1)).view_as(weight)


class Manual(KeepsOriginals):
    automatic_optimization = False

    def training_step(self, batch):
        loss = super().training_step(batch)
        self.manual_backward(loss)
        self.optimizers().step()


def test_the_update_of_a_computed_weight_is_free_of_autocast(tmp_path):
    model, logger = Manual(convolution(Product)), ParameterLogger(statistics=["update_norm"])
    fit(tmp_path, model, pictures(1), logger, precision="bf16-mixed")
    before, after = (Product()(w) for w in (model.kept[-1], model.net[0].parametrizations.weight.original.double()))
    norm = (after - before).norm().item()
    assert last(logger, "parameter_update", "net.0.weight")["update_norm"] == pytest.approx(norm, rel=1e-3)


def test_our_own_reading_of_a_weight_is_not_measured_as_a_call_of_its_parametrization(tmp_path):
    net = convolution(Noisy)
    activations = ActivationLogger("net.0.parametrizations.weight.0", statistics="mean", every_n_steps=1)
    fit(tmp_path, Toy(net), pictures(3), activations, *readers())
    (reading,) = activations.readings
    assert reading.moments.count == net[0].parametrizations.weight.original.numel()


def test_a_cache_of_parametrizations_is_neither_read_nor_filled(tmp_path):
    model, logger = KeepsOriginals(convolution(Product)), ParameterLogger(statistics=["update_norm"])
    with parametrize.cached():
        fit(tmp_path, model, pictures(1), logger, KernelLogger(every_n_steps=1))
    before, after = (Product()(w) for w in (model.kept[-1], model.net[0].parametrizations.weight.original.double()))
    norm = (after - before).norm().item()
    assert norm > 0
    assert last(logger, "parameter_update", "net.0.weight")["update_norm"] == pytest.approx(norm, rel=1e-3)


class Raises(nn.Module):
    def forward(self, weight):
        if not torch.is_grad_enabled():
            raise ArithmeticError("only in training")
        return weight


@pytest.mark.parametrize("reader", [ParameterLogger, HealthMonitor])
def test_a_parametrization_that_raises_switches_off_its_weight_alone(tmp_path, reader):
    logger = reader(every_n_steps=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(tmp_path, Toy(convolution(Raises)), pictures(3), logger)
    said = [str(w.message) for w in caught if issubclass(w.category, HookboardWarning)]
    (off,) = [text for text in said if "switched off from now on" in text]
    assert "'net.0" in off
    assert "only in training" in off
