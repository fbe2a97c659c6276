"""Compiled models are measured. Slow: each style is compiled with hooks at work and at rest, forward and backward."""

from dataclasses import dataclass

import pytest
import torch
from callbacks.user_program import Does
from torch import nn
from torch._dynamo.utils import counters
from toys import EachStep, Toy, batches, fit, mlp

from hookboard import ActivationLogger, GradientLogger

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute"),
]
BACKEND = {"backend": "aot_eager"}


class Quiet(Toy):
    """Logs nothing: to compile what Lightning does then takes longer than all else."""

    def training_step(self, batch):
        return self.loss(self.net(batch))


def plain():
    return Quiet(mlp())


def compiled_attribute():
    return Quiet(torch.compile(mlp(), **BACKEND))


def compiled_in_place():
    model = plain()
    model.net.compile(**BACKEND)
    return model


def compiled_one_by_one():
    model = plain()
    for module in model.net:
        module.compile(**BACKEND)
    return model


def compiled_module():
    return torch.compile(plain(), **BACKEND)


def compiled_training_step():
    model = Toy(mlp())  # which logs its loss
    model.training_step = torch.compile(model.training_step, **BACKEND)
    return model


TWICE = [compiled_attribute, compiled_in_place, compiled_module]
STYLES = [*TWICE, compiled_one_by_one, compiled_training_step]
"""In this order, as pytest makes a fixture once for the tests that ask for it by the same place in their lists."""


def watched(folder, model, **options):
    """The values of every due step of one fit, with every second step due."""
    callbacks = [ActivationLogger(every_n_steps=2), GradientLogger(every_n_steps=2)]
    kept = [EachStep(callback) for callback in callbacks]
    fit(folder, model, batches(*[4] * 8), *callbacks, *kept, **options)
    return [{reading.site: reading.statistics for reading in readings} for one in kept for readings in one.readings]


@pytest.fixture(scope="module")
def fitted(request, tmp_path_factory):
    """The values of a fit, and of a second one of the same model, between which nothing compiled is forgotten."""
    model, folder = request.param(), tmp_path_factory.mktemp("compiled")
    return [watched(folder / str(number), model) for number in range(1 + (request.param in TWICE))]


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    return watched(tmp_path_factory.mktemp("eager"), plain())


@pytest.mark.filterwarnings("error:.*nothing to measure")
@pytest.mark.parametrize("fitted", STYLES, indirect=True, scope="module")
def test_every_site_is_logged_on_every_due_step(fitted, eager):
    found = fitted[0]
    assert len(found) == len(eager) == 8
    for mine, theirs in zip(found, eager, strict=True):
        assert mine.keys() == theirs.keys()
        for site in theirs:
            assert mine[site] == pytest.approx(theirs[site], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("fitted", TWICE, indirect=True, scope="module")
def test_a_second_fit_of_a_compiled_model_is_logged_too(fitted):
    _, again = fitted
    assert len(again) == 8
    assert all(len(values) == 3 for values in again)


def test_a_model_that_was_compiled_and_run_before_the_fit_is_measured_all_the_same(tmp_path):
    model = compiled_in_place()
    for data in batches(4, 4):
        model.net(data).sum().backward()
    found = watched(tmp_path, model)
    assert len(found) == 8
    assert all(len(values) == 3 for values in found)


class CompiledLater(Toy):
    """Its network is compiled between two due steps."""

    def on_train_batch_start(self, batch, batch_idx):
        if batch_idx == 5:
            self.net.compile(**BACKEND)


def test_a_model_that_is_compiled_while_hooks_are_idle_is_measured_all_the_same(tmp_path):
    counters.clear()  # as if nothing had been compiled in this process
    callback = ActivationLogger(every_n_steps=4)
    kept = EachStep(callback)
    fit(tmp_path, CompiledLater(mlp()), batches(*[4] * 12), callback, kept)
    assert [len(readings) for readings in kept.readings] == [3, 3, 3]


def test_after_the_fit_a_compiled_model_runs_without_hooks(tmp_path):
    model = compiled_attribute()
    watched(tmp_path, model)
    x = batches(4)[0].requires_grad_()
    assert type(model.net(x).grad_fn).__name__ == "CompiledFunctionBackward"
    assert not any(module._forward_hooks for module in model.modules())


@dataclass
class Tripled:
    x: torch.Tensor

    def __post_init__(self):
        self.x = self.x * 3


class ReturnsTripled(nn.Linear):
    def forward(self, x):
        return Tripled(super().forward(x))


@pytest.mark.filterwarnings("ignore:.*nothing to measure")
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_dataclass_that_changes_what_it_is_given_is_made_once(tmp_path, fullgraph):
    weights = []
    for watching in ([], [GradientLogger("net.0", statistics="mean")]):
        torch.manual_seed(0)
        torch.compiler.reset()
        model = Toy(nn.Sequential(ReturnsTripled(4, 4), Does(lambda given: given.x)))
        model.net = torch.compile(model.net, backend="aot_eager", fullgraph=fullgraph)
        fit(tmp_path, model, batches(4, 4, 4), *watching)
        weights.append([p.tolist() for p in model.parameters()])
    assert weights[0] == weights[1]
