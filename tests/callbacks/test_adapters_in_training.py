"""Adapters in a whole training: what is said."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from toys import Toy, batches, fit

from hookboard import HealthMonitor

pytestmark = [pytest.mark.trains, pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")]

CLASSES, WIDTH, RANK, SCALE = 4, 16, 2, 2.0
DATA = batches(*[32] * 24, width=WIDTH)


class Adapted(nn.Module):
    """Two frozen layers with an adapter each, and a head that is trained."""

    def __init__(self, is_on=True):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)])
        self.is_on = is_on
        self.layers[:2].requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(WIDTH, RANK, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(RANK, WIDTH, bias=False) for _ in range(2))
        for up in self.up:
            nn.init.zeros_(up.weight)

    def forward(self, x):
        answers = x.argmax(1) % CLASSES
        for layer, down, up in zip(self.layers, self.down, self.up, strict=False):
            y = layer(x)
            x = torch.tanh(y + up(down(x)) * SCALE if self.is_on else y)
        return cross_entropy(self.layers[2](x), answers)


class Fine(Toy):
    def __init__(self, net, rate):
        super().__init__(net, loss=lambda loss: loss)
        self.rate = rate

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], self.rate, weight_decay=0)


def train(net, rate):
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Fine(net, rate), DATA, monitor)
    return monitor


def said(monitor, *rules):
    return [one for one in monitor.verdicts if one.rule in rules]


def test_a_healthy_adapter_is_silent():
    assert train(Adapted(), 3e-3).verdicts == ()


def test_that_both_factors_are_0_is_one_alarm():
    net = Adapted()
    for down in net.down:
        nn.init.zeros_(down.weight)
    alarms = [one for one in train(net, 3e-3).verdicts if one.severity == "alarm"]
    assert [one.rule for one in alarms] == ["adapters"]
    assert "2 of 2 adapters (two factors next to a frozen weight) learn nothing" in alarms[0].evidence


def test_adapters_that_are_never_called_are_one_note():
    found = said(train(Adapted(is_on=False), 3e-3), "no_gradient")
    assert [one.severity for one in found] == ["note"]
    assert "the weights of 4 of the 5 layers in an optimizer had no effect on the loss" in found[0].evidence


@pytest.mark.parametrize("rate", [1e-7, 0.3])
def test_how_far_steps_move_the_factors_is_not_judged(rate):
    net = Adapted()
    net.layers[2].requires_grad_(False)
    assert said(train(net, rate), "update_too_large", "update_too_small") == []
