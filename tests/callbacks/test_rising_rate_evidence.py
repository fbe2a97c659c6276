"""The numbers of `update_too_large` on a rate that rises while the loss does not fall, and the fits in which it may."""

import re

import numpy as np
import pytest
import torch
from callbacks.course import looks_of, shortened
from recorded import EVERY, Recorded, linear, numbers, sized
from toys import fit, loader, trainer

from hookboard import HealthMonitor

pytestmark = pytest.mark.trains

COUNT, TURN = 140, 60
"""The steps, and the one from which the loss no longer falls and the rate rises."""

LOSSES = np.concatenate([np.linspace(3.0, 0.7, TURN), np.linspace(0.9, 1.1, COUNT - TURN)])
LOSSES += 0.02 * np.random.default_rng(0).normal(size=COUNT)


def rise(step):
    return 1.0 + 0.05 * max(step - TURN, 0)


class Steered(Recorded):
    """Its losses are given, one for each optimizer step, and so is its rate; it keeps that of each step."""

    def __init__(self, losses=LOSSES, rise=rise, groups=(1.0, 1.0), **options):
        super().__init__(sized(linear(8, 16), torch.nn.Tanh, linear(16, 3)), rate=1e-6, **options)
        self.given, self.rise, self.groups, self.rates = losses, rise, groups, []

    def training_step(self, batch):
        value = float(self.given[self.global_step])
        self.losses.append(value)
        out = self.net(batch).sum()
        return out - out.detach() + value

    def on_before_optimizer_step(self, optimizer):
        super().on_before_optimizer_step(optimizer)
        self.rates.append([group["lr"] for group in optimizer.param_groups])

    def configure_optimizers(self):
        layers = [self.net[0], self.net[2]]
        groups = [
            {"params": list(layer.parameters()), "lr": share * self.rate}
            for layer, share in zip(layers, self.groups, strict=True)
        ]
        optimizer = torch.optim.SGD(groups)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rise)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def data(count=COUNT):
    made = torch.Generator().manual_seed(0)
    return [*torch.randn(count, 4, 8, generator=made)]


def watching():
    return HealthMonitor(every_n_steps=EVERY, rules=["update_too_large"])


def lowest(losses):
    """The step of the lowest median of eight losses, and that median, in float64."""
    medians = np.median(np.asarray(losses[: len(losses) // 8 * 8], dtype=np.float64).reshape(-1, 8), axis=1)
    return 8 * int(medians.argmin()), float(medians.min())


def compare(verdict, model, losses):
    now, step, best, level, before = numbers(
        "has risen to #; up to step #, when the smoothed loss was lowest (#; it is # now), the highest rate measured "
        "was #",
        verdict.evidence,
    )
    low, value = lowest(losses)
    seen = next(look for look in looks_of(len(losses)) if look >= low + 7)
    whose = re.search(r"rate(?: of net\.(\d)\S*)? has risen", verdict.evidence)[1]
    rates = [each[["0", "2"].index(whose) if whose else 0] for each in model.rates]
    assert (now, before) == (shortened(rates[-1]), shortened(max(rates[: seen + 1])))
    assert (step, verdict.since) == (low, low)
    assert best == pytest.approx(value, rel=5e-3)
    assert level == pytest.approx(np.median(losses[-16:]), rel=5e-3)


def test_how_far_the_rate_rose_since_which_loss(tmp_path):
    model, monitor = Steered(groups=(1.0, 0.5)), watching()
    fit(tmp_path, model, data(), monitor)
    (verdict,) = monitor.verdicts
    assert (verdict.severity, verdict.module, verdict.until) == ("note", "", None)
    compare(verdict, model, model.losses)


def test_accumulated_gradients_count_as_one_step(tmp_path):
    model, monitor = Steered(), watching()
    fit(tmp_path, model, data(2 * COUNT), monitor, accumulate_grad_batches=2)
    (verdict,) = monitor.verdicts
    compare(verdict, model, model.losses[::2])


def test_a_fit_that_goes_on_remembers_the_rate_at_which_the_loss_was_lowest(tmp_path):
    whole, first = loader(data(COUNT // 2)), Steered()
    run = trainer(tmp_path / "one", watching(), max_epochs=1)
    run.fit(first, whole, whole)
    run.save_checkpoint(tmp_path / "kept.ckpt")
    model, monitor = Steered(), watching()
    again = trainer(tmp_path / "two", monitor, max_epochs=2)
    again.fit(model, whole, whole, ckpt_path=tmp_path / "kept.ckpt")
    (verdict,) = monitor.verdicts
    model.rates[:0] = first.rates
    compare(verdict, model, [*first.losses, *model.losses])


def test_a_fit_that_begins_where_another_ended_says_nothing_before_its_own_loss_has_fallen(tmp_path):
    model, monitor = Steered(LOSSES[TURN:], lambda step: rise(step + TURN)), watching()
    fit(tmp_path, model, data(COUNT - TURN), monitor)
    assert list(monitor.verdicts) == []


class ByHand(Steered):
    """Steps by itself, by a gradient that it computes without a backward pass."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch):
        optimizer = self.optimizers()
        for parameter in self.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        self.lr_schedulers().step()


def test_a_step_by_hand_without_a_loss_says_nothing(tmp_path):
    model, monitor = ByHand(), watching()
    fit(tmp_path, model, data(), monitor)
    assert max(model.rates) > [2 * rate for rate in model.rates[0]]
    assert list(monitor.verdicts) == []
