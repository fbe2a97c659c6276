"""Adapters in a whole training, under Lightning and in Hugging Face's Trainer: what is said."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from toys import Toy, batches, fit, fit_in_transformers

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

    def logits(self, x):
        for layer, down, up in zip(self.layers, self.down, self.up, strict=False):
            y = layer(x)
            x = torch.tanh(y + up(down(x)) * SCALE if self.is_on else y)
        return self.layers[2](x)

    def forward(self, x):
        return {"loss": cross_entropy(self.logits(x), x.argmax(1) % CLASSES)}


class Fine(Toy):
    def __init__(self, net, rate):
        super().__init__(net, loss=lambda found: found["loss"])
        self.rate = rate

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], self.rate, weight_decay=0)


def in_lightning(folder, net, rate):
    monitor = HealthMonitor(every_n_steps=1)
    fit(folder, Fine(net, rate), DATA, monitor)
    return monitor


def in_hugging_face(folder, net, rate):
    monitor = HealthMonitor(every_n_steps=1)
    constant = {"lr_scheduler_type": "constant", "weight_decay": 0.0}
    fit_in_transformers(folder, net, DATA, monitor, learning_rate=rate, **constant)
    return monitor


both = pytest.mark.parametrize("train", [in_lightning, in_hugging_face])


def said(monitor, *rules):
    return [one for one in monitor.verdicts if one.rule in rules]


@both
def test_a_healthy_adapter_is_silent(train, tmp_path):
    assert train(tmp_path, Adapted(), 3e-3).verdicts == ()


@both
def test_that_both_factors_are_0_is_one_alarm(train, tmp_path):
    net = Adapted()
    for down in net.down:
        nn.init.zeros_(down.weight)
    alarms = [one for one in train(tmp_path, net, 3e-3).verdicts if one.severity == "alarm"]
    assert [one.rule for one in alarms] == ["adapters"]
    assert "2 of 2 adapters (two factors next to a frozen weight) learn nothing" in alarms[0].evidence


@both
def test_adapters_that_are_never_called_are_one_note(train, tmp_path):
    found = said(train(tmp_path, Adapted(is_on=False), 3e-3), "no_gradient")
    assert [one.severity for one in found] == ["note"]
    assert "the weights of 4 of the 5 layers in an optimizer had no effect on the loss" in found[0].evidence


@both
@pytest.mark.parametrize("rate", [1e-7, 0.3])
def test_how_far_steps_move_the_factors_is_not_judged(train, tmp_path, rate):
    net = Adapted()
    net.layers[2].requires_grad_(False)
    assert said(train(tmp_path, net, rate), "update_too_large", "update_too_small") == []
