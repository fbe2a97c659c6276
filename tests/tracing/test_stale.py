"""Gradients that are not cleared between two steps of an optimizer."""

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from toys import Toy, batches, fit

from hookboard import HealthMonitor

pytestmark = pytest.mark.trains


class Manual(LightningModule):
    """Clears its gradients at the time that it is told."""

    def __init__(self, clears="before", every=1, to_none=True, loops=1):
        super().__init__()
        self.automatic_optimization = False
        self.clears, self.every, self.to_none, self.loops = clears, every, to_none, loops
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.gradients = []

    def training_step(self, batch, batch_idx):
        for _ in range(self.loops):
            optimizer = self.optimizers()
            if self.clears == "before" and batch_idx % self.every == 0:
                optimizer.zero_grad(self.to_none)
            if self.clears == "at last" and batch_idx and batch_idx % self.every == 0:
                optimizer.step()
                optimizer.zero_grad(self.to_none)
            self.manual_backward(self.net(batch).square().mean())
            self.gradients.append(self.net[0].weight.grad.clone())
            if self.clears != "at last" and (batch_idx + 1) % self.every == 0:
                optimizer.step()
                if self.clears == "after":
                    optimizer.zero_grad(self.to_none)

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def verdicts(model, count=6, **options):
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, batches(*[8] * count), monitor, **options)
    return monitor.verdicts


def alarms(model, rule="stale_gradients", **options):
    return [verdict for verdict in verdicts(model, **options) if verdict.rule == rule]


def test_gradients_that_are_never_cleared_are_an_alarm_with_the_line_of_the_step():
    model = Manual(clears="never")
    (verdict,) = alarms(model)
    line = Manual.training_step.__code__.co_firstlineno + 11
    assert (verdict.severity, verdict.since <= 1, verdict.until) == ("alarm", True, None)
    assert f"SGD steps at test_stale.py:{line} with gradients" in verdict.evidence
    assert "(4 parameters)" in verdict.evidence
    # The oracle: a batch's own gradient, by hand, is what the second step should have had.
    first, second = model.gradients[:2]
    assert (second - first).abs().max() > 0


@pytest.mark.parametrize(
    ("clears", "every", "to_none", "loops"),
    [("before", 1, True, 1), ("before", 1, True, 2), ("after", 2, False, 1), ("at last", 2, False, 1)],
)
def test_gradients_that_are_cleared_at_any_time_are_fine(clears, every, to_none, loops):
    found = {verdict.rule for verdict in verdicts(Manual(clears, every, to_none, loops))}
    assert not found & {"stale_gradients", "cut"}


class Unread(Manual):
    """Clears its gradients before the step, without a look at them."""

    def training_step(self, batch, batch_idx):
        self.manual_backward(self.net(batch).square().mean())
        self.optimizers().zero_grad(self.to_none)
        self.optimizers().step()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_before_the_step_are_the_one_alarm_and_why_nothing_moves(to_none):
    model = Unread(to_none=to_none)
    before = [parameter.clone() for parameter in model.parameters()]
    (verdict,) = [one for one in verdicts(model, 20) if not one.follows_from]
    assert all(map(torch.equal, before, model.parameters()))  # the oracle
    line = Unread.training_step.__code__.co_firstlineno + 1
    assert (verdict.severity, verdict.rule, verdict.since) == ("alarm", "cut", 0)
    assert f"the loss term at test_stale.py:{line} trains nothing" in verdict.evidence.lower()


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
    class Taking(Manual):
        def manual_backward(self, loss):
            super().manual_backward(loss)
            self.optimizers().optimizer.take()

        def training_step(self, batch, batch_idx):
            self.manual_backward(self.net(batch).square().mean())
            self.optimizers().step()

        def configure_optimizers(self):
            return Keeping(self.parameters(), lr=0.01)

    model = Taking()
    before = model.net[0].weight.detach().clone()
    assert alarms(model, rule="cut") == []
    assert not torch.equal(before, model.net[0].weight)  # the oracle


class TwoOptimizers(Manual):
    """The backward pass of the generator leaves gradients in the critic, which clears them before its own."""

    def training_step(self, batch, batch_idx):
        one, other = self.optimizers()
        one.zero_grad()
        self.manual_backward(self.net(batch).square().mean())
        one.step()
        other.zero_grad()
        self.manual_backward(-self.net(batch).mean())
        other.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[i].parameters(), lr=0.01) for i in (0, 2)]


def test_gradients_that_another_loss_leaves_are_fine():
    assert alarms(TwoOptimizers()) == []


class NeitherClears(TwoOptimizers):
    def training_step(self, batch, batch_idx):
        one, other = self.optimizers()
        self.manual_backward(self.net(batch).square().mean())
        one.step()
        self.manual_backward(-self.net(batch).mean())
        other.step()


def test_two_optimizers_whose_gradients_are_never_cleared_are_one_alarm_with_both_lines():
    (verdict,) = alarms(NeitherClears())
    line = NeitherClears.training_step.__code__.co_firstlineno
    assert f"SGD steps at test_stale.py:{line + 3} and SGD steps at test_stale.py:{line + 5} with" in verdict.evidence
    assert "(2 and 2 parameters)" in verdict.evidence
    assert verdict.advice == "call zero_grad() on each optimizer before the backward pass"


class NeverClears(Toy):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        pass


def test_an_overridden_zero_grad_that_does_nothing_is_an_alarm():
    (verdict,) = alarms(NeverClears(nn.Linear(4, 1)))
    assert f"test_stale.py:{NeverClears.optimizer_zero_grad.__code__.co_firstlineno}" in verdict.evidence


def test_what_lightning_clears_and_accumulates_is_fine():
    assert alarms(Toy(nn.Linear(4, 1)), accumulate_grad_batches=2) == []


class ClearsTheData(Manual):
    def training_step(self, batch, batch_idx):
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()
        super().training_step(batch, batch_idx)


def test_gradients_that_are_cleared_through_their_data_are_well():
    assert alarms(ClearsTheData(clears="never")) == []


class Adversarial(Manual):
    """A generator and a critic, with an optimizer each."""

    def __init__(self, is_swapped):
        super().__init__()
        self.is_swapped = is_swapped
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        ours, theirs = self.optimizers()[::-1] if self.is_swapped else self.optimizers()
        made = self.generator(batch)
        theirs.zero_grad()
        self.manual_backward(self.critic(made.detach()).mean() - self.critic(batch).mean())
        theirs.step()
        ours.zero_grad()
        self.manual_backward(-self.critic(made).mean())
        ours.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.generator.parameters(), 0.01), torch.optim.Adam(self.critic.parameters(), 0.01)


def test_optimizers_that_are_taken_in_the_wrong_order_leave_a_loss_that_trains_nothing():
    (verdict,) = alarms(Adversarial(is_swapped=True), "cut")
    line = Adversarial.training_step.__code__.co_firstlineno + 4
    assert f"the loss term at test_stale.py:{line} trains nothing" in verdict.evidence


def test_optimizers_in_their_own_order_are_fine():
    assert alarms(Adversarial(is_swapped=False), "cut") == []
