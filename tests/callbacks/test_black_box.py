"""Planted NaN and Inf: the black box names the very step, module and batch, and changes nothing."""

import math
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from boxes import Box, Keeps, assert_undisturbed, events_of, only_event
from torch import nn
from toys import Toy, batches, fit, hooked, mlp

from hookboard.first_nan.black_box import ALWAYS_SAVED, BlackBox
from hookboard.replay import GENERATORS


def spoiled_at(index, value=math.nan, count=6):
    data = batches(*[8] * count)
    data[index][2, 1] = value
    return data


def marked_at(index, count=6):
    data = batches(*[8] * count)
    data[index] = data[index] + 100
    return data


class LogOfNegative(nn.Module):
    def forward(self, x):
        return torch.log(x - 200) if bool((x > 50).any()) else x


def test_a_module_that_gives_nan_is_named_with_step_and_batch():
    net = nn.Sequential(LogOfNegative(), nn.Linear(4, 3))
    event = only_event(Toy(net), marked_at(3))
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.0", "forward", 3, 3)
    assert "32 NaN in 32 values" in event.evidence
    assert "32 values up to 10" in event.went_in


class Overflows(nn.Module):
    def forward(self, x):
        return x * 1e38 if bool((x > 50).any()) else x


def test_inf_in_the_middle_of_a_model():
    net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Identity(), Overflows()), nn.Linear(4, 3))
    event = only_event(Toy(net), marked_at(2))
    assert (event.module, event.during, event.step) == ("net.1.1", "forward", 2)
    assert "Inf in 32 values" in event.evidence


class Between(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        if bool((x > 50).any()):
            y = y / 0
        return self.second(y)


def test_code_between_two_modules():
    event = only_event(Toy(nn.Sequential(nn.Identity(), Between())), marked_at(1))
    assert (event.module, event.during, event.step) == ("net.1", "forward", 1)
    assert "before 'net.1.second'" in event.evidence


@pytest.mark.parametrize("wrapped", [False, True], ids=["given to the first module", "handed on by containers"])
def test_code_in_training_step_before_the_model(wrapped):
    class Augments(Toy):
        def training_step(self, batch):
            return super().training_step(batch / 0 if bool((batch > 50).any()) else batch)

    net = nn.Sequential(nn.Sequential(nn.Linear(4, 3))) if wrapped else nn.Sequential(nn.Linear(4, 3))
    event = only_event(Augments(net), marked_at(2))
    assert (event.module, event.during, event.step) == ("", "forward", 2)
    assert event.evidence.startswith("Code outside of any module, in training_step, before 'net.0")
    assert "32 Inf in 32 values" in event.evidence
    assert "the input was finite (32 values up to 103)" in event.evidence


class Behind(Between):
    def forward(self, x):
        y = self.second(self.first(x))
        return torch.sqrt(-y.abs()) if bool((x > 50).any()) else y


def test_code_behind_the_last_module_of_a_container():
    event = only_event(Toy(nn.Sequential(Behind(), nn.Identity())), marked_at(1))
    assert (event.module, event.during) == ("net.0", "forward")
    assert "outside of the modules in it" in event.evidence


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_spoiled_batch(value):
    event = only_event(Toy(mlp()), spoiled_at(3, value))
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.0", "batch", 3, 3)
    assert ("1 NaN in 32 values" if math.isnan(value) else "1 Inf in 32 values") in event.evidence


def test_the_spoiled_rows_of_a_batch_are_named():
    assert "holds 1 NaN in 32 values in row 2;" in only_event(Toy(mlp()), spoiled_at(3)).evidence
    data = batches(8)
    data[0][[1, 2, 3, 4, 5, 7]] = math.inf
    assert "in rows 1, 2, 3, 4, 5 and 1 more;" in only_event(Toy(mlp()), data).evidence


def test_a_spoiled_label_that_no_module_takes():
    class Regression(Keeps):
        def training_step(self, batch):
            return (self.net(batch[0]) - batch[1]).square().mean()

    data = [(x, torch.ones(8, 3)) for x in batches(8, 8, 8)]
    data[1][1][0] = math.nan
    event = only_event(Regression(mlp()), data)
    assert (event.module, event.during, event.step) == ("", "batch", 1)
    assert "the loss takes it directly" in event.evidence
    assert "in row 0 of tensor 1" in event.evidence


def test_a_loss_computed_outside_of_any_module():
    def loss(y):
        return torch.log(-y.square().mean()) if y.detach().abs().mean() > 5 else y.square().mean()

    event = only_event(Toy(mlp(), loss), marked_at(2))
    assert (event.module, event.during, event.step) == ("", "forward", 2)
    assert "outside of any module, in training_step" in event.evidence


def test_weights_spoiled_by_the_optimizer_belong_to_the_step_before():
    class Jumps(Toy):
        def on_before_optimizer_step(self, optimizer):
            for group in optimizer.param_groups:
                group["lr"] = 3e38 if self.trainer.global_step == 3 else 1e-6

    event = only_event(Jumps(mlp(), lambda y: 1e4 * y.square().mean()), batches(*[8] * 6))
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.0", "optimizer", 3, 3)
    assert event.parameter == "net.0.weight"
    assert "the loss of that step was finite" in event.evidence


def test_nothing_is_said_of_a_loss_that_the_user_goes_back_from_himself():
    class Jumps(Toy):
        def __init__(self, net):
            super().__init__(net)
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            loss, optimizer = self.net(batch).square().mean(), self.optimizers()
            optimizer.zero_grad()
            if batch_idx == 3:
                optimizer.param_groups[0]["lr"] = 3e38
                (1e4 * loss).backward()
            else:
                self.manual_backward(loss)
            optimizer.step()

    event = only_event(Jumps(mlp()), batches(*[8] * 6))
    assert (event.during, event.step) == ("optimizer", 3)
    assert "loss of that step" not in event.evidence


def test_weights_spoiled_before_the_first_step():
    net = mlp()
    net[2].bias.data[1] = math.nan
    event = only_event(Toy(net), batches(8, 8))
    assert (event.module, event.during, event.parameter, event.step) == ("net.2", "start", "net.2.bias", 0)


def with_root(module):
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), module), nn.Linear(4, 3))


def at_step(index, fault):
    """Is healthy but for one step."""

    class Module(nn.Module):
        def forward(self, x):
            return fault(x) if self.step == index else x

    return Module()


class Steps(Keeps):
    """Tells its modules the batch."""

    def training_step(self, batch, batch_idx):
        for module in self.net.modules():
            module.step = batch_idx
        return super().training_step(batch)


def root_of_zero(x):
    return torch.sqrt(x * 0) + x


def test_a_gradient_that_is_not_finite_is_found_before_the_optimizer_steps():
    model = Steps(with_root(at_step(2, root_of_zero)))
    seen = []

    class Sees(Box):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            super().on_before_optimizer_step(trainer, pl_module, optimizer)
            seen.append(len(self.box.events))

    box = Sees()
    fit(None, model, batches(*[8] * 5), box)
    (event,) = box.box.events
    assert (event.module, event.during, event.step, event.batch_idx) == ("net.1.1", "backward", 2, 2)
    assert seen == [0, 0, 1, 1, 1]
    assert "what arrived at its output was finite" in event.evidence


class FunctionalRoot(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        return self.second(root_of_zero(y) if self.step == 1 else y)


def test_a_gradient_lost_in_code_between_modules():
    event = only_event(Steps(nn.Sequential(nn.Linear(4, 4), FunctionalRoot())), batches(8, 8, 8))
    assert (event.module, event.during, event.step) == ("net.1", "backward", 1)
    assert "after 'net.1.first'" in event.evidence


def test_a_gradient_lost_in_the_loss():
    event = only_event(Toy(mlp(), lambda y: (y * 0).norm(dim=1).pow(0.5).sum() + y.mean()), batches(8, 8))
    assert (event.module, event.during, event.step) == ("", "backward", 0)
    assert "training_step" in event.evidence


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.other = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.inner(x) + self.other(x)


def test_the_branch_beside_the_fault_is_not_blamed():
    net = nn.Sequential(nn.Linear(4, 4), Residual(at_step(1, root_of_zero)), Residual(nn.Tanh()))
    event = only_event(Steps(net), batches(8, 8, 8))
    assert (event.module, event.during) == ("net.1.inner", "backward")


class PoisonsItsWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        _, weight = ctx.saved_tensors
        return grad * weight, torch.full_like(weight, math.inf)


class Poisoned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return PoisonsItsWeight.apply(x, self.weight)


def test_a_gradient_of_a_parameter_alone():
    event = only_event(Toy(nn.Sequential(nn.Linear(4, 4), Poisoned(), nn.Linear(4, 2))), batches(8, 8))
    assert (event.module, event.during, event.step) == ("net.1", "backward", 0)


def test_masks_of_minus_infinity_are_no_fault():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = Scores()
            self.softmax = nn.Softmax(-1)
            self.out = nn.Linear(4, 4)

        def forward(self, x, mask):
            return self.out(self.softmax(self.scores(x, mask)))

    class Scores(nn.Module):
        def forward(self, x, mask):
            return x + mask

    class Masked(Keeps):
        def training_step(self, batch):
            mask = torch.full((4,), -math.inf)
            mask[:2] = 0
            y = self.net[0](batch, mask)
            return self.net[1](y).square().mean()

    net = nn.ModuleList([Attends(), LogOfNegative()])
    net[0].out.weight.data *= 0
    net[0].out.bias.data.fill_(100)
    event = only_event(Masked(net), batches(8))
    assert (event.module, event.during) == ("net.1", "forward")


def test_dropout_draws_the_numbers_of_the_real_step():
    torch.manual_seed(3)
    seen = []

    class Notes(nn.Module):
        def forward(self, x):
            seen.append(x.detach().clone())
            return torch.log(x - 1e3)

    fit(None, Toy(nn.Sequential(nn.Dropout(0.5), Notes(), nn.Linear(4, 1))), batches(16), Box())
    # The real step, the search for the module, and that for the call in it.
    assert len(seen) == 3
    assert all(one.equal(seen[0]) for one in seen[1:])


RUNS = {
    "forward": (lambda: nn.Sequential(nn.Dropout(0.3), nn.BatchNorm1d(4), at_step(2, torch.log), nn.Linear(4, 2)), 5),
    "backward": (lambda: nn.Sequential(nn.BatchNorm1d(4), with_root(at_step(2, root_of_zero)), nn.Dropout(0.3)), 5),
}


@pytest.mark.parametrize("during", RUNS)
def test_the_run_is_the_same_with_and_without(during):
    make, count = RUNS[during]
    box = assert_undisturbed(lambda: Steps(make()), batches(*[8] * count))
    assert box.events[0].during == during
    assert box.count == 3  # the weights are spoiled from then on


def test_the_run_with_a_spoiled_batch_is_the_same_with_and_without():
    box = assert_undisturbed(
        lambda: Steps(nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Linear(4, 2))), spoiled_at(2)
    )
    assert box.events[0].during == "batch"


def test_later_events_are_counted_and_not_searched():
    box = Box()
    fit(None, Toy(mlp()), spoiled_at(2, count=9), box)
    assert (len(box.box.events), box.box.count) == (1, 7)
    assert "6 later steps" in box.box.events[0].symptom(more=6).evidence


def test_nothing_is_left_behind():
    model = Toy(mlp())
    box = Box()
    fit(None, model, spoiled_at(1), box)
    assert hooked(model) == []
    assert box.box._batch is None
    assert "log" not in model.__dict__


def test_a_healthy_run_has_no_event():
    assert events_of(Toy(mlp()), batches(*[8] * 5)) == []


def test_a_loss_that_has_grown_is_no_fault_of_the_code():
    class Grows(Toy):
        def on_before_optimizer_step(self, optimizer):
            optimizer.param_groups[0]["lr"] = 1e5

    (event, *_) = events_of(Grows(mlp()), batches(*[8] * 12))
    assert event.during == "forward"
    assert "lower the learning rate" in event.advice


def test_a_batch_that_the_step_itself_spoils_is_said_to_be_changed():
    class Spoils(Toy):
        def training_step(self, batch):
            return super().training_step(batch.div_(0))

    event = only_event(Spoils(mlp()), batches(8, 8))
    assert event.during == "batch"
    assert "changes the batch in place" in event.evidence


def test_the_place_is_known_before_anomaly_detection_raises():
    box = Box()
    net = nn.Sequential(LogOfNegative(), nn.Linear(4, 3))
    with pytest.raises(RuntimeError), pytest.warns(UserWarning):  # noqa: PT030 - torch words them
        fit(None, Toy(net), marked_at(1), box, detect_anomaly=True)
    assert box.box.events[0].module == "net.0"


class DividesByDraw(Keeps):
    """Divides by 0 where it draws a large number."""

    draw: Callable[[], float]

    def training_step(self, batch):
        self.net[0].is_bad = self.draw() > 0.9
        return super().training_step(batch)


class Divides(nn.Module):
    is_bad = False

    def forward(self, x):
        return x / 0 if self.is_bad else x


@pytest.mark.parametrize("host", [np.random, random], ids=["numpy", "python"])
def test_a_nan_that_a_draw_on_the_host_decides_is_found_again(host):
    seed, first = next(found for found in map(partial(first_large, host), range(100)) if found[1] > 1)
    host.seed(seed)
    model = DividesByDraw(nn.Sequential(Divides(), nn.Linear(4, 3)))
    model.draw = host.random
    event = events_of(model, batches(*[8] * 20))[0]
    assert (event.module, event.step) == ("net.0", first)


def first_large(host, seed):
    """The first step at which the first of two draws is large, if that of the next one is not; else -1."""
    host.seed(seed)
    is_large = [host.random() > 0.9 for _ in range(40)][::2]
    first = is_large.index(True) if True in is_large else -1
    return seed, -1 if is_large[first + 1 :][:1] != [False] else first


class DrawsLater(Keeps):
    """Draws from NumPy and Python only after its first steps."""

    def training_step(self, batch):
        if len(self.losses) > 2:
            np.random.rand()
            random.random()
        loss = Toy.training_step(self, batch)
        self.losses.append(loss.detach().clone())
        return loss


def test_a_step_that_begins_to_draw_on_the_host_is_undisturbed():
    assert_undisturbed(lambda: DrawsLater(nn.Sequential(LogOfNegative(), nn.Linear(4, 3))), marked_at(4))


def test_a_nan_is_not_blamed_on_a_module_by_other_random_numbers():
    np.random.seed(7)
    net = nn.Sequential(nn.Linear(4, 4), Draws(), Draws(), Draws(), nn.Linear(4, 3))
    events = events_of(Toy(net), batches(*[8] * 30))
    assert events[0].step == min(part.bad_at for part in net[1:4] if part.bad_at is not None)
    assert not events[0].is_located
    assert "draws numbers from NumPy, which it did not do before" in events[0].evidence


class Draws(nn.Module):
    """From its fourth call on it divides by 0 where NumPy draws a large number."""

    def __init__(self):
        super().__init__()
        self.calls, self.bad_at = 0, None

    def forward(self, x):
        self.calls += 1
        if self.calls > 3 and np.random.rand() > 0.8:
            self.bad_at = self.calls - 1 if self.bad_at is None else self.bad_at
            return x / 0
        return x


def test_a_complex_loss_does_not_end_the_search():
    box = BlackBox(nn.Linear(2, 2), None)
    box.before_backward(torch.tensor(3.0 + 4.0j))
    assert not box.is_off
    assert box._loss == 5.0


@pytest.mark.parametrize(("dtype", "value"), [(torch.float16, 6e4), (torch.float32, 3e38), (torch.float64, 1e300)])
def test_finite_gradients_whose_sum_overflows_are_no_event(dtype, value):
    model = nn.Linear(4, 4, dtype=dtype)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    box = BlackBox(model, None)
    box.before_backward(torch.tensor(1.0))
    box.after_backward()
    assert not box.is_off
    assert (box.count, box.events) == (0, [])


class KeepsStates(Box):
    """Notes of which generators the states are kept in each batch."""

    def on_train_batch_start(self, *args):
        super().on_train_batch_start(*args)
        self.kept = [*getattr(self, "kept", []), sorted(self.box._random._states)]


ALL = sorted(GENERATORS.keys() - ({"CUDA"} if not torch.cuda.is_initialized() else set()))
KEPT = sorted(ALWAYS_SAVED & set(ALL))


def test_the_states_of_generators_that_are_slow_to_read_are_kept_where_the_step_draws_from_them():
    box = KeepsStates()
    fit(None, Toy(mlp()), batches(*[2] * 102), box)
    assert box.kept == [ALL, *[KEPT] * 99, ALL, KEPT]


def test_a_draw_behind_the_first_backward_pass_is_noticed():
    class DrawsLast(Toy):
        def on_after_backward(self):
            np.random.rand()

    box = KeepsStates()
    fit(None, DrawsLast(mlp()), batches(2, 2), box)
    assert box.kept == [ALL, sorted([*KEPT, "NumPy"])]


def test_a_step_that_draws_now_and_then_is_located_all_the_same():
    class NowAndThen(Toy):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch + torch.rand(()) if batch_idx % 5 == 3 else batch)

    event = only_event(NowAndThen(nn.Sequential(LogOfNegative(), nn.Linear(4, 3))), marked_at(8, 12))
    assert (event.step, event.module) == (8, "net.0")


def test_a_model_of_which_no_sentinel_has_a_gradient_is_watched():
    net = nn.Sequential(LogOfNegative(), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 1500, bias=False))
    assert only_event(Toy(net), marked_at(3)).step == 3


class RootOfSquares(nn.Module):
    """One token has an embedding of 0, where the derivative of the square root is infinite."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3)
        self.embedding.weight.data[3] = 0.0

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x) + x.square().sum(-1, keepdim=True).sqrt()


def test_a_sparse_gradient_that_alone_is_not_finite_is_found():
    event = only_event(Keeps(RootOfSquares()), [torch.tensor([1, 2]), torch.tensor([3, 1])])
    assert (event.step, event.during, event.is_located) == (1, "backward", True)
    assert "embedding" in event.evidence
