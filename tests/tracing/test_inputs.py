"""Data that enter the model: how they are scaled, and whether the target is among them."""

import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

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
    low, high, rms = numbers("has values between # and #, with an RMS of #;", found.evidence)
    exact = (X * scale).double()
    assert (found.severity, found.module) == ("note", "net")
    assert (low, high) == pytest.approx((float(exact.min()), float(exact.max())), rel=1e-2)
    assert rms == pytest.approx(float(exact.square().mean().sqrt()), rel=1e-2)


def test_nothing_is_said_of_scaled_data_and_of_the_batch_which_is_measured_at_each_look():
    model, net = Graph(1.0), nn.Linear(5, 1)
    assert said(model, torch.arange(8), lambda nodes: mse_loss(model(nodes), Y[nodes]), "input_scale") == []
    assert said(net, (300 * X, Y), lambda batch: mse_loss(net(batch[0]), batch[1]), "input_scale") == []


def leaks(x, y, loss=mse_loss, outputs=1):
    net = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), outputs))
    return said(net, (x, y), lambda batch: loss(net(batch[0]), batch[1]), "target_leak")


def test_a_column_that_is_the_target_up_to_scale_and_offset_is_a_note():
    x = torch.cat([X, 3 - 2 * Y], 1)
    (found,) = leaks(x, Y)
    assert found.severity == "note"
    assert "column 5 of the 6 that enter the model in linear" in found.evidence
    (samples, correlation) = numbers("over # samples their correlation is #", found.evidence)
    assert samples == 32
    assert correlation == pytest.approx(float(torch.corrcoef(torch.stack([x[:, 5], Y[:, 0]]).double())[0, 1]), abs=1e-6)


def test_a_step_of_a_window_that_is_the_target_is_an_alarm():
    windows = torch.randn(32, 7, 2)
    (found,) = leaks(windows, windows[:, 6, 1:])
    assert found.severity == "alarm"
    assert "column 13 of the 14" in found.evidence


def test_pictures_with_a_border_that_are_to_be_given_back_are_no_leak():
    pictures = nn.functional.pad(torch.randn(32, 1, 4, 4), (2, 2, 2, 2))
    assert leaks(pictures, pictures.flatten(1), outputs=64) == []


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (X, Y),
        (X, X),
        (Y, 2 * Y),
        (torch.cat([X[:4], Y[:4]], 1), Y[:4]),
        (torch.cat([X, Y + 0.01 * torch.randn(32, 1)], 1), Y),
    ],
    ids=["apart", "an autoencoder", "a line", "too few samples", "with noise"],
)
def test_nothing_is_said_where_no_column_is_the_target(x, y):
    assert leaks(x, y, outputs=y.shape[1]) == []


def test_a_binary_column_takes_more_samples_than_chance_allows():
    labels = torch.arange(256) % 2
    columns = torch.cat([torch.randn(256, 3), labels[:, None].float()], 1)
    assert len(leaks(columns, labels, cross_entropy, 2)) == 1
    assert leaks(columns[:32], labels[:32], cross_entropy, 2) == []
