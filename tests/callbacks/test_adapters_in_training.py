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

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, width) for width in (WIDTH, WIDTH, CLASSES))
        self.layers[:2].requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(WIDTH, RANK, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(RANK, WIDTH, bias=False) for _ in range(2))
        for up in self.up:
            nn.init.zeros_(up.weight)

    def forward(self, x):
        answers = x.argmax(1) % CLASSES
        for layer, down, up in zip(self.layers, self.down, self.up, strict=False):
            x = torch.tanh(layer(x) + up(down(x)) * SCALE)
        return cross_entropy(self.layers[2](x), answers)


def verdicts_of(net, rate):
    model, monitor = Toy(net, loss=lambda loss: loss), HealthMonitor(every_n_steps=1)
    model.configure_optimizers = lambda: torch.optim.AdamW(net.parameters(), rate, weight_decay=0)
    fit(None, model, DATA, monitor)
    return monitor.verdicts


def test_a_healthy_adapter_is_silent():
    assert verdicts_of(Adapted(), 3e-3) == ()


def test_that_both_factors_are_0_is_one_alarm():
    net = Adapted()
    for down in net.down:
        nn.init.zeros_(down.weight)
    alarms = [one for one in verdicts_of(net, 3e-3) if one.severity == "alarm"]
    assert [one.rule for one in alarms] == ["adapters"]
    assert "2 of 2 adapters (two factors next to a frozen weight) learn nothing" in alarms[0].evidence


@pytest.mark.parametrize("rate", [1e-7, 0.3])
def test_how_far_steps_move_the_factors_is_not_judged(rate):
    net = Adapted()
    net.layers[2].requires_grad_(False)
    assert not {one.rule for one in verdicts_of(net, rate)} & {"update_too_large", "update_too_small"}
