"""Trainings that learn and look ill: none of them gets an alarm, and what is said of them is true."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from hookboard import HealthMonitor, watch

pytestmark = pytest.mark.trains

EVERY = 5


def verdicts_of(model, optimizer, step, steps=80):
    """The verdicts of a training whose loss falls to a half or less."""
    losses = []
    with watch(model, optimizer, [monitor := HealthMonitor(every_n_steps=EVERY)]) as run:
        for number in range(steps):
            x = torch.randn(32, 8)
            with run.step(x):
                loss = step(x, number)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    return monitor.verdicts


def test_optimizers_that_take_turns_over_long_phases():
    model = net()
    first, last = (torch.optim.Adam(model[place].parameters(), 1e-2) for place in (0, 2))
    with watch(model, [first, last], [monitor := HealthMonitor(every_n_steps=EVERY)]) as run:
        for number in range(120):
            x = torch.randn(32, 8)
            with run.step(x):
                loss = mse_loss(model(x), x[:, :2])
                model.zero_grad()
                loss.backward()
                (first if number < 60 else last).step()
    assert "no_gradient" not in {one.rule for one in monitor.verdicts}


def alarms(verdicts):
    return [str(one) for one in verdicts if one.severity == "alarm"]


def net(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))


def test_a_teacher_in_the_optimizer_of_its_student():
    both = nn.ModuleDict({"student": net(), "teacher": net(32)})

    def step(x, number):
        with torch.no_grad():
            wanted = both["teacher"](x)
        return mse_loss(both["student"](x), wanted)

    verdicts = verdicts_of(both, torch.optim.Adam(both.parameters(), 1e-2), step)
    assert alarms(verdicts) == []
    (note,) = [one for one in verdicts if one.rule == "no_gradient"]
    assert "teacher.0.weight" in note.evidence
    assert "other than through its targets" in note.evidence


def test_a_picture_that_is_trained_through_a_network():
    features, picture = net(), torch.zeros(32, 8, requires_grad=True)
    wanted = features(torch.randn(32, 8)).detach()
    optimizer = torch.optim.Adam([picture], 0.1)
    assert alarms(verdicts_of(features, optimizer, lambda x, number: mse_loss(features(picture), wanted))) == []


def test_a_network_that_only_the_loss_uses():
    torch.manual_seed(0)
    model, of_loss = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), [nn.Linear(8, 64)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    model.perceptual = of_loss

    def step(x, number):
        return mse_loss(of_loss[0](model(x)), of_loss[0](x))

    assert alarms(verdicts_of(model, optimizer, step, 200)) == []


def test_embeddings_that_begin_near_0_at_a_large_rate():
    torch.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(64, 8), "net": net()})
    nn.init.uniform_(model["table"].weight, -1e-4, 1e-4)
    wanted = torch.randn(64, 2)

    def step(x, number):
        rows = torch.arange(32) + 32 * (number % 2)
        return mse_loss(model["net"](model["table"](rows)), wanted[rows])

    assert alarms(verdicts_of(model, torch.optim.Adam(model.parameters(), 1e-2), step, 200)) == []


def test_descent_that_has_converged_in_float32():
    torch.manual_seed(0)
    model, data = nn.Linear(8, 1), torch.randn(64, 8)
    wanted = data.sum(1, keepdim=True) + 0.1 * torch.randn(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    assert alarms(verdicts_of(model, optimizer, lambda x, number: mse_loss(model(data), wanted), 400)) == []


@pytest.mark.parametrize("dropout", [0.5, 0.0])
def test_a_recurrent_layer_in_evaluation_mode_is_told_if_it_drops(dropout):
    torch.manual_seed(0)
    model = nn.ModuleDict({"rnn": nn.LSTM(8, 16, 2, batch_first=True, dropout=dropout), "head": nn.Linear(16, 8)})
    model.eval()

    def step(x, number):
        return mse_loss(model["head"](model["rnn"](x[:, None])[0])[:, 0], x)

    verdicts = verdicts_of(model, torch.optim.Adam(model.parameters(), 1e-2), step, 120)
    assert ("eval_mode" in {one.rule for one in verdicts}) is (dropout > 0)


class Wrapper(torch.optim.Optimizer):
    """Wraps an optimizer as Opacus does, without calling the constructor of torch's."""

    def __init__(self, optimizer):
        self.original_optimizer = optimizer

    @property
    def param_groups(self):
        return self.original_optimizer.param_groups

    def zero_grad(self, set_to_none=True):
        self.original_optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.original_optimizer.step()


def test_an_optimizer_in_a_wrapper_that_has_no_hooks_is_watched():
    model = net()
    wanted = torch.randn(32, 2)
    optimizer = Wrapper(torch.optim.Adam(model.parameters(), 1e-2))
    data = torch.randn(32, 8)
    assert alarms(verdicts_of(model, optimizer, lambda x, number: mse_loss(model(data), wanted), 100)) == []
