"""Gradients under a GradScaler."""

import contextlib
import math

import pytest
import torch
from callbacks.user_program import Does
from lightning.pytorch.plugins import MixedPrecision
from toys import EachStep, Toy, batches, fit, mlp

from hookboard import GradientLogger
from hookboard.measure.statistics import FORMULAS

# The first module's input is the data, which has no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:hookboard.*had nothing to measure")
ROLES = ("grad_output", "grad_input", "parameter_grad")


def gradients(folder, model, data, scaler=None, histogram=False, statistics=tuple(FORMULAS), **options):
    """The readings of every step, by site."""
    watched = GradientLogger(roles=ROLES, statistics=statistics, histogram=histogram)
    kept = EachStep(watched)
    if scaler is not None:
        options["plugins"] = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    fit(folder, model, data, watched, kept, **options)
    return [{reading.site: reading for reading in readings} for readings in kept.readings]


def changing_scaler():
    """Doubles its scale after every second step."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)


class Overflows(torch.nn.Module):
    """Its gradient is infinite in one step."""

    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        if self.training:
            self.step += 1
        return x * (math.inf if self.step == 2 else 1.0) if x.requires_grad else x


def test_a_step_that_overflowed_has_its_counts_and_no_number_that_looks_normal(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    model = Toy(torch.nn.Sequential(mlp(), Overflows(), torch.nn.Linear(3, 2)))
    steps = gradients(tmp_path, model, batches(4, 4, 4), scaler, histogram=True)
    assert [any(reading.overflowed for reading in step.values()) for step in steps] == [False, True, False]
    for reading in steps[1].values():
        for name, value in reading.statistics.items():
            assert name.endswith("_count") or math.isnan(value)
        assert reading.histogram is None
    assert any(reading.statistics["nonfinite_count"] for reading in steps[1].values())
    assert all(math.isfinite(reading.statistics["l2"]) for reading in steps[2].values())


def test_the_count_of_an_overflow_is_logged_where_it_was_not_asked_for(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    steps = gradients(tmp_path, Toy(torch.nn.Sequential(mlp(), Overflows())), batches(4, 4), scaler, statistics="std")
    names = [{name for reading in step.values() for name in reading.statistics} for step in steps]
    assert names == [{"std"}, {"std", "nonfinite_count"}]


class ScaledOnly(MixedPrecision):
    """Scales the loss and computes in float32, so that numbers can be compared to the last digits."""

    def __init__(self, scaler):
        super().__init__("16-mixed", "cpu", scaler=scaler)

    def forward_context(self):
        return contextlib.nullcontext()


def exact_gradients(folder, model, data, scaler=None, **options):
    plugins = {} if scaler is None else {"plugins": ScaledOnly(scaler)}
    return gradients(folder, model, data, **plugins, **options)


def assert_as_without_a_scaler(folder, make_model, data, scaler=None, **options):
    """The readings of a run under a scaler, which are those of one without."""
    found = exact_gradients(folder, make_model(), data, scaler or changing_scaler(), **options)
    expected = exact_gradients(folder, make_model(), data, **options)
    assert len(found) == len(expected) > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for site in theirs:
            assert not mine[site].overflowed
            wanted = pytest.approx(theirs[site].statistics, rel=1e-5, abs=1e-9, nan_ok=True)
            assert mine[site].statistics == wanted, site
    return found


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_of_an_optimizer_that_unscales_in_its_step_are_unscaled(tmp_path, fused, accumulate):
    def make_model():
        model = Toy(mlp())
        model.configure_optimizers = lambda: torch.optim.AdamW(model.parameters(), fused=fused)
        return model

    steps = assert_as_without_a_scaler(tmp_path, make_model, batches(*[4] * 8), accumulate_grad_batches=accumulate)
    assert len(steps) == 8 // accumulate


class Penalized(Toy):
    """Takes a gradient of its own, of a value that no scaler has scaled, before the loss is back-propagated."""

    def training_step(self, batch):
        x = batch.requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x)
        return self.loss(self.net(x)) + slope.square().mean()


def test_only_what_the_scaled_backward_brings_is_divided_by_the_scale(tmp_path):
    assert_as_without_a_scaler(tmp_path, lambda: Penalized(mlp()), batches(*[4] * 5))


def test_a_gradient_of_an_input_that_comes_in_parts_is_unscaled(tmp_path):
    def make_model():
        torch.manual_seed(0)
        used_in_part = Does(lambda x: (x * 2, x * 3))
        return Toy(torch.nn.Sequential(torch.nn.Linear(4, 4), used_in_part), lambda pair: pair[0].square().mean())

    steps = assert_as_without_a_scaler(tmp_path, make_model, batches(*[4] * 3))
    assert ("net.1", "grad_input") in {(site.name, site.role) for site in steps[0]}


class TwoOptimizers(Toy):
    """Two networks with an optimizer each; the gradients of the second overflow in the step with the number 1."""

    def __init__(self):
        super().__init__(mlp())
        self.other = mlp()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for net, optimizer in zip((self.net, self.other), self.optimizers(), strict=True):
            optimizer.zero_grad()
            factor = math.inf if batch_idx == 1 and net is self.other else 1.0
            self.manual_backward(net(batch).square().mean() * factor)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.net, self.other)]


def test_a_step_in_which_one_of_two_optimizers_overflowed_is_marked(tmp_path):
    steps = exact_gradients(tmp_path, TwoOptimizers(), batches(4, 4, 4), changing_scaler())
    for number, step in enumerate(steps):
        for site, reading in step.items():
            assert reading.overflowed == (number == 1), (number, site)


class Shared(Toy):
    """Two optimizers that step one after the other in each batch; the backward passes of both go through one layer."""

    def __init__(self):
        super().__init__(mlp())
        self.automatic_optimization = False

    def training_step(self, batch):
        for factor, optimizer in zip((1.0, 3.0), self.optimizers(), strict=True):
            self.zero_grad()
            self.manual_backward(self.net(batch * factor).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[number].parameters(), lr=0.01) for number in (0, 2)]


def test_gradients_of_two_optimizers_are_unscaled_while_the_scale_changes_between_their_steps(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1)
    assert_as_without_a_scaler(tmp_path, Shared, batches(4, 4, 4), scaler)


def test_a_scale_that_is_lowered_by_hand_is_no_overflow(tmp_path):
    scaler = changing_scaler()

    class LowersTheScale(Toy):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 1:
                scaler.update(16.0)

    steps = exact_gradients(tmp_path, LowersTheScale(mlp()), batches(*[4] * 4), scaler)
    assert [any(reading.overflowed for reading in step.values()) for step in steps] == [False] * 4


def test_an_empty_parameter_is_no_overflow_and_no_fault(tmp_path):
    def make_model():
        net = mlp()
        net.register_parameter("adapter", torch.nn.Parameter(torch.zeros(0, 4)))
        return Toy(net, loss=lambda y: y.square().mean() + net.adapter.sum())

    assert_as_without_a_scaler(tmp_path, make_model, batches(4, 4))


def test_a_sparse_gradient_is_unscaled_and_its_overflow_is_seen(tmp_path):
    class Spoiled(torch.nn.Module):
        """The gradient of its embedding alone is infinite in the last of three steps."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embedding, self.head = torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 3)
            self.steps = 0

        def forward(self, tokens):
            self.steps += 1
            x = self.embedding(tokens)
            if self.steps == 3:
                x.register_hook(lambda gradient: gradient * math.inf)
            return self.head(x)

    data = [torch.tensor([1, 2, 1])] * 3
    scaled = gradients(tmp_path, Toy(Spoiled()), data, changing_scaler())
    plain = gradients(tmp_path, Toy(Spoiled()), data)
    (site,) = [site for site in plain[0] if site.name == "net.embedding.weight"]
    for mine, theirs in zip(scaled[:2], plain[:2], strict=True):
        assert mine[site].statistics["l2"] == pytest.approx(theirs[site].statistics["l2"], rel=0.05)
    assert [step[site].overflowed for step in scaled] == [False, False, True]
