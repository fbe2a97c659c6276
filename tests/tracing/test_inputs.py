"""Data that enter the model: how they are scaled, and whether the target is among them."""

import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from tracing.steps import audited, watched

torch.manual_seed(0)
X = torch.randn(32, 5)
Y = torch.randn(32, 1)


class Takes(nn.Module):
    """Puts two inputs together, the first after a function."""

    def __init__(self, first):
        super().__init__()
        self.first, self.weight = first, nn.Parameter(torch.randn(5, 5) / 5)
        self.net = nn.Linear(10, 1)

    def forward(self, x, z):
        return self.net(torch.cat([self.first(self, x), z], 1))


TAKEN = {
    "raw": (lambda m, x: x, 300 * X, True),
    "scaled in the step": (lambda m, x: x / 300, 300 * X, False),
    "scaled in the step, by einsum": (lambda m, x: torch.einsum("ij,jk->ik", x / 300, m.weight), 300 * X, False),
    "scaled twice": (lambda m, x: (x / 90000) @ m.weight, 300 * X, True),
    "a column of its own units": (lambda m, x: x, torch.cat([150 * X[:, :1], X[:, 1:]], 1), True),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_input_is_out_of_scale_if_weights_take_it_so(name):
    first, x, is_told = TAKEN[name]
    torch.manual_seed(0)
    model = Takes(first)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    losses = [lambda model: mse_loss(model(x, X), Y)] * 8
    monitor = watched(model, *losses, batch=(x, Y), optimizer=optimizer)
    found = [one for one in monitor.verdicts if one.rule == "input_scale"]
    assert len(found) == is_told
    if name == "scaled twice":
        (rms,) = numbers("with an RMS of only # where weights take it", found[0].evidence)
        assert rms == pytest.approx(float((x.double() / 90000).square().mean().sqrt()), rel=0.05)


def leaks(x, y, loss=mse_loss, outputs=1, net=None):
    net = net or nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), outputs))
    return [found for found in audited(net, x, y, loss) if found.rule == "target_leak"]


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
        (X, X),
        (Y, 2 * Y),
        (torch.cat([X[:4], Y[:4]], 1), Y[:4]),
        (torch.cat([X, Y + 0.01 * torch.randn(32, 1)], 1), Y),
        (torch.cat([X, 2 * Y], 1), Y),
    ],
    ids=["an autoencoder", "a line", "too few samples", "with noise", "scaled"],
)
def test_nothing_is_said_where_no_column_is_the_target(x, y):
    assert leaks(x, y, outputs=y.shape[1]) == []


def test_a_binary_column_takes_more_samples_than_chance_allows():
    labels = torch.arange(256) % 2
    columns = torch.cat([torch.randn(256, 3), labels[:, None].float()], 1)
    assert len(leaks(columns, labels, cross_entropy, 2)) == 1
    assert leaks(columns[:32], labels[:32], cross_entropy, 2) == []


def test_a_model_whose_output_does_not_see_the_column_is_silent():
    class Masked(nn.Module):
        """An autoregressive flow: each output sees the columns before its own."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x):
            return nn.functional.linear(x, self.weight.tril(-1))

    x = torch.randn(32, 6)
    assert leaks(x, x[:, 3:4], lambda output, y: mse_loss(output[:, 3:4], y), net=Masked()) == []
