"""Planted NaN and Inf: the black box names step, batch, operation, layer and line, and runs no code of the user."""

import inspect
import math

import pytest
import torch
from boxes import Box, Keeps, assert_undisturbed, events_of, only_event
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.checkpoint import checkpoint
from toys import Toy, batches, fit, mlp

from hookboard import HealthMonitor
from hookboard.tracing.black_box import BlackBox


def marked_at(index, count=4):
    data = batches(*[8] * count)
    data[index] = data[index] + 100
    return data


class Calls(nn.Module):
    """Calls a function with its first layer's output, and whether the batch is the marked one."""

    def __init__(self, function):
        torch.manual_seed(0)
        super().__init__()
        self.function, self.first, self.last = function, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.function(self.first(x).tanh(), bool((x > 50).any())))


# The operation, its layer and line.


def masked_softmax(x, bad):
    mask = torch.zeros(8, 4, dtype=torch.bool)
    mask[:, 0], mask[:3] = True, bad
    return x.masked_fill(mask, -math.inf).softmax(-1)


def divided(x, bad):
    return x / torch.tensor([1.0, 0.0, 2.0, 0.0] if bad else [1.0] * 4)


def logarithm(x, bad):
    return torch.log(torch.where(torch.arange(4) < 2, x.abs() + 1, torch.tensor(0.0 if bad else 1.0)))


def in_place(x, bad):
    return (x * 1).div_(torch.tensor(0.0 if bad else 1.0))


def root_of_zero(x, bad):
    return torch.sqrt(x * (0 if bad else 1)) + x if bad else torch.sqrt(x * 0 + 1) + x


def healed_before(x, bad):
    """What was made and replaced before is not what spoiled the loss."""
    return torch.nan_to_num(x.detach() / torch.zeros(4)) * 0 + logarithm(x, bad)


def of_logits(x, bad):
    return torch.log(x - (2.0 if bad else -2.0))


def of_more(x, bad):
    return torch.log1p(torch.where(torch.arange(4) < 2, x.abs(), torch.tensor(-1.0 if bad else 0.0)))


CASES = [
    (masked_softmax, "softmax", ": 3 rows are fully masked", "Let each row attend"),
    (divided, "div", ": 2 of its divisors are 0", "Add an epsilon"),
    (in_place, "div", ": 1 of its divisors is 0", "Add an epsilon"),
    (logarithm, "log", ": 16 of its 32 inputs are 0 or less", "Clamp its input"),
    (of_logits, "log", ": 32 of its 32 inputs are 0 or less", "Clamp its input above 0. If it is given logits"),
    (of_more, "log1p", ": 16 of its 32 inputs are -1 or less", "Clamp its input above -1."),
    (healed_before, "log", "", "Clamp its input"),
    (lambda x, bad: torch.sqrt(x.abs() - (2.0 if bad else -1.0)), "sqrt", "", "Clamp its input"),
    (lambda x, bad: torch.exp(x * 0 + (200.0 if bad else 0.0)), "exp", "", "Subtract the maximum first"),
    (lambda x, bad: x * 1e38 * 1e3 if bad else x, "mul", "", "Look there for a division by 0"),
]


@pytest.mark.parametrize(("function", "name", "why", "advice"), CASES)
def test_the_operation_is_named_with_its_cause(function, name, why, advice):
    event = only_event(Toy(Calls(function)), marked_at(2))
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.first", "forward", 2, 2)
    assert f"came from {name}() after 'net.first'" in event.evidence
    assert why in event.evidence
    assert event.advice.startswith(advice)


def cast_by_hand(x, bad):
    return (x * (1e6 if bad else 1.0)).half().float()


def told(folder, model, data):
    monitor = HealthMonitor(every_n_steps=1)
    fit(folder, model, data, monitor)
    [found] = [verdict for verdict in monitor.verdicts if verdict.rule == "nonfinite"]
    return found


def last_line(function):
    lines, start = inspect.getsourcelines(function)
    return f"test_black_box.py:{start + len(lines) - 1}"


@pytest.mark.parametrize(("function", "name"), [(in_place, "div()"), (cast_by_hand, "mul() or to()")])
def test_a_step_that_computes_what_the_first_one_did_tells_the_line_too(tmp_path, function, name):
    found = told(tmp_path, Toy(Calls(function)), marked_at(2))
    assert (found.module, found.since) == ("net", 2)
    assert f"came from {name} at {last_line(function)} in 'net'" in found.evidence


def test_a_division_by_a_tiny_number_is_not_called_one_by_0():
    event = only_event(Toy(Calls(lambda x, bad: x / (1e-39 if bad else 1))), marked_at(2))
    assert "came from div()" in event.evidence
    assert "divisors" not in event.evidence


class Divides(nn.Module):
    def forward(self, x):
        return x / 0 if bool((x > 50).any()) else x


def test_what_code_without_gradients_has_made_is_named_by_what_took_it():
    event = only_event(Toy(nn.Sequential(Divides(), nn.Linear(4, 3))), marked_at(2))
    assert (event.module, event.during, event.step) == ("net.1", "forward", 2)
    assert "value was linear() in 'net.1' (32 of 32 values are Inf); the value was produced earlier" in event.evidence


def test_masks_of_minus_infinity_are_no_fault():
    class Masked(Keeps):
        def training_step(self, batch):
            mask = torch.tensor([0.0, 0.0, -math.inf, -math.inf])
            return torch.log(-(self.net(batch) + mask).softmax(1).square().mean())

    assert "came from log()" in only_event(Masked(nn.Sequential(nn.Linear(4, 4))), batches(8)).evidence


def test_a_loss_that_has_grown_is_no_fault_of_the_code():
    class Grows(Toy):
        def on_before_optimizer_step(self, optimizer):
            optimizer.param_groups[0]["lr"] = 1e5

    (event, *_) = events_of(Grows(mlp()), batches(*[8] * 12))
    assert event.during == "forward"
    assert "lower the learning rate" in event.advice


# The batch.


@pytest.mark.parametrize(
    ("rows", "value", "said"),
    [
        (slice(2, 3), math.nan, "4 of 32 values are NaN (row 2);"),
        ([1, 2, 3, 4, 5, 7], -math.inf, "24 of 32 values are Inf (rows 1, 2, 3, 4, 5 and 1 more);"),
    ],
)
def test_the_spoiled_rows_of_a_batch_are_named(rows, value, said):
    data = batches(*[8] * 6)
    data[3][rows] = value
    event = only_event(Toy(mlp()), data)
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.0", "batch", 3, 3)
    assert f"In batch 3 (step 3), {said}" in event.evidence


def test_a_spoiled_label_that_no_module_takes():
    class Regression(Keeps):
        def training_step(self, batch):
            return (self.net(batch[0]) - batch[1]).square().mean()

    data = [(x, torch.ones(8, 3)) for x in batches(8, 8, 8)]
    data[1][1][0] = math.nan
    event = only_event(Regression(mlp()), data)
    assert (event.module, event.during, event.step) == ("", "batch", 1)
    assert "(row 0 of tensor 1)" in event.evidence


@pytest.mark.parametrize("is_masked", [True, False])
def test_labels_that_are_missing_in_all_batches_are_blamed_only_if_the_loss_takes_them(is_masked):
    class Likelihood(Keeps):
        def training_step(self, batch):
            x, wanted = batch
            there = ~wanted.isnan() if is_masked else slice(None)
            shares = self.net(x).softmax(1) * (0 if is_masked and x.max() > 50 else 1)
            return -(shares.log()[there] * wanted[there]).mean()

    data = [(x, torch.ones(8, 3)) for x in marked_at(2)]
    for _, wanted in data:
        wanted[0] = math.nan
    event = only_event(Likelihood(mlp()), data)
    assert (event.during, event.step) == (("forward", 2) if is_masked else ("batch", 0))
    assert ("log()" in event.evidence) is is_masked


# The weights.


def test_weights_spoiled_by_the_optimizer_belong_to_the_step_before():
    class Jumps(Toy):
        def on_before_optimizer_step(self, optimizer):
            for group in optimizer.param_groups:
                group["lr"] = 3e38 if self.trainer.global_step == 3 else 1e-6

    event = only_event(Jumps(mlp(), lambda y: 1e4 * y.square().mean()), batches(*[8] * 6))
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.0", "optimizer", 3, 3)
    assert "the loss of that step was finite" in event.evidence


class GoesBack(Toy):
    """Goes back from the loss of its third batch itself."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss, optimizer = self.net(batch).square().mean(), self.optimizers()
        optimizer.zero_grad()
        if batch_idx == 2:
            optimizer.param_groups[0]["lr"] = self.rate
            (1e4 * loss).backward()
        else:
            self.manual_backward(loss)
        optimizer.step()


@pytest.mark.parametrize(
    ("function", "rate", "during"), [(root_of_zero, 0.01, "backward"), (lambda x, bad: x, 3e38, "optimizer")]
)
def test_gradients_and_weights_are_searched_where_the_user_goes_back_himself_and_nothing_is_said_of_the_loss(
    function, rate, during
):
    model = GoesBack(Calls(function))
    model.rate = rate
    event = only_event(model, marked_at(2))
    assert (event.during, event.step) == (during, 2)
    assert "loss of that step" not in event.evidence


def test_weights_spoiled_before_the_first_step():
    net = mlp()
    net[2].bias.data[1] = math.nan
    event = only_event(Toy(net), batches(8, 8))
    assert (event.module, event.during, event.step) == ("net.2", "start", 0)


# Gradients.


def test_a_gradient_that_is_not_finite_is_found_before_the_optimizer_steps():
    seen = []

    class Sees(Box):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            super().on_before_optimizer_step(trainer, pl_module, optimizer)
            seen.append(len(self.box.events))

    box = Sees()
    fit(None, Toy(Calls(root_of_zero)), marked_at(2), box)
    (event,) = box.box.events
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.first", "backward", 2, 2)
    assert seen == [0, 0, 1, 1]
    assert "'net.first.bias'" in event.evidence or "'net.first.weight'" in event.evidence


def test_operations_with_a_steep_derivative_are_named_behind_the_last_bad_gradient(tmp_path):
    found = told(tmp_path, Toy(Calls(root_of_zero)), marked_at(2))
    assert f"sqrt() at {last_line(root_of_zero)}" in found.evidence


def test_a_model_of_which_no_sentinel_has_a_gradient_is_watched():
    net = nn.Sequential(Divides(), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1500, bias=False))
    assert only_event(Toy(net), marked_at(3)).step == 3


@pytest.mark.parametrize(("dtype", "value"), [(torch.float16, 6e4), (torch.float32, 3e38), (torch.float64, 1e300)])
def test_finite_gradients_whose_sum_overflows_are_no_event(dtype, value):
    model = nn.Linear(4, 4, dtype=dtype)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    box = BlackBox(model)
    box.before_backward(torch.tensor(3.0 + 4.0j))  # a complex loss does not end the search
    box.after_backward()
    assert not box.is_off
    assert box.loss == 5.0
    assert box.events == []


# Whatever the training does.


class Manual(Keeps):
    """Two backward passes and two steps for each batch."""

    def __init__(self, net):
        super().__init__(net)
        self.automatic_optimization = False

    def training_step(self, batch):
        for factor in (1.0, 0.5):
            self.optimizers().zero_grad()
            loss = factor * self.net(batch).square().mean()
            self.losses.append(loss.detach())
            self.manual_backward(loss)
            self.optimizers().step()


class Checkpointed(Calls):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


FAULTS = {"forward": logarithm, "backward": root_of_zero}
KINDS = {
    "as usual": lambda function: Keeps(Calls(function)),
    "by hand": lambda function: Manual(Calls(function)),
    "behind a checkpoint": lambda function: Keeps(Checkpointed(function)),
}


@pytest.mark.parametrize("during", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_run_is_the_same_with_and_without(kind, during):
    box = assert_undisturbed(lambda: KINDS[kind](FAULTS[during]), marked_at(2))
    (event,) = box.events  # the weights are spoiled from then on: that is not searched
    assert (event.during, event.step) == (during, 2)


def test_accumulation_names_the_batch():
    event = events_of(Keeps(Calls(logarithm)), marked_at(2, 6), accumulate_grad_batches=2)[0]
    assert (event.step, event.batch_idx) == (1, 2)


def under_a_scaler(model, data, **options):
    """The events, and the scale that the scaler ends with."""
    scaler = torch.amp.GradScaler("cpu", **options)
    box = {"is_scaled": True}
    return events_of(model, data, box=box, plugins=MixedPrecision("16-mixed", "cpu", scaler=scaler)), scaler.get_scale()


def test_overflows_under_a_grad_scaler_are_no_event():
    model = Toy(mlp(), lambda y: 1e3 * y.float().square().mean())
    events, scale = under_a_scaler(model, batches(*[8] * 4), init_scale=2.0**127)
    assert events == []
    assert scale < 2.0**127


def test_an_infinite_loss_under_a_grad_scaler_is_a_fault_if_an_operation_has_made_it():
    events, _ = under_a_scaler(Toy(mlp(), lambda y: -(y.float() * 1e4).softmax(1).log().mean()), batches(8))
    assert "The loss of step 0, batch 0, is inf. The first non-finite value came from log()" in events[0].evidence


class Twins(Manual):
    """Two networks of one form, each with a loss of its own."""

    def __init__(self):
        nets = nn.ModuleList(Calls(logarithm) for _ in range(2))
        super().__init__(nets)

    def training_step(self, batch, batch_idx):
        for number, net in enumerate(self.net):
            self.manual_backward(net(batch + (100 if number == batch_idx == 1 else 0)).square().mean())


def test_of_two_networks_of_one_form_the_right_one_is_named(tmp_path):
    found = told(tmp_path, Twins(), batches(8, 8, 8))
    assert (found.module, found.since) == ("net.1", 1)
