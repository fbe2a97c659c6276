"""What is tried on a copy, what it says, and that nothing of it stays."""

import copy
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from oracle import fall_of, losses_of_descent
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from hookboard.experiments import experiment as running
from hookboard.experiments.experiment import Setting, checkup, experiment


def regression(*sizes, seed=0):
    """Batches that a line explains."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.randn(6, 1, generator=generator)
    inputs = [torch.randn(size, 6, generator=generator) for size in sizes or (32,)]
    return [(x, x @ line) for x in inputs]


def net(outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def step_of(model, loss=mse_loss):
    return lambda batch: loss(model(batch[0]), batch[1])


def run_experiments(model, batch, optimizer, budget=60, step=None):
    return [*experiment(Setting(model, [optimizer], step or step_of(model)), batch, budget).findings]


def huge(batches):
    return [(1e4 * x, 1e4 * y) for x, y in batches]


def test_the_fall_that_is_said_is_the_one_that_float64_gives():
    model, [batch] = net(), regression()
    found = experiment(Setting(model, [SGD(model.parameters(), lr=0.1)], step_of(model)), batch, 60)
    fall = fall_of(losses_of_descent(net(), batch, 0.1, 30))
    assert found.findings == ()
    assert f"at your learning rate (0.1), on one batch: its loss falls by {fall:.0%} within 30 steps" in found.tried[0]


def test_a_loss_that_falls_in_four_times_as_many_steps_is_no_finding():
    model, [batch] = net(), regression()
    found = experiment(Setting(model, [SGD(model.parameters(), lr=3e-4)], step_of(model)), batch, 60)
    falls = [fall_of(losses_of_descent(net(), batch, 3e-4, steps)) for steps in (30, 120)]
    assert falls[0] < 0.05 < falls[1]  # the oracle
    assert found.findings == ()
    assert f"Trained for longer, it falls by {falls[1]:.0%} within 120 steps." in found.tried


@pytest.mark.parametrize(("first", "said"), [(0.001, "(0.0001)"), (0.0, "the learning rate is 0, as where a warm-up")])
def test_a_warmup_is_tried_at_the_rate_that_it_begins_with(first, said):
    model, [batch] = net(), regression()
    optimizer = SGD(model.parameters(), lr=0.1)
    LambdaLR(optimizer, lambda step: first + step / 1000)
    assert said in experiment(Setting(model, [optimizer], step_of(model)), batch, 60).tried[0]


def test_weights_that_fit_the_batch_already_are_no_alarm():
    model, [(x, _)] = net(), regression()
    batch = x, model(x).detach() + 1e-7
    found = run_experiments(model, batch, Adam(model.parameters(), lr=1e-3))
    assert {one.severity for one in found} <= {"note"}


def test_what_was_tried_is_told_where_time_ends_before_more_steps(monkeypatch):
    model, [batch], calls = net(), regression(), []

    def slow(batch):
        calls.append(1)
        if len(calls) > 150:
            raise running.OutOfTimeError
        return step_of(model)(batch)

    found = experiment(Setting(model, [SGD(model.parameters(), lr=1e-7)], slow), batch, 60)
    assert found.findings == ()
    assert found.tried[0].startswith("A copy was trained at your learning rate (1e-07), on one batch")
    assert found.tried[1] == "The time limit was reached before it could be trained for longer."


def test_a_loss_below_0_that_diverges_is_an_alarm():
    model, [batch] = net(), regression()
    step = lambda batch: -model(batch[0]).mean().exp() - 1  # noqa: E731
    found = experiment(Setting(model, [SGD(model.parameters(), lr=1e3)], step), batch, 60)
    assert [(one.severity, one.rule) for one in found.findings] == [("alarm", "cannot_learn")]


def test_two_views_of_a_sample_are_no_targets():
    """Both enter the model: its loss need not fall."""
    model = net(4)
    apart = lambda batch: 1 + 1e-9 * mse_loss(model(batch[0]), model(batch[1]))  # noqa: E731
    views = torch.randn(16, 6), torch.randn(16, 6)
    [found] = run_experiments(model, views, SGD(model.parameters(), lr=0.1), 60, apart)
    assert (found.rule, found.severity) == ("cannot_learn", "note")


def test_a_loss_that_is_not_finite_is_not_tried():
    model = net()
    model[0].weight.data.fill_(torch.nan)
    setting = Setting(model, [SGD(model.parameters(), lr=1)], step_of(model))
    assert experiment(setting, *regression(), 60).tried[0] == "Nothing was tried: the loss is nan."


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.seen = 0, []
        self.average = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.metric = MeanMetric()

    def forward(self, x):
        self.count += 1
        self.seen.append(random.random() + np.random.rand())
        self.average.data.lerp_(x.detach().mean(0), 0.1)
        self.metric.update(x.detach())
        return x


def all_of(model, optimizer):
    metric = [module.metric.mean_value.clone() for module in model.modules() if isinstance(module, Counts)]
    gradients = {name: p.grad if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    state = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    counts = [(m.count, list(m.seen)) for m in model.modules() if isinstance(m, Counts)]
    return state, gradients, counts, metric, torch.get_rng_state(), random.getstate(), str(np.random.get_state())


def is_same(one, other):
    if isinstance(one, torch.Tensor):
        return one.equal(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


OPTIMIZERS = {
    "SGD": lambda ps: SGD(ps, lr=100, momentum=0.9),
    "Adam": lambda ps: Adam(ps, lr=0.01),
    "LBFGS": lambda ps: LBFGS(ps, lr=1, max_iter=3),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_everything_is_put_back_to_the_bit(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), Counts(), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer, [batch] = make(model.parameters()), regression(8)

    def closure():
        optimizer.zero_grad()
        loss = step_of(model)(batch)
        loss.backward()
        return loss

    optimizer.step(closure)
    before, given, memory = all_of(model, optimizer), copy.deepcopy(batch), [p.data_ptr() for p in model.parameters()]
    gradients = [p.grad for p in model.parameters()]
    run_experiments(model, batch, optimizer)
    assert is_same(before, all_of(model, optimizer))
    assert is_same(given, batch)
    assert memory == [p.data_ptr() for p in model.parameters()]
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))


def test_after_an_error_everything_is_put_back_and_a_step_that_changes_its_batch_got_it_as_it_was_each_time():
    model = net()
    optimizer, seen, ran = SGD(model.parameters(), lr=0.1), [], []
    optimizer.register_step_post_hook(lambda *args: ran.append(1))
    before = all_of(model, optimizer)

    def fails(batch):
        seen.append(batch[0].sum().item())
        if len(seen) > 20:
            raise ZeroDivisionError
        batch[0].mul_(2)
        return step_of(model)(batch)

    with pytest.raises(ZeroDivisionError):
        run_experiments(model, *regression(), optimizer, 60, fails)
    assert is_same(before, all_of(model, optimizer))
    assert len(set(seen)) == 1
    assert ran == [], "hooks of the optimizer do not run"


def test_the_budget_is_kept():
    model = net()

    def slow(batch):
        time.sleep(0.02)
        return step_of(model)(batch)

    began = time.perf_counter()
    run_experiments(model, *regression(), SGD(model.parameters(), lr=0.1), 0.5, slow)
    assert time.perf_counter() - began < 1


def test_a_step_longer_than_the_budget_finds_nothing():
    model = net()
    assert run_experiments(model, *regression(), SGD(model.parameters(), lr=100), 1e-9) == []


class Lit(LightningModule):
    def __init__(self, optimizers=1, manual=False):
        super().__init__()
        self.net, self.count, self.automatic_optimization = net(), optimizers, not manual

    def training_step(self, batch, batch_idx):
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return [SGD(self.parameters(), lr=100) for _ in range(self.count)]


def test_checkup_takes_a_lightning_module_and_prints_a_page_of_finite_numbers():
    report = checkup(Lit(), regression(32, 32))
    assert not any("nan" in line for line in report.tried)
    assert [found.rule for found in report.findings] == ["cannot_learn"]
    page = str(report)
    assert page.startswith("Checkup: 1 alarm\n\nALARM cannot_learn\n  tried on a copy: at your learning rate (1e+02), ")
    assert "-> lower the learning rate" in page


def test_a_backward_pass_within_training_step_is_cleared_as_by_lightning():
    class Attacked(Lit):
        def training_step(self, batch, batch_idx):
            x = batch[0].clone().requires_grad_()
            (1e6 * mse_loss(self.net(x), batch[1])).backward()
            return mse_loss(self.net(batch[0] + 0.01 * x.grad.sign()), batch[1])

        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.05)

    report = experiment(Setting(model := Attacked(), [model.configure_optimizers()]), *regression(), 60)
    assert report.findings == ()


def test_batches_are_changed_by_the_hooks_of_a_lightning_module():
    class Scaled(Lit):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch[0] / 1e4, batch[1]

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch[0], batch[1] / 1e4

        def configure_optimizers(self):
            return SGD(self.parameters(), lr=0.1)

    assert checkup(Scaled(), huge(regression())).findings == ()


def test_the_generator_of_a_loader_is_put_back():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(*regression()[0]), batch_size=8, shuffle=True, generator=generator)
    before, model = generator.get_state(), net()
    checkup(model, loader, step_of(model), SGD(model.parameters(), lr=0.1))
    assert generator.get_state().equal(before)


def test_checkup_includes_what_audit_finds():
    model = nn.Sequential(net(3), nn.Softmax(1))
    batch = torch.randn(32, 6), torch.arange(32) % 3
    report = checkup(model, [batch], step_of(model, cross_entropy), SGD(model.parameters(), lr=0.1))
    assert "loss_input" in [found.rule for found in report.findings]


@pytest.mark.parametrize(
    ("model", "why"), [(Lit(2), "there are 2 optimizers"), (Lit(manual=True), "the model uses manual optimization")]
)
def test_checkup_says_in_one_line_why_nothing_was_tried(model, why):
    report = checkup(model, regression())
    assert report.tried[-1] == f"Nothing was tried: {why}."


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            (net(), regression()),
            TypeError,
            "model of type Sequential has no training_step: pass step= and optimize",
        ),
        ((net(), regression(), step_of(net()), []), TypeError, "optimizer must be a single Optimizer; got list"),
        ((Lit(), []), ValueError, "data has no batches"),
    ],
)
def test_checkup_says_what_it_needs(given, error, message):
    with pytest.raises(error, match=message):
        checkup(*given)


def test_a_dict_that_makes_what_it_is_asked_for_is_not_asked():
    class Makes(dict):
        def __getitem__(self, name):
            raise ZeroDivisionError

    model = net()
    model.table = Makes(a=1)
    assert run_experiments(model, *regression(), Adam(model.parameters(), lr=0.01)) == []


def test_the_page_prints_what_its_document_shows(capsys):
    page = (Path(__file__).parents[2] / "docs" / "checkup.md").read_text()
    shown = page.partition("```text\n")[2].partition("...")[0]
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "checkup(line" in code]
    exec(example, {})
    assert capsys.readouterr().out.startswith(shown)


def test_of_a_loss_that_can_be_negative_a_line_says_from_where_to_where_it_goes():
    model, [(x, _)] = net(), regression()
    other, losses = copy.deepcopy(model), []
    sgd = SGD(other.parameters(), lr=0.01)
    for _ in range(31):
        sgd.zero_grad()
        loss = other(x).mean()
        losses.append(loss.item())
        loss.backward()
        sgd.step()
    setting = Setting(model, [SGD(model.parameters(), lr=0.01)], lambda batch: model(batch).mean())
    found = experiment(setting, x, 60)
    assert f"its loss goes from {losses[0]:.3g} to {sum(losses[-5:]) / 5:.3g} within 30 steps" in found.tried[0]
    assert "The loss can be negative, so this does not tell whether the model learns." in found.tried
    assert found.findings == ()


def test_a_model_that_holds_a_sparse_tensor_and_a_step_that_computes_derivatives_are_tried_too():
    model = net()
    model.register_buffer("links", torch.eye(32).to_sparse())

    def step(batch):
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return mse_loss(model.links @ slope.sum(1, keepdim=True), batch[1])

    found = experiment(Setting(model, [Adam(model.parameters(), lr=0.01)], step), *regression(), 60)
    assert found.findings == ()
    assert "at your learning rate (0.01), on one batch: its loss falls by" in found.tried[0]


def test_nothing_is_tried_if_gradients_and_the_optimizers_state_do_not_fit_beside_the_weights(monkeypatch):
    model = net()
    model[0].requires_grad_(False)
    size = sum(p.nbytes for p in model[0].parameters()) + 4 * sum(p.nbytes for p in model[2].parameters())
    said = []
    for limit in (size, size - 1):
        monkeypatch.setattr(running, "MAX_CPU_WEIGHT_BYTES", limit)
        found = experiment(Setting(model, [Adam(model.parameters())], step_of(model)), *regression(), 1)
        said.append("too large to copy" in found.tried[0])
    assert said == [False, True]
