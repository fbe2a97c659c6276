"""Losses that are negated, summed or multiplied."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from hookboard.tracing.audit import audit

pytestmark = pytest.mark.unit

torch.manual_seed(0)
X = torch.randn(16, 4)
REAL = torch.randn(16, 1)
CLASSES = torch.arange(16) % 3


def found_in(loss, target=REAL, outputs=1):
    model = nn.Linear(4, outputs)
    return audit(model, (X, target), lambda batch: loss(model(batch[0]), batch[1]))


SOUND = {
    "twice minus": lambda o, t: -1 * -mse_loss(o, t),
    "a sum over its number": lambda o, t: ((o - t) ** 2).sum() / 16,
    "an error less another": lambda o, t: mse_loss(o, t) - 0.1 * o.square().mean(),
    "a likelihood": lambda o, t: -torch.distributions.Normal(o, 1.0).log_prob(t).mean(),
    "a critic without targets": lambda o, t: -o.mean(),
    "labels that the step makes": lambda o, t: -binary_cross_entropy_with_logits(o, torch.zeros(16, 1)),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_loss(name):
    assert found_in(SOUND[name]) == ()


def test_a_sum_over_many_that_is_divided_by_their_number_is_fine():
    assert found_in(lambda o, t: ((o - t).expand(16, 2_000_000) ** 2).sum() / (16 * 2_000_000)) == ()


def test_a_loss_of_0_without_a_gradient_is_a_note():
    found = found_in(lambda o, t: (0 * cross_entropy(o, t)).relu(), CLASSES, 3)
    assert [(finding.rule, finding.severity) for finding in found] == [("cut", "note")]
