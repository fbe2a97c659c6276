"""Data that enter the model: how they are scaled, and whether the target is among them."""

import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import mse_loss

from hookboard.tracing import audit

pytestmark = pytest.mark.unit

torch.manual_seed(0)
X = torch.randn(32, 5)
Y = torch.randn(32, 1)


class Graph(nn.Module):
    """Holds its data; a batch is the numbers of nodes."""

    def __init__(self, scale):
        super().__init__()
        self.register_buffer("x", X * scale)
        self.register_buffer("links", torch.eye(32))
        self.net = nn.Linear(5, 1)

    def forward(self, nodes):
        return self.net(self.links @ self.x)[nodes]


def said(model, batch, step, rule):
    return [found for found in audit(model, batch, step) if found.rule == rule]


@pytest.mark.parametrize("scale", [300.0, 1e-3])
def test_data_that_the_model_holds_and_that_are_not_scaled_are_a_note(scale):
    model = Graph(scale)
    (found,) = said(model, torch.arange(8), lambda nodes: mse_loss(model(nodes), Y[nodes]), "input_scale")
    low, high, rms = numbers("are # to #, with an RMS of #;", found.evidence)
    exact = (X * scale).double()
    assert (found.severity, found.module) == ("note", "net")
    assert (low, high) == pytest.approx((float(exact.min()), float(exact.max())), rel=1e-2)
    assert rms == pytest.approx(float(exact.square().mean().sqrt()), rel=1e-2)


def test_nothing_is_said_of_scaled_data_and_of_the_batch_which_is_measured_at_each_look():
    model, net = Graph(1.0), nn.Linear(5, 1)
    assert said(model, torch.arange(8), lambda nodes: mse_loss(model(nodes), Y[nodes]), "input_scale") == []
    assert said(net, (300 * X, Y), lambda batch: mse_loss(net(batch[0]), batch[1]), "input_scale") == []
