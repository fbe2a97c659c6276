"""The first training step is followed while it runs, whatever it is like; nothing of that is left afterwards."""

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch._dynamo import eval_frame
from torch.nn.functional import cross_entropy
from torch.overrides import _get_current_function_mode_stack
from toys import Toy, batches, fit, mlp, newer_torch

from hookboard import HealthMonitor
from hookboard.tracing.questions import STEP

pytestmark = pytest.mark.trains

X, CLASSES = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


class Faulty(Toy):
    """A softmax before cross_entropy."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3), nn.Softmax(1)))

    def loss_of(self, batch):
        return cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        return self.loss_of(batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class TakesAnIterator(Faulty):
    def training_step(self, dataloader_iter):
        return self.loss_of(next(dataloader_iter)[0])


class SkipsTheFirstBatch(Faulty):
    def training_step(self, batch, batch_idx):
        return self.loss_of(batch) if batch_idx else None


class FeelsForItsBatch(Faulty):
    def loss_of(self, batch):
        given = batch[0].clone().requires_grad_()
        super().loss_of((given, batch[1])).backward()
        self.zero_grad()
        return super().loss_of((batch[0] + 0.1 * given.grad.sign(), batch[1]))


class UsesLbfgs(Faulty):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)


class CallsTheFunctionOfAutograd(Faulty):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.optimizers().zero_grad()
        torch.autograd.backward([self.loss_of(batch)])
        self.optimizers().step()


class HasTwoOptimizers(CallsTheFunctionOfAutograd):
    """The fault is in the second loss."""

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        first.zero_grad()
        self.manual_backward(self.net(batch[0]).square().mean())
        first.step()
        second.zero_grad()
        self.manual_backward(self.loss_of(batch))
        second.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(self.net[0].parameters()), torch.optim.SGD(self.net[2].parameters(), lr=0.1)]


def trained(kind, *callbacks, **options):
    torch.manual_seed(3)
    fit(None, model := kind(), [(X, CLASSES)] * 4, *callbacks, **{name: make() for name, make in options.items()})
    return model.state_dict(), torch.get_rng_state()


def assert_read_and_the_same(kind, **options):
    (bare, drawn), monitor = trained(kind, **options), HealthMonitor(every_n_steps=1)
    watched, drawn_too = trained(kind, monitor, **options)
    assert all(torch.equal(value, watched[name]) for name, value in bare.items())
    assert torch.equal(drawn, drawn_too)
    [found] = [verdict for verdict in monitor.verdicts if verdict.rule == "loss_input"]
    assert "test_live_step.py" in found.evidence
    assert_nothing_is_left()


def assert_nothing_is_left():
    assert _get_current_function_mode_stack() == []
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert torch.overrides.has_torch_function is torch._C._has_torch_function
    assert eval_frame._maybe_set_eval_frame.__module__.startswith("torch.")


STEPS = [TakesAnIterator, SkipsTheFirstBatch, FeelsForItsBatch, UsesLbfgs, CallsTheFunctionOfAutograd]
STEPS = [(kind, {}) for kind in (*STEPS, HasTwoOptimizers)]
STEPS += [
    (Faulty, {"accumulate_grad_batches": lambda: 2}),
    (Faulty, {"plugins": lambda: MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))}),
]


@pytest.mark.filterwarnings("ignore:.*dataloader_iter|.training_step. returned")
@pytest.mark.parametrize(("kind", "options"), STEPS)
def test_a_fault_is_found_in_each_kind_of_step_and_the_training_is_the_same(kind, options):
    assert_read_and_the_same(kind, **options)


class Compiled(Faulty):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(torch.compile(nn.Linear(4, 3), backend="aot_eager"), nn.Softmax(1))


@newer_torch
@pytest.mark.compiles
def test_compiled_layers_are_compiled_once_and_what_is_around_them_is_read(caplog):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert_read_and_the_same(Compiled)
    assert "1 call of compiled code" in caplog.text


class Fails(Faulty):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)
        raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore:.*KeyboardInterrupt")
def test_nothing_is_left_of_it_after_an_error_in_the_step(error):
    model = Fails()
    model.error = error("of the user")
    with pytest.raises((error, SystemExit)):
        fit(None, model, [(X, CLASSES)], HealthMonitor())
    assert_nothing_is_left()


class TrainsAnother(Toy):
    """In its first step, with a fault that is not its own."""

    def training_step(self, batch):
        if not self.trainer.global_step:
            fit(None, Faulty(), [(X, CLASSES)] * 2)
        return super().training_step(batch)


def test_the_fault_of_a_training_inside_of_the_step_is_not_that_of_the_step():
    fit(None, TrainsAnother(mlp()), batches(8, 8), monitor := HealthMonitor(every_n_steps=1))
    assert not STEP.intersection(verdict.rule for verdict in monitor.verdicts)


@pytest.mark.parametrize("place", ["begin", "note_batch", "let_go", "aside"])
def test_a_fault_of_ours_leaves_nothing_behind(monkeypatch, place):
    def broken(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(f"hookboard.tracing.program.StepTrace.{place}", broken)
    with pytest.warns(UserWarning, match="ours"):
        fit(None, Faulty(), [(X, CLASSES)] * 2, HealthMonitor())
    assert_nothing_is_left()


def test_a_step_of_very_many_calls_is_one_line(monkeypatch, caplog):
    monkeypatch.setattr("hookboard.tracing.program.MAX_OPS", 3)
    trained(Faulty, HealthMonitor())
    assert "the training step was not inspected: it makes more than 3 calls, or 20,000 autograd nodes." in caplog.text
    assert_nothing_is_left()
