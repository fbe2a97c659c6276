"""What watches the training step: a fault of ours there is one warning, and training goes on."""

import pytest
import torch
from torch import nn
from toys import batches, mlp

from hookboard import HealthMonitor, watch
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
