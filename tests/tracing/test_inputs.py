"""Data that enter the model: how they are scaled, and whether the target is among them."""

import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import mse_loss

from hookboard import HealthMonitor, watch
from hookboard.tracing.audit import audit

pytestmark = pytest.mark.unit

torch.manual_seed(0)
X = torch.randn(32, 5)
Y = torch.randn(32, 1)


class Takes(nn.Module):
    """Puts two inputs together, each after a function of its own."""

    def __init__(self, first, second=lambda x: x, third=None):
        super().__init__()
        self.first, self.second, self.weight = first, second, nn.Parameter(torch.randn(5, 5) / 5)
        self.net = third or nn.Linear(10, 1)

    def forward(self, x, z):
        return self.net(torch.cat([self.first(self, x), self.second(z)], 1))


TAKEN = {
    "raw": (lambda m, x: x, 300 * X, True),
    "by weights written by hand": (lambda m, x: x @ m.weight, 300 * X, True),
    "scaled in the step": (lambda m, x: x / 300, 300 * X, False),
    "scaled in the step, by weights written by hand": (lambda m, x: (x / 300) @ m.weight, 300 * X, False),
    "scaled twice": (lambda m, x: (x / 90000) @ m.weight, 300 * X, True),
    "a column of its own units": (lambda m, x: x, torch.cat([150 * X[:, :1], X[:, 1:]], 1), True),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_input_is_out_of_scale_if_weights_take_it_so(name):
    first, x, is_told = TAKEN[name]
    torch.manual_seed(0)
    model = Takes(first)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    with watch(model, optimizer, [monitor := HealthMonitor(every_n_steps=1)]) as run:
        for _ in range(8):
            with run.step((x, Y)):
                loss = mse_loss(model(x, X), Y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    found = [one for one in monitor.verdicts if one.rule == "input_scale"]
    assert len(found) == is_told
    if name == "scaled twice":
        (rms,) = numbers("with an RMS of only # where weights take it", found[0].evidence)
        assert rms == pytest.approx(float((x.double() / 90000).square().mean().sqrt()), rel=0.05)


def said(model, batch, step, rule):
    return [found for found in audit(model, batch, step) if found.rule == rule]
