"""What HealthMonitor says of the code of the first training step."""

import random
import sys
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from toys import Toy, batches, fit, mlp
from tracing.steps import watched

from hookboard import HealthMonitor, watch
from hookboard.tracing.modes import Modes
from hookboard.tracing.program import StepTrace
from hookboard.tracing.questions import STEP

pytestmark = pytest.mark.trains

X, CLASSES = torch.randn(8, 4), torch.arange(8) % 3


class Classifier(Toy):
    def __init__(self, *tail):
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), *tail))

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.net(batch[0]), batch[1])


def verdicts_of(tmp_path, model, **options):
    monitor = HealthMonitor(every_n_steps=1, **options)
    fit(tmp_path, model, [(X, CLASSES)] * 4, monitor)
    return monitor.verdicts


class Listed(Classifier):
    def training_step(self, batch, batch_idx):
        return cross_entropy(torch.tensor(self.net(batch[0]).tolist(), requires_grad=True), batch[1])


def test_a_cut_off_whole_model_is_one_alarm(tmp_path):
    alarms = {(v.rule, v.follows_from) for v in verdicts_of(tmp_path, Listed()) if v.severity == "alarm"}
    assert {rule for rule, cause in alarms if cause is None} == {"cut"}


def test_that_all_gradients_are_0_follows_from_what_makes_them_0(tmp_path):
    model = Classifier(nn.ReLU())
    nn.init.constant_(model.net[2].bias, -100.0)
    found = verdicts_of(tmp_path, model)
    gone = next(one for one in found if one.rule == "cut")
    assert "the gradients of all 4 trainable parameters are exactly 0" in gone.evidence
    assert gone.follows_from is not None
    assert (found[0].rule, gone.follows_from[0]) == ("loss_input", "loss_input")


class Unregistered(Classifier):
    """Holds its layers in a list, as in few-shot programs that take another set of weights for each task."""

    def __init__(self):
        super().__init__()
        self.layers = [self.net]
        self.net = nn.Identity()

    def training_step(self, batch, batch_idx):
        return cross_entropy(self.layers[0](batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.layers[0].parameters(), lr=0.1)


def test_nothing_is_said_of_the_gradients_where_no_parameter_is_known(tmp_path):
    assert "cut" not in {one.rule for one in verdicts_of(tmp_path, Unregistered())}


def test_a_fault_in_the_step_is_an_alarm_from_the_first_look_on(tmp_path):
    first = verdicts_of(tmp_path, Classifier(nn.Softmax(1)))[0]
    assert (first.severity, first.rule, first.module) == ("alarm", "loss_input", "net.3")
    assert (first.since, first.until) == (0, None)
    assert "cross_entropy at test_fit.py" in first.evidence


@pytest.mark.parametrize("options", [{"rules": ["loss_shape"]}, {"audit": False}])
def test_a_rule_that_is_not_asked_says_nothing(tmp_path, options):
    assert not STEP.intersection(one.rule for one in verdicts_of(tmp_path, Classifier(nn.Softmax(1)), **options))


@pytest.mark.parametrize("place", [(StepTrace, "_place"), ("hookboard.tracing.questions", "findings_of")])
def test_a_fault_of_ours_is_one_warning_and_the_fit_goes_on(tmp_path, monkeypatch, place):
    def broken(*args):
        raise ZeroDivisionError("ours")

    owner, name = place
    owner = sys.modules[owner] if isinstance(owner, str) else owner
    monkeypatch.setattr(owner, name, broken)
    monitor = HealthMonitor(every_n_steps=1)
    with pytest.warns(UserWarning, match=r"the training step was not inspected \(ZeroDivisionError: ours\)"):
        run = fit(tmp_path, Toy(mlp()), batches(4, 4), monitor)
    assert run.global_step == 2


def modes_said(change, dropout=nn.Dropout, norm=nn.BatchNorm1d):
    """What is said of a net that this function changes after the third step, with the step since when."""
    net = nn.Sequential(nn.Linear(4, 8), norm(8), nn.ReLU(), dropout(0.1), nn.Linear(8, 3))
    loss_of = lambda model: cross_entropy(model(X), CLASSES)  # noqa: E731

    def after_a_change(model):
        change(net)
        return loss_of(model)

    steps = [loss_of] * 3 + [after_a_change] + [loss_of] * 2
    monitor = watched(nn.Sequential(net), *steps, batch=(X, CLASSES))
    return [(one.severity, one.since) for one in monitor.verdicts if one.rule == "eval_mode"]


def test_a_model_that_stays_in_evaluation_mode_after_an_evaluation_is_an_alarm_from_that_step_on():
    assert modes_said(nn.Module.eval) == [("alarm", 3)]


@pytest.mark.parametrize("has_buffers", [False, True])
def test_an_average_that_follows_the_weights_of_norms_and_not_their_statistics_is_an_alarm(has_buffers):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    both = nn.ModuleDict({"net": net, "teacher": deepcopy(net).requires_grad_(False).eval()})
    optimizer, monitor = torch.optim.SGD(net.parameters(), lr=0.1), HealthMonitor(every_n_steps=1)
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    with watch(both, optimizer, [monitor]) as run:
        for _ in range(4):
            with run.step((x, y)):
                told = both["teacher"](x).softmax(1)
                (cross_entropy(net(x), y) + (net(x).softmax(1) - told).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
            for its, mine in zip(both["teacher"].parameters(), net.parameters(), strict=True):
                its.lerp_(mine.detach(), 0.1)
            if has_buffers:
                both["teacher"].load_state_dict(net.state_dict())
    said = [(one.severity, one.module) for one in monitor.verdicts if one.rule == "eval_mode"]
    assert said == ([] if has_buffers else [("alarm", "teacher.1")])


class MonteCarlo(nn.AlphaDropout):
    """Drops in any mode, as for estimates of what the model does not know."""

    def forward(self, x):
        return nn.functional.alpha_dropout(x, self.p, True)


@pytest.mark.parametrize(("dropout", "is_told"), [(MonteCarlo, False), (nn.AlphaDropout, True)])
def test_a_dropout_of_a_users_class_may_drop_in_any_mode(dropout, is_told):
    assert bool(modes_said(nn.Module.eval, dropout, nn.LayerNorm)) is is_told


def test_norms_that_are_frozen_later_are_meant():
    assert modes_said(lambda net: net[1].eval()) == []
    assert modes_said(lambda net: [net[1].eval(), net[3].eval()]) == []


def test_a_part_that_is_frozen_later_with_all_norms_is_meant():
    body = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "head": nn.Linear(8, 3)})
    modules, modes = dict(body.named_modules()), Modes()
    assert modes.see(modules, 0) == []
    body["body"].requires_grad_(False).eval()
    assert modes.see(modules, 3) == []
    body["body"].requires_grad_(True)
    assert [found.evidence.partition(":")[2] for found in modes.see(modules, 4)] == [" body.1"]


@pytest.mark.parametrize("is_healed", [True, False])
def test_masked_rows_that_the_loss_leaves_out_are_a_fault_if_they_spoil_the_gradient(is_healed):
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    x, mask = torch.randn(8, 6, 4), torch.zeros(8, 1, 6, dtype=torch.bool)
    mask[0] = True

    def loss_of(model):
        hidden = model["body"](x)
        shares = (hidden @ hidden.mT).masked_fill(mask, -torch.inf).softmax(-1)
        outputs = model["head"]((shares.nan_to_num() if is_healed else shares) @ hidden)
        loss = (outputs - 1).square()[1:].mean()
        assert loss.isfinite()
        return loss

    monitor = watched(model, *[loss_of] * (3 if is_healed else 1), batch=x)
    found = [one.rule for one in monitor.verdicts if one.severity == "alarm"]
    assert found == ([] if is_healed else ["nonfinite"])


class Distance(nn.Module):
    """Counts its calls, draws numbers, and keeps statistics."""

    def __init__(self):
        super().__init__()
        self.norm, self.calls, self.draw = nn.BatchNorm1d(4), 0, random.Random(0)

    def forward(self, one, other):
        self.calls += 1
        return (self.norm(one) - self.norm(other)).norm(dim=1) * self.draw.random()


def test_a_function_of_the_users_that_torch_is_given_is_not_called_again():
    calls = []
    for callbacks in ([], [HealthMonitor(every_n_steps=1)]):
        torch.manual_seed(0)
        net, distance = nn.Linear(4, 4), Distance()
        both = nn.ModuleList([net, distance])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        batch = (X, X.flip(0), -X)
        with watch(both, optimizer, callbacks) as run, run.step(batch):
            parts = [net(part) for part in batch]
            nn.functional.triplet_margin_with_distance_loss(*parts, distance_function=distance).backward()
            optimizer.step()
        calls.append((distance.calls, distance.norm.running_mean.tolist(), net.weight.tolist()))
    assert calls[0] == calls[1]


def step_at_once(parameter):
    with torch.no_grad():
        parameter -= 0.1 * parameter.grad
    parameter.grad = None


def test_gradients_that_are_used_within_the_backward_pass_are_not_said_to_be_gone():
    net = nn.Sequential(nn.Linear(4, 3))
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step_at_once)
    monitor = watched(net, *[lambda net: cross_entropy(net(X), CLASSES)] * 2, batch=(X, CLASSES))
    assert [one.evidence for one in monitor.verdicts if one.rule == "cut"] == []


@pytest.mark.parametrize("parts", [1, 4])
def test_the_loss_of_a_constant_is_not_compared_with_a_sum_over_several_batches(parts):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 1))
    optimizer, monitor = torch.optim.SGD(net.parameters(), lr=0.01), HealthMonitor(every_n_steps=10)
    with watch(net, optimizer, [monitor]) as run:
        for _ in range(100):
            for part in range(parts):
                x, y = torch.randn(16, 6), torch.randn(16, 1)
                with run.step((x, y), accumulates=part < parts - 1):
                    (mse_loss(net(x), y) / parts).backward()
                    if part == parts - 1:
                        optimizer.step()
                        optimizer.zero_grad()
    assert [one for one in monitor.verdicts if one.severity == "alarm"] == []
