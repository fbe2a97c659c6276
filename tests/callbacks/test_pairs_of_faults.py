"""Two faults in one training: both are named, and neither hides the other as what follows from it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookboard import HealthMonitor, watch

pytestmark = pytest.mark.trains

STEPS, EVERY = 60, 5


class Net(nn.Module):
    """Four classes of eight features."""

    def __init__(self, end=None, hidden=None):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.hidden, self.head, self.end = hidden or nn.Identity(), nn.Linear(16, 4), end or nn.Identity()
        self.is_cut = False

    def forward(self, x):
        encoded = self.encoder(x)
        return self.end(self.head(self.hidden(encoded.detach() if self.is_cut else encoded)))


def cross_entropy(out, labels, sums):
    return functional.cross_entropy(out, labels)


def broadcast(out, labels, sums):
    return functional.mse_loss(out[:, 0], sums)


def alarms(rate=1e-2, loss=cross_entropy, end=None, hidden=None, cut=False, held="", clears=True):
    """The rules of the alarms that follow from nothing, of a training with these faults."""
    torch.manual_seed(0)
    net = Net(end, hidden)
    net.is_cut = cut
    optimizer = torch.optim.Adam([p for name, p in net.named_parameters() if name.startswith(held)], rate)
    with watch(net, optimizer, [monitor := HealthMonitor(every_n_steps=EVERY)]) as run:
        for _ in range(STEPS):
            x = torch.randn(32, 8)
            targets = x[:, :4].argmax(1), x.sum(1, keepdim=True)
            with run.step((x, *targets)):
                value = loss(net(x), *targets)
                if clears:
                    optimizer.zero_grad()
                value.backward()
                optimizer.step()
    return {v.rule for v in monitor.verdicts if v.severity == "alarm" and v.follows_from is None}


RATE = {"rate": 3.0}

PAIRS = [
    ({"loss_input", "update_too_large"}, RATE | {"end": nn.Softmax(1)}),
    ({"loss_shape", "update_too_large"}, RATE | {"loss": broadcast}),
    ({"no_gradient", "update_too_large"}, RATE | {"cut": True}),
    ({"not_updated", "update_too_large"}, RATE | {"held": "encoder"}),
    ({"dropout", "update_too_large"}, RATE | {"hidden": nn.Dropout(0.99)}),
    ({"stale_gradients", "update_too_large"}, RATE | {"clears": False}),
    ({"loss_input", "dropout"}, {"end": nn.Softmax(1), "hidden": nn.Dropout(0.99)}),
    ({"loss_shape", "stale_gradients"}, {"loss": broadcast, "clears": False}),
    ({"dropout", "loss_shape"}, {"hidden": nn.Dropout(0.99), "loss": broadcast}),
    ({"no_gradient", "loss_shape"}, {"cut": True, "loss": broadcast}),
    ({"no_gradient", "loss_input"}, {"cut": True, "end": nn.Softmax(1)}),
]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("rules", "faults"), PAIRS, ids=["+".join(sorted(rules)) for rules, _ in PAIRS])
def test_both_of_two_faults_are_named(rules, faults):
    assert rules <= alarms(**faults)


def test_without_a_fault_nothing_is_named():
    assert alarms() == set()
