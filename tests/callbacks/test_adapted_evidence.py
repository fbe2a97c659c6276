"""Adapters in a whole training, under Lightning and in Hugging Face's Trainer: what is said, and the numbers in it."""

import contextlib

import numpy as np
import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import cross_entropy
from toys import Toy, fit, fit_in_transformers

from hookboard import HealthMonitor, watch
from hookboard.callbacks.adapted import AdaptedWeights

pytestmark = [pytest.mark.trains, pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")]

CLASSES, WIDTH, RANK, SCALE, STEPS = 4, 16, 2, 2.0, 24


def base():
    torch.manual_seed(0)
    return nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)])


class Adapted(nn.Module):
    """Two frozen layers with an adapter each, and a head that is trained."""

    def __init__(self, is_on=True):
        super().__init__()
        self.layers, self.is_on = base(), is_on
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

    def products(self):
        pairs = zip(self.down, self.up, strict=True)
        return [SCALE * up.weight.detach().double() @ down.weight.detach().double() for down, up in pairs]


def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(32, WIDTH, generator=generator) for _ in range(STEPS)]


class Fine(Toy):
    def __init__(self, net, rate):
        super().__init__(net, loss=lambda found: found["loss"])
        self.rate, self.products = rate, [net.products()]

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], self.rate, weight_decay=0)

    def on_train_batch_end(self, *given):
        self.products.append(self.net.products())


def in_lightning(folder, net, rate):
    monitor = HealthMonitor(every_n_steps=1)
    fit(folder, Fine(net, rate), batches(), monitor)
    return monitor


def in_hugging_face(folder, net, rate):
    monitor = HealthMonitor(every_n_steps=1)
    constant = {"lr_scheduler_type": "constant", "weight_decay": 0.0}
    fit_in_transformers(folder, net, batches(), monitor, learning_rate=rate, **constant)
    return monitor


both = pytest.mark.parametrize("train", [in_lightning, in_hugging_face])


def said(monitor, *rules):
    return [one for one in monitor.verdicts if one.rule in rules]


@both
def test_a_healthy_adapter_is_silent(train, tmp_path):
    monitor = train(tmp_path, Adapted(), 3e-3)
    assert [one.rule for one in monitor.verdicts if one.rule not in ("frozen", "initial_loss")] == []


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
def test_a_rate_at_which_the_product_hardly_moves_is_called_too_low(train, tmp_path):
    (found,) = said(train(tmp_path, Adapted(), 1e-7), "update_too_large", "update_too_small")
    assert found.rule == "update_too_small"
    assert "ratio of the adapted weights is" in found.evidence


def ratios(model, of):
    """The norm of each step of a product over that of the frozen weight, at each step; and the head's own."""
    weight = model.net.layers[of].weight.detach().double()
    steps = np.diff([each[of].numpy() for each in model.products], axis=0)
    return np.linalg.norm(steps, axis=(1, 2)) / float(weight.norm())


def test_a_step_is_that_of_the_product_against_the_frozen_weight(tmp_path):
    monitor, model = HealthMonitor(every_n_steps=1), Fine(Adapted(), 0.3)
    fit(tmp_path, model, batches(), monitor)
    run = monitor._run
    places = {layer.name: place for place, layer in enumerate(run.layers)}
    course = run.course("update_ratio")
    for of in range(2):
        np.testing.assert_allclose(course[places[f"net.layers.{of}"]], ratios(model, of), rtol=1e-4)
        assert np.isnan(course[places[f"net.up.{of}"]]).all()
        assert np.isnan(course[places[f"net.down.{of}"]]).all()


def test_how_far_a_step_moves_the_weights_that_adapters_add_to(tmp_path):
    monitor, model = HealthMonitor(every_n_steps=1), Fine(Adapted(), 1e-7)
    model.net.layers[2].requires_grad_(False)
    fit(tmp_path, model, batches(), monitor)
    (found,) = said(monitor, "update_too_small")
    (moved,) = numbers("update-to-weight ratio of the adapted weights is # (median over", found.evidence)
    medians = np.median([ratios(model, of) for of in range(2)], axis=0)  # the rule is asked once in a few steps
    assert any(float(f"{each:.1g}") == moved for each in medians[-5:])


def test_a_rate_just_below_is_not_reported(tmp_path):
    monitor, model = HealthMonitor(every_n_steps=1), Fine(Adapted(), 0.05)
    fit(tmp_path, model, batches(), monitor)
    assert max(ratios(model, of).max() for of in range(2)) > 0.1
    assert said(monitor, "update_too_large") == []


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
@both
def test_adapters_of_peft_are_judged_on_their_product(train, tmp_path):
    peft = pytest.importorskip("peft")

    class Wrapped(Adapted):
        def __init__(self):
            nn.Module.__init__(self)
            inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
            self.inner = peft.get_peft_model(inner, peft.LoraConfig(r=RANK, target_modules=["0"]))

        def logits(self, x):
            return self.inner(x)

        def products(self):
            return []

    torch.manual_seed(0)
    monitor = train(tmp_path, Wrapped(), 1e-7)
    (found,) = said(monitor, "update_too_small")
    assert "ratio of the adapted weights is" in found.evidence


def test_after_a_step_that_failed_the_next_one_is_measured_alone(monkeypatch):
    net, measured, moved = Adapted(), [], []
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 1.0)

    measure = AdaptedWeights.measure

    def seen(adapted, table, weights):
        after = adapted._products(weights)
        measured.append([after[name] - adapted._before[name] for name in after])
        return measure(adapted, table, weights)

    monkeypatch.setattr(AdaptedWeights, "measure", seen)
    with watch(net, optimizer, HealthMonitor(every_n_steps=1)) as run:
        for number, x in enumerate(batches()[:4]):
            before = net.products()
            with contextlib.suppress(ArithmeticError), run.step(x):
                optimizer.zero_grad()
                net(x)["loss"].backward()
                optimizer.step()
                if number == 2:
                    raise ArithmeticError
            moved.append([after - one for after, one in zip(net.products(), before, strict=True)])
    for found, true in zip(measured[-1], moved[-1], strict=True):
        torch.testing.assert_close(found.double(), true, rtol=1e-3, atol=1e-6)
