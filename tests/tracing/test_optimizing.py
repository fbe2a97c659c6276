"""What is said of the optimizers of a fit before its first step."""

import copy

import pytest
import torch
from recorded import numbers
from torch import nn
from toys import Toy, batches, fit

from hookboard import HealthMonitor

pytestmark = pytest.mark.trains


class Model(Toy):
    def __init__(self, optimized=None):
        super().__init__(None)
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        self.head = nn.Linear(4, 1)
        self.optimized = optimized or (lambda model: model.parameters())

    def training_step(self, batch):
        return self.head(self.body(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.optimized(self), lr=0.01)


def said(model, count=10, **options):
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, batches(*[8] * count), monitor, **options)
    return [verdict for verdict in monitor.verdicts if verdict.rule == "not_in_optimizer"]


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


def test_that_no_weight_moves_follows_from_an_optimizer_of_another_model():
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Model(lambda model: copy.deepcopy(model.body).parameters()), batches(*[8] * 10), monitor)
    [still] = [verdict for verdict in monitor.verdicts if verdict.rule == "not_updated"]
    [cause] = [verdict for verdict in monitor.verdicts if verdict.rule == "not_in_optimizer"]
    assert (still.follows_from[0], cause.severity) == ("not_in_optimizer", "alarm")
    assert "hold 6 tensors" in cause.evidence


@pytest.mark.parametrize("is_held", [False, True])
def test_what_is_trainable_only_later_must_be_in_an_optimizer(is_held):
    class Unfrozen(Model):
        def on_train_batch_start(self, batch, batch_idx):
            self.body.requires_grad_(batch_idx > 3)

    model = Unfrozen(lambda model: model.parameters() if is_held else model.head.parameters())
    model.body.requires_grad_(False)
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, batches(*[8] * 10), monitor)
    found = [verdict for verdict in monitor.verdicts if verdict.rule == "not_updated"]
    assert [(verdict.severity, verdict.since) for verdict in found] == ([] if is_held else [("alarm", 4)])
    for verdict in found:
        (others,) = numbers("were frozen at first; the same is true of # other layers", verdict.evidence)
        assert others + 1 == len(model.body)


def test_what_was_never_frozen_is_not_said_to_have_been():
    class Mixed(Model):
        def on_train_batch_start(self, batch, batch_idx):
            self.body[0].requires_grad_(batch_idx > 3)

    model = Mixed(lambda model: [*model.body[1].parameters(), *model.head.parameters()])
    model.body[0].requires_grad_(False)
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, batches(*[8] * 12), monitor)
    said = {one.module: "were frozen at first" in one.evidence for one in monitor.verdicts if one.rule == "not_updated"}
    assert said == {"body.0": True, "body.2": False}


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
