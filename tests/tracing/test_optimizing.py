"""What is said of the optimizers and schedulers of a fit before its first step."""

import calendar
import copy
import functools
import math
import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from recorded import numbers
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from toys import batches, fit, trainer

from hookboard import HealthMonitor
from hookboard.tracing.scheduling import scheduled_rates

pytestmark = [
    pytest.mark.trains,
    pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step"),  # a SequentialLR of torch 2.6
]

OURS = {"not_in_optimizer", "schedule"}


class Model(LightningModule):
    def __init__(self, optimized=None, scheduled=None, interval="step"):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        self.head = nn.Linear(4, 1)
        self.optimized = optimized or (lambda model: model.parameters())
        self.scheduled, self.interval = scheduled, interval

    def training_step(self, batch):
        return self.head(self.body(batch)).square().mean()

    def validation_step(self, batch):
        pass

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.optimized(self), lr=0.01)
        if self.scheduled is None:
            return optimizer
        scheduler = self.scheduled(self, optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}


def said(model, count=10, **options):
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, batches(*[8] * count), monitor, **options)
    return [verdict for verdict in monitor.verdicts if verdict.rule in OURS]


def test_parameters_that_no_optimizer_holds_are_a_note_with_their_number():
    (found,) = said(Model(lambda model: model.head.parameters()))
    assert (found.severity, found.rule) == ("note", "not_in_optimizer")
    assert found.evidence.startswith("6 of 8 trainable parameters that get a gradient are not in any optimizer")
    assert "body.0.weight" in found.evidence


def frozen_body(model):
    """Return the parameters that were there before the adapter, as a list that is made too early would hold."""
    model.body.requires_grad_(False)
    return model.body.parameters()


def test_an_optimizer_without_any_parameter_that_is_trained_is_an_alarm_with_one_that_is():
    (found,) = said(Model(frozen_body))
    assert (found.severity, found.rule) == ("alarm", "not_in_optimizer")
    assert found.evidence == (
        "none of the 2 trainable parameters that get a gradient is in an optimizer; the optimizers hold 6 others, 6 of "
        "them frozen"
    )
    assert "head.weight" in found.advice


def test_an_optimizer_of_another_model_is_an_alarm():
    found = said(Model(lambda model: copy.deepcopy(model.body).parameters()))[0]
    assert (found.severity, found.rule) == ("alarm", "not_in_optimizer")
    assert "hold 6 tensors" in found.evidence


def test_that_no_weight_moves_follows_from_an_optimizer_without_them():
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Model(lambda model: copy.deepcopy(model.body).parameters()), batches(*[8] * 10), monitor)
    [still] = [verdict for verdict in monitor.verdicts if verdict.rule == "not_updated"]
    assert still.follows_from is not None
    assert still.follows_from[0] == "not_in_optimizer"


@pytest.mark.parametrize("is_held", [False, True])
def test_what_is_trainable_only_later_must_be_in_an_optimizer(is_held):
    class Unfrozen(Model):
        def on_train_batch_start(self, batch, batch_idx):
            self.body.requires_grad_(batch_idx > 3)

    model = Unfrozen(lambda model: model.parameters() if is_held else model.head.parameters())
    model.body.requires_grad_(False)
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, batches(*[8] * 10), monitor)
    found = [verdict for verdict in monitor.verdicts if verdict.rule == "not_in_optimizer"]
    assert len(found) == (0 if is_held else 1)
    for verdict in found:
        (count,) = numbers("no optimizer updates # parameters that were frozen at first and now get", verdict.evidence)
        assert (verdict.severity, verdict.since, count) == ("alarm", 4, len(list(model.body.parameters())))


class Hidden(Model):
    """Has a layer in a list, where `parameters()` does not find it."""

    def __init__(self, optimized=None):
        super().__init__(optimized)
        self.hidden = [nn.Linear(4, 32), nn.Linear(32, 4)]

    def training_step(self, batch):
        return self.head(self.hidden[1](self.hidden[0](self.body(batch)).relu())).square().mean()


def test_layers_in_a_list_are_an_alarm_with_their_parameters():
    model = Hidden()
    before = [layer.weight.clone() for layer in model.hidden]
    (found,) = said(model)
    assert all(torch.equal(layer.weight, old) for layer, old in zip(model.hidden, before, strict=True))  # the oracle
    assert (found.severity, found.rule) == ("alarm", "not_in_optimizer")
    line = Hidden.training_step.__code__.co_firstlineno + 1
    assert found.evidence == (
        "4 parameters get gradients but are registered neither in the model nor in an optimizer (hidden[0].weight, "
        "hidden[0].bias, hidden[1].weight and 1 more); 2 of them still have PyTorch's initialization (shape [32, 4], "
        f"[4, 32]); used at test_optimizing.py:{line}"
    )


def test_layers_in_a_list_that_are_too_small_to_look_like_anything_are_an_alarm_too():
    model = Hidden()
    model.hidden = [nn.Linear(4, 5), nn.Linear(5, 4)]
    (found,) = said(model)
    assert (found.severity, found.rule) == ("alarm", "not_in_optimizer")


def test_layers_in_a_list_are_fine_if_an_optimizer_has_them():
    def all_of(model):
        return [*model.parameters(), *(p for layer in model.hidden for p in layer.parameters())]

    assert said(Hidden(all_of)) == []


def test_a_trained_network_in_a_list_is_a_note():
    """As one whose features a loss compares."""
    model = Hidden()
    for layer in model.hidden:
        nn.init.normal_(layer.weight)
    (found,) = said(model)
    assert (found.severity, found.rule) == ("note", "not_in_optimizer")


def test_a_copy_that_the_step_trains_by_itself_is_a_note():
    class Meta(Model):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch):
            wide = [copy.deepcopy(nn.Linear(4, 32))]
            inner = torch.optim.SGD(wide[0].parameters(), lr=0.1)
            self.manual_backward(wide[0](self.body(batch)).square().mean())
            inner.step()
            self.optimizers().step()
            self.optimizers().zero_grad()

    (found,) = [one for one in said(Meta()) if "neither" in one.evidence]
    assert (found.severity, found.rule) == ("note", "not_in_optimizer")


class Reaching(Model):
    """Has a loss to which the function adds what it computes of the model, the batch and a copy in a list."""

    def __init__(self, more):
        super().__init__()
        self.more, self.body, self.head = more, nn.Sequential(nn.Linear(4, 32)), nn.Linear(32, 1)
        self.hidden = [copy.deepcopy(self.body)]

    def training_step(self, batch):
        return self.head(self.body(batch)).square().mean() + self.more(self, batch).square().mean()


def after_steps(weight):
    return nn.Parameter(weight.detach() + 0.1 * weight.detach().std() * torch.randn(weight.shape))


def at_a_perturbation(model, batch):
    return model.body(batch + nn.Parameter(torch.zeros(batch.shape)))


HEALTHY_OUTSIDE = {
    "a copy, as an average of the weights": lambda model, batch: model.hidden[0](batch),
    "a copy after some steps": lambda model, batch: batch @ after_steps(model.body[0].weight).T,
    "a perturbation that is learned in the step": at_a_perturbation,
}


@pytest.mark.parametrize("name", HEALTHY_OUTSIDE)
def test_copies_of_the_models_weights_and_what_a_step_makes_for_itself_are_fine(name):
    assert said(Reaching(HEALTHY_OUTSIDE[name])) == []


def test_a_layer_that_the_step_makes_is_an_alarm_that_says_so():
    (found,) = said(Reaching(lambda model, batch: nn.Linear(4, 32)(batch)))
    assert (found.severity, found.rule) == ("alarm", "not_in_optimizer")
    assert "nor in an optimizer (2 made by the step itself); 1 of them still has PyTorch's" in found.evidence
    assert found.advice.startswith("make layers in __init__")


def test_weights_in_float16_that_a_step_divides_by_0_are_advised_of_the_epsilon():
    class Half(Model):
        def training_step(self, batch):
            return super().training_step(batch) + 0 * self.head.weight.sum()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    model, monitor = Half().half(), HealthMonitor(every_n_steps=1)
    model.head = nn.Linear(4, 1, dtype=torch.float16)
    fit(None, model, [batch.half() for batch in batches(8, 8)], monitor)
    (found,) = [verdict for verdict in monitor.verdicts if verdict.rule == "nonfinite"]
    assert not all(parameter.isfinite().all() for parameter in model.parameters())  # the oracle
    assert "set eps=1e-4" in found.advice


def linear(steps):
    return lambda model, optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)


def test_a_rate_that_is_0_for_most_of_the_fit_is_an_alarm_with_the_share():
    found = next(verdict for verdict in said(Model(scheduled=linear(3)), 20) if verdict.rule == "schedule")
    assert found.severity == "alarm"
    zero = sum(1 - min(step, 3) / 3 == 0 for step in range(20)) / 20
    assert f"sets the learning rate to 0 in {zero:.0%} of the 20 steps" in found.evidence
    assert "the rate peaks at 0.01, and is 0 after 3 steps" in found.evidence


ALMOST_0 = 1e-9


def warm_up(steps):
    return lambda model, optimizer: lr_scheduler.LinearLR(optimizer, ALMOST_0, total_iters=steps)


@pytest.mark.parametrize(("steps", "severity"), [(31, "alarm"), (8, "note"), (3, None)])
def test_a_warm_up_that_counts_batches_and_is_stepped_once_an_epoch_is_found(steps, severity):
    found = [
        v for v in said(Model(scheduled=warm_up(steps), interval="epoch"), 10, max_epochs=4) if v.rule == "schedule"
    ]
    assert [verdict.severity for verdict in found] == ([] if severity is None else [severity])
    if severity is not None:
        told = numbers(
            "LinearLR is stepped once per epoch, and this fit has # epochs, so the rate never exceeds #; with a step "
            "after each of the # optimizer steps, the rate would reach # after #",
            found[0].evidence,
        )
        assert told == pytest.approx((4, 0.01 * 3 / steps, 40, 0.01, steps), rel=1e-2)
        assert "'interval': 'step'" in found[0].advice


def test_accumulated_batches_count_as_one_step_of_a_schedule():
    model = Model(scheduled=warm_up(10), interval="epoch")
    (found,) = (v for v in said(model, 10, max_epochs=4, accumulate_grad_batches=2) if v.rule == "schedule")
    assert numbers("a step after each of the # optimizer steps", found.evidence) == [20]


@pytest.mark.parametrize(("max_steps", "epochs", "reached"), [(25, 3, 0.01 * 2 / 21), (9, 1, 0.01 * ALMOST_0)])
def test_a_warm_up_is_found_too_where_the_number_of_steps_ends_the_fit(max_steps, epochs, reached):
    model = Model(scheduled=warm_up(21 if epochs > 1 else 5), interval="epoch")
    (found,) = (v for v in said(model, 10, max_epochs=-1, max_steps=max_steps) if v.rule == "schedule")
    said_epochs = f"this fit has # epoch{'s' * (epochs > 1)}, so the rate never exceeds #;"
    assert numbers(said_epochs, found.evidence) == pytest.approx([epochs, reached], rel=1e-2)
    assert found.severity == "alarm"


def test_a_schedule_by_epochs_is_not_judged_within_the_first_epoch():
    model = Model(scheduled=lambda model, optimizer: lr_scheduler.StepLR(optimizer, 1), interval="epoch")
    assert said(model, 10, max_epochs=-1, max_steps=9) == []


@pytest.mark.parametrize(("gamma", "is_for_epochs"), [(0.5, True), (0.001, False)])
def test_a_schedule_that_is_sound_once_in_an_epoch_is_advised_to_be_stepped_so(gamma, is_for_epochs):
    model = Model(scheduled=lambda model, optimizer: lr_scheduler.ExponentialLR(optimizer, gamma))
    found = next(verdict for verdict in said(model, 20, max_epochs=6) if verdict.rule == "schedule")
    advice = "interval='epoch' if the scheduler should step once in each of the 6 epochs"
    assert (advice in found.advice) is is_for_epochs
    assert "set the schedule's length to 120 steps" in found.advice


def _is_young(first, last, step):
    return step < last - first


RATES = {
    "a function": (lambda step: step < 3, False),
    "a part of a function": (functools.partial(_is_young, 0, 3), False),
    "a function in a library's wrapper": (torch.no_grad()(lambda step: step < 3), False),
    "a function in an object of a library": (np.vectorize(lambda step: step < 3).__call__, False),
    "a library's function": (calendar.isleap, True),
    "a part of a library's function": (functools.partial(calendar.isleap), True),
}


@pytest.mark.parametrize("rate", RATES)
def test_a_schedule_is_judged_if_it_calls_functions_of_libraries_alone(rate):
    function, is_judged = RATES[rate]
    model = Model(scheduled=lambda model, optimizer: lr_scheduler.LambdaLR(optimizer, function), interval="step")
    assert ("schedule" in {verdict.rule for verdict in said(model, 20)}) is is_judged


class StopsAtOnce(Callback):
    def on_train_batch_end(self, trainer, *args):
        trainer.should_stop = True


def test_nothing_is_said_of_a_schedule_where_nobody_says_how_long_the_fit_is():
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Model(scheduled=linear(3)), batches(8, 8), monitor, StopsAtOnce(), max_epochs=1000)
    assert "schedule" not in {verdict.rule for verdict in monitor.verdicts}


SOUND = {
    "a line to the end": linear(10),
    "a cosine": lambda model, optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "one cycle": lambda model, optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=11),
    "a warm-up": lambda model, optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.01, total_iters=5), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [5],
    ),
    "steps": lambda model, optimizer: lr_scheduler.MultiStepLR(optimizer, [4, 8]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOUND)
def test_the_rates_of_a_sound_schedule_are_those_that_it_gives_it_stays_as_it_is_and_nothing_is_said(name):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = SOUND[name](model, optimizer)
    before = copy.deepcopy(scheduler.state_dict()), copy.deepcopy(optimizer.param_groups)
    read = list(scheduled_rates(scheduler, 9, [model]))
    after = scheduler.state_dict(), optimizer.param_groups
    assert str(before) == str(after)
    made = []
    for _ in range(9):
        made.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert all(math.isclose(one, other) for one, other in zip(read, made, strict=True))
    assert said(Model(scheduled=SOUND[name])) == []


def test_of_a_fit_that_goes_on_no_schedule_is_judged(tmp_path, caplog):
    path = tmp_path / "half.ckpt"
    fit(None, Model(scheduled=linear(20)), batches(*[8] * 14)).save_checkpoint(path)
    run = trainer(None, monitor := HealthMonitor(every_n_steps=1), max_epochs=2)
    given = DataLoader(batches(*[8] * 14), batch_size=None)
    run.fit(Model(scheduled=linear(20)), given, given, ckpt_path=path)
    assert run.global_step == 28
    assert [verdict for verdict in monitor.verdicts if verdict.rule == "schedule"] == []
    assert "were not read" not in caplog.text


CALLS = []


def test_a_function_of_the_user_in_a_schedule_is_called_as_often_as_without_a_monitor():
    class Counts(Model):
        calls = 0

        def rate_at(self, step):
            self.calls += 1
            CALLS.append(step)
            return 0.99**self.calls + random.random() + float(torch.rand(()))

    def trained(*watching):
        random.seed(0)
        CALLS.clear()
        model = Counts(scheduled=lambda model, optimizer: lr_scheduler.LambdaLR(optimizer, model.rate_at))
        run = fit(None, model, batches(*[8] * 5), *watching)
        rates = run.lr_scheduler_configs[0].scheduler.get_last_lr()
        return rates, model.calls, list(CALLS), random.random(), float(torch.rand(()))

    assert trained(HealthMonitor()) == trained()


def test_a_step_that_was_put_in_place_of_a_library_s_is_never_called_for_a_look(monkeypatch):
    steps, real = [], lr_scheduler.ExponentialLR.step
    monkeypatch.setattr(
        lr_scheduler.ExponentialLR, "step", functools.wraps(real)(lambda *args: steps.append(real(*args)))
    )
    model = Model(scheduled=lambda model, optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9))
    fit(None, model, batches(*[8] * 3), HealthMonitor())
    assert len(steps) == 1 + 3  # torch calls it once when the schedule is made


class NotOfTorch:
    """As a scheduler of another library, such as timm."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, []

    def step(self, epoch=None):
        self.steps.append(epoch)

    def state_dict(self):
        return {}

    load_state_dict = state_dict

    def __deepcopy__(self, memo):
        return self


class StepsByItself(Model):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()


def test_a_scheduler_that_is_none_of_torch_s_is_never_stepped_for_a_look():
    model = Model(scheduled=lambda model, optimizer: NotOfTorch(optimizer))
    model.lr_scheduler_step = lambda scheduler, metric: scheduler.step()
    run = fit(None, model, batches(*[8] * 3), HealthMonitor())
    assert len(run.lr_scheduler_configs[0].scheduler.steps) == 3


@pytest.mark.parametrize("file", [__file__, "/venv/lib/python3.12/site-packages/models.py"])
def test_nothing_is_said_of_a_schedule_that_the_model_steps_by_itself(monkeypatch, file):
    code = StepsByItself.lr_scheduler_step.__code__.replace(co_filename=file)
    monkeypatch.setattr(StepsByItself.lr_scheduler_step, "__code__", code)
    assert not said(StepsByItself(scheduled=linear(3)), 20)


def test_nothing_is_said_of_a_schedule_under_manual_optimization():
    class Manual(Model):
        def __init__(self):
            super().__init__(scheduled=warm_up(16), interval="epoch")
            self.automatic_optimization = False

        def training_step(self, batch):
            self.optimizers().zero_grad()
            self.manual_backward(super().training_step(batch))
            self.optimizers().step()
            self.lr_schedulers().step()

    assert not said(Manual(), 5, max_epochs=4)
