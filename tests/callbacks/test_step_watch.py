"""What watches the training step: its faults are one warning, and the user's code is not called for it."""

import time
from collections import UserDict

import pytest
import torch
from torch import nn
from toys import batches, mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger, watch
from hookboard.tracing.modes import Modes
from hookboard.tracing.optimizing import StaleGradients

pytestmark = pytest.mark.trains


def verdicts_of_a_faulty_loop(steps=8):
    """The rules that say something of a loop that never clears gradients, and unfreezes a layer too late."""
    torch.manual_seed(0)
    model = mlp()
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    monitor = HealthMonitor(every_n_steps=1)
    with watch(model, optimizer, [monitor]) as run:
        for step, x in enumerate(batches(*[8] * steps)):
            if step == 2:
                model[0].requires_grad_(requires_grad=True)
            with run.step(x):
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
    return {verdict.rule for verdict in monitor.verdicts}


@pytest.mark.parametrize(("watcher", "method"), [(StaleGradients, "before_step"), (Modes, "see")])
def test_an_error_in_one_part_is_one_warning_and_ends_no_loop(monkeypatch, watcher, method):
    assert {"stale_gradients", "not_updated"} <= verdicts_of_a_faulty_loop()

    def broken(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(watcher, method, broken)
    with pytest.warns(UserWarning, match="HealthMonitor is switched off.*ours") as said:
        verdicts_of_a_faulty_loop()
    assert len(said) == 1


@pytest.mark.parametrize("is_known", [True, False], ids=["told of the optimizer", "not told"])
def test_weights_are_those_that_the_step_has_used_whatever_changes_them_after_it(is_known):
    torch.manual_seed(0)
    net = nn.ModuleDict({"student": nn.Linear(4, 4), "teacher": nn.Linear(4, 4).requires_grad_(False)})
    optimizer = torch.optim.SGD(net["student"].parameters(), lr=0.5)
    monitor = HealthMonitor(every_n_steps=1)
    with watch(net, optimizer if is_known else torch.optim.SGD([nn.Parameter(torch.zeros(1))]), [monitor]) as run:
        for x in batches(8, 8):
            used = {name: weight.detach().double() for name, weight in net.named_parameters()}
            with run.step(x):
                (net["student"](x) - net["teacher"](x)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                for one, other in zip(net["teacher"].parameters(), net["student"].parameters(), strict=True):
                    one.lerp_(other.detach(), 0.5)
            found = {one.site.name: one.moments.rms for one in monitor.readings if one.site.role == "parameter_before"}
            true = {name: weight.square().mean().sqrt().item() for name, weight in used.items()}
            assert found == pytest.approx(true, rel=1e-6)


def seconds_of_steps(batch, before=lambda: None):
    """Train eight steps on the `x` of a batch, of which none after the first is due; return the seconds of each."""
    net, took = mlp(), []
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    watching = HealthMonitor, ActivationLogger, GradientLogger, ParameterLogger
    with watch(net, sgd, [kind(every_n_steps=100) for kind in watching]) as run:
        for _ in range(8):
            start = time.process_time()
            with run.step(batch):
                before()
                sgd.zero_grad()
                net(batch["x"]).square().mean().backward()
                sgd.step()
            took.append(time.process_time() - start)
    return took


def test_a_mapping_is_not_read_in_a_step_that_is_not_due():
    class Counted(UserDict):
        asked = 0

        def __getitem__(self, key):
            self.asked += 1
            return super().__getitem__(key)

    batch, at = Counted(x=torch.ones(2, 4)), []
    seconds_of_steps(batch, before=lambda: at.append(batch.asked))
    assert at[-1] - at[2] == len(at) - 3


def test_a_step_that_is_not_due_takes_no_longer_with_many_objects_in_the_batch():
    few, many = ({"x": torch.ones(2, 4), "more": [object()] * n} for n in (1, 50_000))
    took = [min(seconds_of_steps(batch)[2:]) for batch in (few, many)]
    assert took[1] - took[0] < 1e-3


@pytest.mark.compiles
def test_compiled_steps_of_an_optimizer_are_measured_and_nothing_warns_of_our_code():
    net, monitor = mlp(), HealthMonitor(every_n_steps=1, audit=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watch(net, optimizer, monitor) as run:
        for batch in batches(4, 4):  # warnings are errors here
            with run.step(batch):
                net(batch).square().mean().backward()
                torch.compile(optimizer.step, backend="eager")()
    assert sum(one.site.role == "parameter_update" for one in monitor._readings) == 4
