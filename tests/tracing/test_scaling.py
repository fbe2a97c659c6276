"""Losses that are minus an error, or multiplied by next to nothing."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from hookboard import HealthMonitor, watch
from hookboard.tracing.step import audit

torch.manual_seed(0)
X = torch.randn(16, 4)
REAL = torch.randn(16, 1)
CLASSES = torch.arange(16) % 3


def found_in(loss, target=REAL, outputs=1):
    model = nn.Linear(4, outputs)
    return audit(model, (X, target), lambda batch: loss(model(batch[0]), batch[1]))


UNBOUNDED = {
    "minus a part of it": (lambda o, t: (-0.5 * mse_loss(o, t)).mean(), -0.5),
    "minus a square by hand": (lambda o, t: -((t - o) ** 2).mean(), -1),
    "minus absolute values": (lambda o, t: -(o - t).abs().sum() / 4, -4),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_loss_that_is_minus_an_error_is_an_alarm_with_its_factor(name):
    loss, factor = UNBOUNDED[name]
    (found,) = found_in(loss)
    assert (found.rule, found.severity) == ("unbounded_loss", "alarm")
    assert found.evidence.startswith(f"the loss is {factor:.3g} times the")
    assert "test_scaling.py:" in found.evidence


@pytest.mark.trains
@pytest.mark.parametrize(("maximize", "factor", "count"), [(True, -1, 0), (True, 1, 1), (False, -1, 1)])
def test_what_an_optimizer_maximizes_has_the_other_sign(maximize, factor, count):
    net, monitor = nn.Linear(4, 1), HealthMonitor()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, maximize=maximize)
    with watch(net, optimizer, [monitor]) as run, run.step((X, REAL)):
        (factor * mse_loss(net(X), REAL)).backward()
        optimizer.step()
    assert [one.rule for one in monitor.verdicts].count("unbounded_loss") == count


SOUND = {
    "a sum over its number": lambda o, t: ((o - t) ** 2).sum() / 16,
    "an error less another": lambda o, t: mse_loss(o, t) - 0.1 * o.square().mean(),
    "a likelihood": lambda o, t: -torch.distributions.Normal(o, 1.0).log_prob(t).mean(),
    "a critic without targets": lambda o, t: -o.mean(),
    "labels that the step makes": lambda o, t: -binary_cross_entropy_with_logits(o, torch.zeros(16, 1)),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_loss(name):
    assert found_in(SOUND[name]) == ()


def test_a_loss_of_0_without_a_gradient_is_a_note():
    found = found_in(lambda o, t: (0 * cross_entropy(o, t)).relu(), CLASSES, 3)
    assert [(finding.rule, finding.severity) for finding in found] == [("cut", "note")]
