"""Layers of more channels than have a row each, in real trainings: what is said of units is true of those looked at."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional
from toys import Toy, batches, fit, scalars

from hookboard import ActivationLogger, HealthMonitor
from hookboard.measure.row import channel_stride

STEPS, SIZE = 12, 32


class Keeps(Toy):
    """Keeps the outputs of one layer, as they are."""

    def __init__(self, net, layer):
        super().__init__(net)
        self.raw = []
        layer.register_forward_hook(lambda module, args, output: self.raw.append(output.detach().double()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)  # at which no other unit dies

    def dead(self, dim):
        """Which units gave nothing above 0 at any sample, place and step."""
        return torch.stack([(raw.movedim(dim, 0).flatten(1) <= 0).all(1) for raw in self.raw]).all(0)


class Called(nn.Module):
    """A feed-forward part whose activation is called as a function."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(64, width), nn.Linear(width, 8)

    def forward(self, x):
        return self.down(functional.relu(self.up(x)))


def kill(layer, units):
    """Nothing activates these units of a layer; all others are active at some sample of every batch."""
    with torch.no_grad():
        layer.bias.fill_(1.0)
        layer.bias[units] = -100.0


def by_width(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


def tokens_by_width(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (4, 2)), nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))


def images_by_width(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, width, 1), nn.ReLU(), nn.Conv2d(width, 2, 1))


def some_of(width, share=0.4):
    return torch.rand(width, generator=torch.Generator().manual_seed(1)) < share


def verdicts_of(model, width=8):
    monitor = HealthMonitor(rules="dead_units", window=3)
    fit(None, model, batches(*[SIZE] * STEPS, width=width), monitor)
    return monitor.verdicts


def said_counts(verdict):
    """Dead, looked at, all: the numbers of a sentence about a sample."""
    found = re.match(r"([\d,]+) of ([\d,]+) sampled units \(of ([\d,]+)\)", verdict.evidence)
    return [int(number.replace(",", "")) for number in found.groups()]


@pytest.mark.parametrize(
    ("make", "width", "at", "dim"),
    [
        (by_width, 16_384, 0, 1),
        (tokens_by_width, 14_336, 1, 2),
        (images_by_width, 5000, 1, 1),
    ],
)
def test_dead_units_of_a_wide_layer_are_counted_among_those_looked_at(make, width, at, dim):
    net = make(width)
    kill(net[at], some_of(width))
    model = Keeps(net, net[at + 1])
    (verdict,) = verdicts_of(model)
    channel_row_count = model.dead(dim)[:: channel_stride(width)]
    assert torch.equal(model.dead(dim), some_of(width))
    assert (verdict.module, verdict.severity) == (f"net.{at}", "note")
    assert said_counts(verdict) == [int(channel_row_count.sum()), len(channel_row_count), width]


def test_where_nothing_stands_out_among_the_units_looked_at_that_is_said(monkeypatch):
    said = []
    monkeypatch.setattr("hookboard.callbacks.reporter.inform", said.append)
    net = by_width(16_384)
    kill(net[0], slice(1, None, 4))
    assert verdicts_of(Keeps(net, net[1])) == ()
    assert "In 2 layers with more than 1,024 units, only every k-th unit was measured." in "\n".join(said)


def test_a_layer_of_exactly_as_many_channels_as_have_a_row_names_no_sample():
    net = by_width(1024)
    kill(net[0], some_of(1024))
    model = Keeps(net, net[1])
    (verdict,) = verdicts_of(model)
    assert verdict.evidence.startswith(f"{int(model.dead(1).sum())} of 1024 units of net.1 (ReLU) have been 0")


def test_units_before_a_function_are_those_of_which_output_and_weight_are_both_looked_at():
    # Of the outputs every 14th unit is measured, and of the weight, which has 917,504 values.
    net = Called(14_336)
    kill(net.up, some_of(14_336, 0.7))
    model = Keeps(net, net.up)
    (verdict,) = verdicts_of(model, width=64)
    dead = model.dead(1)[::14]
    assert verdict.module == "net.up"
    assert said_counts(verdict) == [int(dead.sum()), len(dead), 14_336]


def test_of_units_before_a_function_those_of_which_the_weight_is_not_looked_at_do_not_count():
    net = Called(14_336)
    is_dead = torch.ones(14_336, dtype=torch.bool)
    is_dead[::14] = False
    kill(net.up, is_dead)
    assert verdicts_of(Keeps(net, net.up), width=64) == ()


def test_curves_of_a_wide_layer_are_those_of_the_units_looked_at(tmp_path):
    net = by_width(14_336)
    kill(net[0], some_of(14_336))
    model = Keeps(net, net[1])
    logger = ActivationLogger("net.1", statistics=["dead_fraction"])
    fit(tmp_path, model, batches(*[SIZE] * 3, width=8), logger)
    curves = scalars(tmp_path)
    true = [(raw[:, ::14] == 0).all(0).double().mean().item() for raw in model.raw]
    assert list(curves["activation_dead_fraction/net.1"].values()) == pytest.approx(true, rel=1e-6)
