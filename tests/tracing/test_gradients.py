"""What becomes of gradients: those that are not cleared between two steps, and those that are cleared unused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from toys import Toy, batches, fit, mlp

from hookboard import HealthMonitor, watch

pytestmark = pytest.mark.trains


def sgd_for_all(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def sgd_for_each_layer(model):
    return [torch.optim.SGD(model.net[i].parameters(), lr=0.01) for i in (0, 2)]


class Manual(Toy):
    """Trains by a function of itself, its optimizers and the batch."""

    def __init__(self, step, configure_optimizers=sgd_for_all):
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
        self.automatic_optimization = False
        self.step, self.configure, self.count = step, configure_optimizers, 0

    def training_step(self, batch):
        self.step(self, self.optimizers(), batch)
        self.count += 1

    def configure_optimizers(self):
        return self.configure(self)


def verdicts(model, count=6, **options):
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, batches(*[8] * count), monitor, **options)
    return monitor.verdicts


def alarms(model, rule="stale_gradients", **options):
    return [verdict for verdict in verdicts(model, **options) if verdict.rule == rule]


def line_in(step, number):
    return f"test_gradients.py:{step.__code__.co_firstlineno + number}"


def test_gradients_that_are_never_cleared_are_an_alarm_with_the_line_of_the_step():
    gradients = []

    def step(model, optimizer, x):
        model.manual_backward(model.net(x).square().mean())
        gradients.append(model.net[0].weight.grad.clone())
        optimizer.step()

    (verdict,) = alarms(Manual(step))
    assert (verdict.severity, verdict.since <= 1, verdict.until) == ("alarm", True, None)
    assert f"SGD steps at {line_in(step, 3)} with gradients" in verdict.evidence
    assert "(4 parameters)" in verdict.evidence
    # The oracle: a batch's own gradient, by hand, is what the second step should have had.
    assert (gradients[1] - gradients[0]).abs().max() > 0


def cleared_before_the_backward_pass(model, optimizer, x):
    optimizer.zero_grad()
    model.manual_backward(model.net(x).square().mean())
    optimizer.step()


def cleared_twice_in_a_training_step(model, optimizer, x):
    cleared_before_the_backward_pass(model, optimizer, x)
    cleared_before_the_backward_pass(model, optimizer, x)


def cleared_after_the_step(model, optimizer, x):
    model.manual_backward(model.net(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def cleared_after_each_second_batch(model, optimizer, x):
    model.manual_backward(model.net(x).square().mean())
    if model.count % 2:
        optimizer.step()
        optimizer.zero_grad(False)


def cleared_before_each_second_batch(model, optimizer, x):
    if model.count and model.count % 2 == 0:
        optimizer.step()
        optimizer.zero_grad(False)
    model.manual_backward(model.net(x).square().mean())


def cleared_through_their_data(model, optimizer, x):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()
    model.manual_backward(model.net(x).square().mean())
    optimizer.step()


def read_before_they_are_cleared(model, optimizer, x):
    model.manual_backward(model.net(x).square().mean())
    model.norm = torch.stack([p.grad.norm() for p in model.net.parameters()]).norm()
    optimizer.zero_grad()
    cleared_after_the_step(model, optimizer, x)


def for_the_gradient_of_an_offset(model, optimizer, x):
    offset = torch.zeros_like(x)
    offset.requires_grad = True
    model.manual_backward(model.net(x + offset).square().mean())
    optimizer.zero_grad()
    model.manual_backward(model.net(x + 0.1 * offset.grad.sign()).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def for_the_gradient_of_an_activation(model, optimizer, x):
    hidden = model.net[:2](x)
    hidden.retain_grad()
    model.manual_backward(model.net[2](hidden).amax(1).sum())
    model.map = hidden.grad
    optimizer.zero_grad()
    cleared_after_the_step(model, optimizer, x)


def as_a_dry_run(model, optimizer, x):
    model.manual_backward(model.net(x).square().mean())
    if model.count:
        optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    "step",
    [
        cleared_before_the_backward_pass,
        cleared_twice_in_a_training_step,
        cleared_after_the_step,
        cleared_after_each_second_batch,
        cleared_before_each_second_batch,
        cleared_through_their_data,
        read_before_they_are_cleared,
        for_the_gradient_of_an_offset,
        for_the_gradient_of_an_activation,
        as_a_dry_run,
    ],
)
def test_gradients_that_are_used_and_cleared_at_any_time_are_fine(step):
    assert not {verdict.rule for verdict in verdicts(Manual(step))} & {"stale_gradients", "cut"}


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_before_the_step_are_the_one_alarm_and_why_nothing_moves(to_none):
    def step(model, optimizer, x):
        model.manual_backward(model.net(x).square().mean())
        optimizer.zero_grad(to_none)
        optimizer.step()

    model = Manual(step)
    before = [parameter.clone() for parameter in model.parameters()]
    (verdict,) = [one for one in verdicts(model, 20) if not one.follows_from]
    assert all(map(torch.equal, before, model.parameters()))  # the oracle
    assert (verdict.severity, verdict.rule, verdict.since) == ("alarm", "cut", 0)
    assert f"the loss term at {line_in(step, 1)} trains nothing" in verdict.evidence.lower()


class Keeping(torch.optim.SGD):
    """Takes the gradients over before it steps with them, as one that holds them in other memory does."""

    def take(self):
        self.kept = [parameter.grad for parameter in self.param_groups[0]["params"]]
        self.zero_grad()

    def step(self, closure=None):
        loss = closure()
        for parameter, gradient in zip(self.param_groups[0]["params"], self.kept, strict=True):
            parameter.grad = gradient
        super().step()
        self.zero_grad()
        return loss


def test_an_optimizer_that_keeps_its_gradients_elsewhere_is_no_alarm():
    def step(model, optimizer, x):
        model.manual_backward(model.net(x).square().mean())
        optimizer.optimizer.take()
        optimizer.step()

    model = Manual(step, lambda model: Keeping(model.parameters(), lr=0.01))
    before = model.net[0].weight.detach().clone()
    assert alarms(model, rule="cut") == []
    assert not torch.equal(before, model.net[0].weight)  # the oracle


def test_gradients_that_another_loss_leaves_are_fine():
    def step(model, optimizers, x):
        one, other = optimizers
        one.zero_grad()
        model.manual_backward(model.net(x).square().mean())
        one.step()
        other.zero_grad()
        model.manual_backward(-model.net(x).mean())
        other.step()

    assert alarms(Manual(step, sgd_for_each_layer)) == []


def test_two_optimizers_whose_gradients_are_never_cleared_are_one_alarm_with_both_lines():
    def step(model, optimizers, x):
        model.manual_backward(model.net(x).square().mean())
        optimizers[0].step()
        model.manual_backward(-model.net(x).mean())
        optimizers[1].step()

    (verdict,) = alarms(Manual(step, sgd_for_each_layer))
    assert f"SGD steps at {line_in(step, 2)} and SGD steps at {line_in(step, 4)} with" in verdict.evidence
    assert "(2 and 2 parameters)" in verdict.evidence
    assert verdict.advice == "call zero_grad() on each optimizer before the backward pass"


class NeverClears(Toy):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        pass


def test_an_overridden_zero_grad_that_does_nothing_is_an_alarm():
    (verdict,) = alarms(NeverClears(nn.Linear(4, 1)))
    assert line_in(NeverClears.optimizer_zero_grad, 0) in verdict.evidence


def test_what_lightning_clears_and_accumulates_is_fine():
    assert alarms(Toy(nn.Linear(4, 1)), accumulate_grad_batches=2) == []


@pytest.mark.parametrize("is_swapped", [True, False])
def test_optimizers_that_are_taken_in_the_wrong_order_leave_a_loss_that_trains_nothing(is_swapped):
    def step(model, optimizers, x):
        generator, critic = model.net[0], model.net[2]
        ours, theirs = optimizers[::-1] if is_swapped else optimizers
        made = generator(x)
        theirs.zero_grad()
        model.manual_backward(critic(made.detach()).mean() - critic(x).mean())
        theirs.step()
        ours.zero_grad()
        model.manual_backward(-critic(made).mean())
        ours.step()

    found = alarms(Manual(step, sgd_for_each_layer), "cut")
    assert len(found) == is_swapped
    assert all(f"the loss term at {line_in(step, 5)} trains nothing" in one.evidence for one in found)


X, CLASSES = torch.randn(8, 4), torch.arange(8) % 3


def test_a_step_that_a_scaler_leaves_out_throws_nothing_away():
    net, monitor = mlp(), HealthMonitor()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10**6)
    with watch(net, optimizer, [monitor]) as run:
        for _ in range(2):
            with run.step((X, CLASSES)):
                scaler.scale(cross_entropy(100 * net(X), CLASSES)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert scaler.get_scale() < 2.0**127, "a step was left out"
    assert [one.rule for one in monitor.verdicts if one.rule == "cut"] == []


def test_a_closure_may_throw_gradients_away_as_often_as_its_optimizer_calls_it():
    net, monitor = mlp(), HealthMonitor()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

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
    net, monitor = mlp(), HealthMonitor()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    with watch(net, optimizer, [monitor]) as run, run.step((X, CLASSES)):
        cross_entropy(net(X), CLASSES).backward()
        step()
        optimizer.zero_grad()
    assert [one.rule for one in monitor.verdicts if one.rule == "cut"] == []
