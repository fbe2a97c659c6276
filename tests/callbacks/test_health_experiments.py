"""`HealthMonitor(experiments=True)`: what it tries, what it says of it, and the same training with it as without."""

import copy
import logging
import re

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric
from toys import scalars, trainer

from hookboard import HealthMonitor, HookboardWarning, Rule, Symptom
from hookboard.callbacks import trials
from hookboard.loops.trainer import TrainerLoop

X = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)

pytestmark = pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")


def adam(parameters, lr):
    return torch.optim.Adam(parameters, lr=lr)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def sgd(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr)


class Regression(LightningModule):
    def __init__(self, make=sgd, lr=1e-4, manual=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.make, self.lr, self.automatic_optimization = make, lr, not manual
        self.mean, self.seen = MeanMetric(), []

    def training_step(self, batch, batch_idx):
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.mean(loss)
        self.log("loss", loss)
        self.log("mean", self.mean)
        self.seen.append(loss.item())
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self):
        return self.make(self.parameters(), self.lr)


class Plain(Regression):
    """Without noise."""

    def __init__(self, **options):
        super().__init__(**options)
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        self.seen.append(mse_loss(self.net(batch[0]), batch[1]))
        return self.seen[-1]


def pairs(x=X, y=Y, **options):
    return DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, **options)


def fitted(model, monitor, folder=None, loader=None, **options):
    torch.manual_seed(1)
    callbacks = [] if monitor is None else [monitor]
    options = {"log_every_n_steps": 4, "max_epochs": 2, **options}
    run = trainer(folder, *callbacks, **options)
    run.fit(model, pairs() if loader is None else loader)
    return run


@pytest.fixture
def soon(monkeypatch):
    """Experiments are asked for after the second look; returns how often they were."""
    asked = []

    def question(judge, *, is_over):
        if judge.run.seen == 2 and not is_over:
            asked.append(judge.run.now.step)
            return trials.Question(0, is_stuck=True)
        return None

    monkeypatch.setattr(trials, "question_of", question)
    return asked


RUNS = {
    "Adam": (lambda: Regression(adam), {}),
    "SGD with momentum": (lambda: Regression(momentum), {}),
    "bf16": (lambda: Regression(adam), {"precision": "bf16-mixed"}),
    "manual optimization": (lambda: Regression(sgd, manual=True), {}),
    "accumulation": (lambda: Regression(adam), {"accumulate_grad_batches": 3}),
    "clipping": (lambda: Regression(sgd, lr=0.1), {"gradient_clip_val": 0.1}),
}


@pytest.mark.parametrize(("make", "options"), RUNS.values(), ids=RUNS)
def test_the_training_is_the_same_bit_for_bit(tmp_path, soon, make, options):
    runs = {}
    for name, experiments in {"default": False, "tried": 1.0}.items():
        model, loader = make(), pairs(generator=torch.Generator().manual_seed(5))
        run = fitted(model, HealthMonitor(experiments=experiments), tmp_path / name, loader, **options)
        state = {**model.state_dict(), **{f"{n}.grad": p.grad for n, p in model.named_parameters()}}
        held = copy.deepcopy(run.optimizers[0].state_dict()["state"])
        state |= {f"{n}.{key}": value for n, one in held.items() for key, value in one.items()}
        ours = ("hookboard/", "health/")
        logged = {tag: values for tag, values in scalars(tmp_path / name).items() if not tag.startswith(ours)}
        random = [torch.get_rng_state(), loader.generator.get_state()]
        runs[name] = state, model.seen, logged, random, run.callback_metrics
    default, with_trial = runs["default"], runs["tried"]
    assert len(soon) == 1
    assert [name for name in default[0] if not default[0][name].equal(with_trial[0][name])] == []
    assert default[1:3] == with_trial[1:3]
    assert all(one.equal(other) for one, other in zip(default[3], with_trial[3], strict=True))
    assert default[4] == with_trial[4]


def test_the_looks_are_the_same_with_and_without(tmp_path, soon):
    seen = {}
    for experiments in (False, 1.0):
        folder = tmp_path / str(experiments)
        fitted(Regression(adam), HealthMonitor(experiments=experiments), folder)
        seen[experiments] = scalars(folder)
    assert seen[False] == seen[1.0]


def alarms(monitor):
    return [(one.rule, one.advice) for one in monitor.verdicts if one.severity == "alarm"]


def test_a_loss_that_does_not_fall_gets_the_rate_at_which_it_does():
    monitor = HealthMonitor(experiments=60)
    fitted(Plain(lr=1e-4), monitor, max_epochs=3)
    [(rule, advice)] = alarms(monitor)
    assert rule == "learning_rate"
    found, proven = Plain(lr=1e-4), Plain(lr=float(advice.removeprefix("set lr=")))
    fitted(found, None, max_epochs=3)
    fitted(proven, None, max_epochs=3)
    assert proven.seen[-1] < 0.2 * found.seen[-1]


def test_an_alarm_that_the_rate_explains_follows_from_it():
    monitor = HealthMonitor(experiments=60)
    fitted(Plain(lr=0.2, make=momentum), monitor, max_epochs=6)
    assert [rule for rule, _ in alarms(monitor)] == ["learning_rate"]


def test_an_alarm_whose_cause_is_not_found_says_what_was_tried(soon):
    def judge(run):
        yield Symptom("", "the rate is to blame", "lower it", "alarm", is_hard=True)

    monitor = HealthMonitor(experiments=60, rules=[Rule("update_too_large", judge, at_once=True), "learning_rate"])
    fitted(Plain(lr=0.01), monitor)
    [alarm] = [one for one in monitor.verdicts if one.severity == "alarm"]
    said = r"\(tried on a copy at step 4: the loss on 2 batches in \d+ steps: at a rate of 0\.001 it falls"
    assert re.search(said, alarm.evidence)


def test_targets_that_are_all_the_same_class_are_named_though_the_loss_falls():
    class Classes(Plain):
        def training_step(self, batch, batch_idx):
            self.seen.append(cross_entropy(self.net(batch[0]).expand(-1, 3) * torch.arange(3), batch[1]))
            return self.seen[-1]

    monitor = HealthMonitor(experiments=60)
    fitted(Classes(lr=0.1), monitor, loader=pairs(X, torch.full((256,), 2)), max_epochs=3)
    assert "labels" in [rule for rule, _ in alarms(monitor)]


def test_where_a_large_rate_has_spoiled_the_weights_the_first_ones_tell():
    model = Plain(lr=3.0)
    model.net.append(nn.ReLU())
    model.net[2].bias.data.fill_(3)
    start = [(p, p.detach().clone()) for p in model.parameters()]
    run = fitted(model, None, loader=pairs(X, Y.abs()), max_epochs=1)
    model.net[2].bias.data.fill_(-1e6)
    found = trials.run_experiments(TrainerLoop(run), [], 60, trials.Question(0, is_stuck=True), start)
    assert [one.rule for one in found.findings] == ["learning_rate"]
    assert "with the first weights" in found.findings[0].evidence


def test_rules_can_be_left_out():
    monitor = HealthMonitor(experiments=60, rules=["not_learning", "update_too_small"])
    fitted(Plain(lr=1e-4), monitor, max_epochs=3)
    assert "learning_rate" not in [one.rule for one in monitor.verdicts]


@pytest.mark.parametrize(
    ("make", "loader", "why"),
    [
        (lambda: Regression(manual=True), pairs, "the optimization is manual"),
        (lambda: Regression(), lambda: DataLoader(Stream(), batch_size=16), ""),
    ],
)
def test_what_cannot_be_tried_is_said_in_one_line(soon, caplog, make, loader, why):
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        fitted(make(), HealthMonitor(experiments=60), loader=loader())
    said = [record.getMessage() for record in caplog.records if "s of at most" in record.getMessage()]
    assert len(said) == 1
    assert f"Nothing was tried: {why}" in said[0] if why else "s of at most 60: the loss on one batch" in said[0]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def test_an_error_in_an_experiment_is_one_warning_and_the_run_goes_on(soon, monkeypatch):
    monkeypatch.setattr("hookboard.callbacks.trials.experiment", lambda *given: 1 / 0)
    monitor, model = HealthMonitor(experiments=1), Regression()
    with pytest.warns(HookboardWarning) as said:
        run = fitted(model, monitor)
    [ours] = [str(one.message) for one in said if one.category is HookboardWarning]
    assert "what HealthMonitor tries on a copy is switched off" in ours
    assert run.global_step == 32
    assert monitor.readings


def test_several_ranks_try_nothing(monkeypatch):
    model = Regression()
    run = fitted(model, None, max_epochs=1)
    monkeypatch.setattr(type(run), "world_size", property(lambda self: 2))
    found = trials.run_experiments(TrainerLoop(run), [], 1, trials.Question(0, is_stuck=True))
    assert found.tried == ["Nothing was tried: there are 2 ranks."]


def test_the_time_is_not_beyond_the_budget(tmp_path, soon):
    import time

    began = time.perf_counter()
    fitted(Regression(), HealthMonitor(experiments=2), tmp_path)
    assert time.perf_counter() - began < 5


def test_a_resumed_fit_does_not_try_again(tmp_path, soon):
    monitor = HealthMonitor(experiments=1)
    fitted(Regression(), monitor, max_epochs=1).save_checkpoint(tmp_path / "one.ckpt")
    again = HealthMonitor(experiments=1)
    run = trainer(None, again, log_every_n_steps=4, max_epochs=2)
    run.fit(Regression(), pairs(), ckpt_path=tmp_path / "one.ckpt")
    assert len(soon) == 1
