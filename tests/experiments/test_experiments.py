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
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchmetrics import MeanMetric

from hookboard.experiments import attempt
from hookboard.experiments.attempt import Setting
from hookboard.experiments.batches import read_apart
from hookboard.experiments.experiment import experiment
from hookboard.experiments.one_page import checkup
from hookboard.experiments.rates import RateTrial, judge_rates
from hookboard.tracing.step import CannotRunAgainError

pytestmark = pytest.mark.unit


def regression(*sizes, seed=0):
    """Batches that a line explains."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.randn(6, 1, generator=generator)
    inputs = [torch.randn(size, 6, generator=generator) for size in sizes or (32,)]
    return [(x, x @ line) for x in inputs]


def classes(count=8, size=32):
    """Batches of three clouds of points, with their numbers."""
    generator = torch.Generator().manual_seed(0)
    middle = 3 * torch.randn(3, 6, generator=generator)
    labels = [torch.randint(3, (size,), generator=generator) for _ in range(count)]
    return [(middle[y] + torch.randn(size, 6, generator=generator), y) for y in labels]


def net(outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def step_of(model, loss=mse_loss):
    return lambda batch: loss(model(batch[0]), batch[1])


def run_experiments(model, batches, optimizer, budget, step=None):
    return [*experiment(Setting(model, [optimizer], step), batches, budget).findings]


def tried(model, batches, optimizer, loss=mse_loss, budget=60):
    return {found.rule: found for found in run_experiments(model, batches, optimizer, budget, step_of(model, loss))}


def test_outputs_that_differ_are_not_called_constant_beside_targets_with_a_large_offset():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    x = torch.randn(64, 4)
    batches = [(x, x[:, :1] + 30)]
    told = str(checkup(model, batches, step_of(model), torch.optim.SGD(model.parameters(), lr=5e-4)))
    assert "lr 0.0005 (yours): the loss falls by 11%" in told
    assert "same for every sample" not in told


@pytest.fixture(scope="module")
def too_high():
    """A model at a rate a thousand times too high, and what is found."""
    model = net()
    return model, tried(model, regression(), SGD(model.parameters(), lr=100))["learning_rate"]


def test_a_rate_a_thousand_times_too_high_is_named_with_one_that_works(too_high):
    model, found = copy.deepcopy(too_high[0]), too_high[1]
    assert found.severity == "alarm"
    rate = float(found.advice.removeprefix("set lr="))
    for x, y in regression() * 30:
        loss = mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
    assert mse_loss(model(x), y) < 0.7 * mse_loss(net()(x), y)


def test_the_fall_that_is_said_is_the_one_that_float64_gives(too_high):
    fall = fall_of(losses_of_descent(net(), *regression(), 0.1, 30))
    assert f"at a rate of 0.1 the loss falls by {fall:.0%} in 30 steps" in too_high[1].evidence


def test_with_several_rates_the_advice_is_a_factor():
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 50.0}]
    assert tried(model, regression(), SGD(groups, lr=100))["learning_rate"].advice == "divide all rates by 1000"


def fall_with_adam(rate, steps=30):
    """The oracle: the share of the loss on one batch that Adam takes off, in float64."""
    model, (x, y) = net(3).double(), classes(1)[0]
    optimizer, losses = Adam(model.parameters(), lr=rate), []
    for _ in range(steps + 1):
        losses.append(cross_entropy(model(x.double()), y))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    return fall_of([loss.item() for loss in losses])


def test_a_rate_far_too_small_is_a_note_also_if_the_best_that_is_tried_falls_a_little():
    model = net(3)
    found = experiment(
        Setting(model, [Adam(model.parameters(), lr=3e-7)], step_of(model, cross_entropy)), classes(1), 60
    )
    little = fall_with_adam(3e-4)
    assert 0.05 < little < 0.3
    assert fall_with_adam(3e-7) < 0.005
    (rate,) = [one for one in found.findings if one.rule == "learning_rate"]
    assert (rate.severity, "set lr=0.0003" in rate.advice) == ("note", True)
    assert (
        f"at a rate of 0.0003 the loss falls by {little:.0%} in 30 steps; at yours (3e-07) it changes" in rate.evidence
    )
    assert rate.evidence.endswith("it changes by less than 0.5%")


def test_a_loss_that_blows_up_is_a_multiple_of_its_value():
    best = RateTrial(0.1, 0.01, 30, before=2.0, after=0.5, right=1.0, exchanged=2.0)
    yours = RateTrial(1.0, 0.1, 30, before=2.0, after=6e9, right=1.0, exchanged=2.0)
    model = net()
    setting = Setting(model, [SGD(model.parameters(), lr=0.1)], total_steps=100.0)
    [found] = judge_rates(setting, [best, yours], [(yours, best)], has_targets=True, is_dense=False)
    assert (found.rule, found.severity) == ("learning_rate", "alarm")
    assert found.evidence.endswith(f"at yours (0.1) it rises to {6e9 / 2.0:.1g} times its initial value")


def cut(y, target):
    return mse_loss(y.detach(), target).requires_grad_()


def far(batches):
    return [(x, y + 100) for x, y in batches]


def huge(batches):
    return [(1e4 * x, 1e4 * y) for x, y in batches]


TRIED = {
    "a rate that is too small, where nobody knows for how many steps": (
        lambda: (net(), regression(), 1e-4, mse_loss), ("learning_rate", "note", ""),
    ),
    "a rate millions of times too small": (
        lambda: (net(), regression(), 1e-7, mse_loss), ("learning_rate", "note", ""),
    ),
    "a loss that diverges at every rate": (
        lambda: (nn.Linear(6, 1), huge(regression()), 1, mse_loss),
        ("learning_rate", "alarm", "at every learning rate down to 0.001, the loss diverges"),
    ),
    "outputs that cannot move": (
        lambda: (nn.Sequential(net(), nn.Softmax(dim=1)), regression(), 0.1, mse_loss),
        ("cannot_learn", "alarm", "no nonzero gradient reaches any of the 4 parameters"),
    ),
    "a graph that is cut": (
        lambda: (net(), regression(), 0.1, cut),
        ("cannot_learn", "alarm", "no nonzero gradient reaches any of the 4 parameters"),
    ),
    "targets out of reach": (
        lambda: (nn.Sequential(net(), nn.Sigmoid()), far(regression()), 0.1, mse_loss),
        ("cannot_learn", "alarm", "at any of 7 rates"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TRIED)
def test_what_does_not_learn_is_told_from_what_has_another_rate(what):
    make, (rule, severity, words) = TRIED[what]
    model, batches, rate, loss = make()
    found = tried(model, batches, SGD(model.parameters(), lr=rate), loss)
    assert [*found] == [rule]
    assert found[rule].severity == severity
    assert words in found[rule].evidence


@pytest.mark.parametrize(
    ("rate", "schedule", "said"),
    [(0.1, lambda step: (step + 1) / 1000, ""), (100.0, lambda step: step / 1000, "yours (1e+02)")],
    ids=["a small rate that works", "zero, which leads to a rate that does not"],
)
def test_a_warmup_is_tried_at_the_rate_that_it_leads_to_from(rate, schedule, said):
    model = net()
    optimizer = SGD(model.parameters(), lr=rate)
    LambdaLR(optimizer, schedule)
    found = tried(model, regression(), optimizer)
    assert [*found] == (["learning_rate"] if said else [])
    assert all(said in one.evidence for one in found.values())


def test_a_loss_without_targets_that_does_not_fall_is_a_note():
    model = net()
    noise = lambda batch: torch.randn(()).abs() + 1 + 0 * model(batch).sum() + 1e-9 * model(batch).sum()  # noqa: E731
    found = run_experiments(model, [regression()[0][0]], SGD(model.parameters(), lr=1e-6), 60, noise)
    assert {one.severity for one in found} <= {"note"}


def test_two_views_of_a_sample_are_no_targets():
    """Both enter the model: its loss need not fall."""
    model = net(4)
    apart = lambda batch: 1 + 1e-9 * mse_loss(model(batch[0]), model(batch[1]))  # noqa: E731
    views = [(torch.randn(16, 6), torch.randn(16, 6))]
    [found] = run_experiments(model, views, SGD(model.parameters(), lr=0.1), 60, apart)
    assert (found.rule, found.severity) == ("cannot_learn", "note")


def test_a_loss_that_is_not_finite_is_not_tried():
    model = net()
    model[0].weight.data.fill_(torch.nan)
    setting = Setting(model, [SGD(model.parameters(), lr=1)], step_of(model))
    assert experiment(setting, regression(), 60).tried == ("Nothing was tried: the loss is nan.",)


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
    optimizer, batches = make(model.parameters()), regression(8, 8, 8, 40)

    def closure():
        optimizer.zero_grad()
        loss = step_of(model)(batches[0])
        loss.backward()
        return loss

    optimizer.step(closure)
    before, given, memory = all_of(model, optimizer), copy.deepcopy(batches), [p.data_ptr() for p in model.parameters()]
    gradients = [p.grad for p in model.parameters()]
    run_experiments(model, batches, optimizer, 60, step_of(model))
    assert is_same(before, all_of(model, optimizer))
    assert is_same(given, batches)
    assert memory == [p.data_ptr() for p in model.parameters()]
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))


def test_everything_is_put_back_after_an_error():
    model = net()
    optimizer, calls = SGD(model.parameters(), lr=0.1), []
    before = all_of(model, optimizer)

    def fails(batch):
        calls.append(1)
        if len(calls) > 20:
            raise ZeroDivisionError
        return step_of(model)(batch)

    with pytest.raises(ZeroDivisionError):
        run_experiments(model, regression(), optimizer, 60, fails)
    assert is_same(before, all_of(model, optimizer))


def test_a_step_that_changes_its_batch_gets_it_as_it_was_each_time():
    seen = []
    model = net()

    def changes(batch):
        seen.append(batch[0].sum().item())
        batch[0].mul_(2)
        return step_of(model)(batch)

    run_experiments(model, regression(), SGD(model.parameters(), lr=0.1), 60, changes)
    assert len(set(seen)) == 1


def test_hooks_of_the_optimizer_do_not_run():
    model, ran = net(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *args: ran.append(1))
    run_experiments(model, regression(), optimizer, 60, step_of(model))
    assert ran == []


def test_the_budget_is_kept():
    model = net()

    def slow(batch):
        time.sleep(0.02)
        return step_of(model)(batch)

    began = time.perf_counter()
    run_experiments(model, regression(*[32] * 8), SGD(model.parameters(), lr=0.1), 0.5, slow)
    assert time.perf_counter() - began < 1


def test_a_step_longer_than_the_budget_finds_nothing():
    model = net()
    assert run_experiments(model, regression(), SGD(model.parameters(), lr=100), 1e-9, step_of(model)) == []


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
    assert [found.rule for found in report.findings] == ["learning_rate"]
    page = str(report)
    assert page.startswith(
        "Checkup: 1 alarm\n\nALARM learning_rate\n  tried on a copy: at a rate of 0.1 the loss falls"
    )
    assert "-> set lr=0.1" in page
    assert "lr 1e+02 (yours): the loss " in page


def test_checkup_includes_what_audit_finds():
    model = nn.Sequential(net(3), nn.Softmax(1))
    report = checkup(model, classes(1), step_of(model, cross_entropy), SGD(model.parameters(), lr=0.1))
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


class Remembers(Dataset):
    def __init__(self):
        self.read, self.noise = [], torch.Generator().manual_seed(0)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.read.append(index)
        return torch.randn(3, generator=self.noise) + index


def test_a_loader_is_as_it_was_after_it_has_been_read():
    data, generator = Remembers(), torch.Generator().manual_seed(3)
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    before = data.noise.get_state(), generator.get_state(), torch.get_rng_state()
    assert [batch.shape for batch in read_apart(loader, 3)] == [(4, 3)] * 3
    assert is_same(before, (data.noise.get_state(), generator.get_state(), torch.get_rng_state()))
    assert data.read == []


def test_a_stream_is_not_read_twice():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from range(3)

    with pytest.raises(CannotRunAgainError):
        read_apart(DataLoader(Stream()), 1)


def test_a_loader_without_a_batch_size_is_not_read_twice():
    with pytest.raises(CannotRunAgainError, match="with a batch size"):
        read_apart(DataLoader(TensorDataset(torch.arange(3)), batch_size=None), 2)


def test_a_loss_that_becomes_negative_gives_no_rule_of_rates():
    model = net()
    step = lambda batch: model(batch[0]).mean() + 5  # noqa: E731
    assert run_experiments(model, regression(), SGD(model.parameters(), lr=1.0), 60, step) == []


def test_an_average_of_weights_that_the_step_makes_is_put_back():
    class Averages(LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.average = net(), net().requires_grad_(False)

        def training_step(self, batch):
            with torch.no_grad():
                for mine, other in zip(self.average.parameters(), self.net.parameters(), strict=True):
                    mine.mul_(0.9).add_(0.1 * other + 1)
            return mse_loss(self.net(batch[0]), self.average(batch[0]))

        def configure_optimizers(self):
            return SGD(self.net.parameters(), lr=0.1)

    model = Averages()
    before = copy.deepcopy(model.state_dict())
    checkup(model, regression())
    assert is_same(before, model.state_dict())


def test_a_dict_that_makes_what_it_is_asked_for_is_not_asked():
    class Makes(dict):
        def __getitem__(self, name):
            raise ZeroDivisionError

    model = net()
    model.table = Makes(a=1)
    assert tried(model, regression(), Adam(model.parameters(), lr=0.01)) == {}


def test_the_page_prints_what_its_document_shows(capsys):
    page = (Path(__file__).parents[2] / "docs" / "checkup.md").read_text()
    shown = page.partition("```text\n")[2].partition("...")[0]
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "checkup(line" in code]
    exec(example, {})
    assert capsys.readouterr().out.startswith(shown)


def test_of_a_loss_that_can_be_negative_the_lines_say_from_where_to_where_it_goes_and_judge_no_rate():
    model = net()
    [(x, _)] = regression()
    other, losses = copy.deepcopy(model), []
    sgd = SGD(other.parameters(), lr=0.01)
    for _ in range(31):
        sgd.zero_grad()
        loss = other(x).mean()
        losses.append(loss.item())
        loss.backward()
        sgd.step()
    setting = Setting(model, [SGD(model.parameters(), lr=0.01)], lambda batch: model(batch).mean())
    found = experiment(setting, [x], 60)
    assert (
        f"lr 0.01 (yours): the loss goes from {losses[0]:.3g} to {sum(losses[-5:]) / 5:.3g} within 30 steps"
        in found.tried[4]
    )
    assert "The loss can be negative, so these lines do not tell which rate is better." in found.tried
    assert found.findings == ()


def test_a_step_that_computes_derivatives_is_tried_too():
    model = net()

    def step(batch):
        x = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return mse_loss(slope.sum(1, keepdim=True), batch[1])

    found = experiment(Setting(model, [Adam(model.parameters(), lr=0.01)], step), regression(), 60)
    assert found.findings == ()
    assert any("lr 0.01 (yours): the loss falls by" in line for line in found.tried)


def test_a_model_that_holds_a_sparse_tensor_is_tried():
    model = net()
    model.register_buffer("links", torch.eye(32).to_sparse())
    step = lambda batch: mse_loss(model.links @ model(batch[0]), batch[1])  # noqa: E731
    found = experiment(Setting(model, [Adam(model.parameters(), lr=0.01)], step), regression(), 60)
    assert any("lr 0.01 (yours): the loss falls by" in line for line in found.tried)


def test_nothing_is_tried_if_gradients_and_the_optimizers_state_do_not_fit_beside_the_weights(monkeypatch):
    model = net()
    model[0].requires_grad_(False)
    size = sum(p.nbytes for p in model[0].parameters()) + 4 * sum(p.nbytes for p in model[2].parameters())
    said = []
    for limit in (size, size - 1):
        monkeypatch.setattr(attempt, "MAX_CPU_WEIGHT_BYTES", limit)
        found = experiment(Setting(model, [Adam(model.parameters())], step_of(model)), regression(), 1)
        said.append("too large to copy" in found.tried[0])
    assert said == [False, True]
