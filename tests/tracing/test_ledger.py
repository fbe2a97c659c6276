"""What becomes of the gradient of each term of the loss in the first step."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy
from toys import fit

from hookboard import HealthMonitor, watch

pytestmark = pytest.mark.trains

X, CLASSES = torch.randn(8, 4), torch.arange(8) % 3


class Steps(LightningModule):
    def __init__(self, step):
        super().__init__()
        self.automatic_optimization = False
        self.net, self.step = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), step

    def loss_of(self, x):
        return cross_entropy(self.net(x), CLASSES)

    def training_step(self, batch, batch_idx):
        self.step(self, self.optimizers(), batch)

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def thrown_away(step):
    monitor = HealthMonitor()
    fit(None, Steps(step), [X] * 2, monitor)
    return [one for one in monitor.verdicts if one.rule == "cut" and "trains nothing" in one.evidence]


def cleared_after_the_step(model, optimizer, x):
    model.manual_backward(model.loss_of(x))
    optimizer.step()
    optimizer.zero_grad()


def read_before_it_is_cleared(model, optimizer, x):
    model.manual_backward(model.loss_of(x))
    model.norm = torch.stack([p.grad.norm() for p in model.net.parameters()]).norm()
    optimizer.zero_grad()
    cleared_after_the_step(model, optimizer, x)


def for_the_gradient_of_an_offset(model, optimizer, x):
    offset = torch.zeros_like(x)
    offset.requires_grad = True
    model.manual_backward(model.loss_of(x + offset))
    optimizer.zero_grad()
    loss = cross_entropy(model.net(x + 0.1 * offset.grad.sign()), CLASSES)
    model.manual_backward(loss)
    optimizer.step()


def for_the_gradient_of_an_activation(model, optimizer, x):
    hidden = model.net[:2](x)
    hidden.retain_grad()
    model.manual_backward(model.net[2](hidden).amax(1).sum())
    model.map = hidden.grad
    optimizer.zero_grad()
    cleared_after_the_step(model, optimizer, x)


def as_a_dry_run(model, optimizer, x):
    model.manual_backward(model.loss_of(x))
    if model.global_step > 0:
        optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "step",
    [
        as_a_dry_run,
        cleared_after_the_step,
        read_before_it_is_cleared,
        for_the_gradient_of_an_offset,
        for_the_gradient_of_an_activation,
    ],
)
def test_a_gradient_that_is_used_is_none(step):
    assert thrown_away(step) == []


def test_a_step_that_a_scaler_leaves_out_throws_nothing_away():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer, monitor = torch.optim.SGD(net.parameters(), lr=0.1), HealthMonitor()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10**6)
    with watch(net, optimizer, [monitor]) as run:
        for _ in range(2):
            with run.step((X, CLASSES)):
                loss = cross_entropy(100 * net(X), CLASSES)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert scaler.get_scale() < 2.0**127, "a step was left out"
    assert [one.rule for one in monitor.verdicts if one.rule == "cut"] == []


def test_a_closure_may_throw_gradients_away_as_often_as_its_optimizer_calls_it():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer, monitor = torch.optim.LBFGS(net.parameters(), max_iter=3), HealthMonitor()

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(net(X), CLASSES)
        loss.backward()
        return loss

    with watch(net, optimizer, [monitor]) as run, run.step((X, CLASSES)):
        optimizer.step(closure)
    assert [one.rule for one in monitor.verdicts if one.rule == "cut"] == []


@pytest.mark.compiles
def test_a_compiled_step_of_an_optimizer_uses_the_gradients():
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer, monitor = torch.optim.SGD(net.parameters(), lr=0.1), HealthMonitor()
    step = torch.compile(optimizer.step, backend="eager")
    with watch(net, optimizer, [monitor]) as run, run.step((X, CLASSES)):
        cross_entropy(net(X), CLASSES).backward()
        step()
        optimizer.zero_grad()
    assert [one.rule for one in monitor.verdicts if one.rule == "cut"] == []
