"""What watches the training step: a fault of ours there is one warning, and training goes on."""

import pytest
import torch
from toys import batches, mlp

from hookboard import HealthMonitor, watch
from hookboard.tracing.modes import Modes
from hookboard.tracing.optimizing import Unfrozen
from hookboard.tracing.stale import StaleGradients

pytestmark = pytest.mark.trains


def verdicts_of_a_faulty_loop(steps=6):
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


@pytest.mark.parametrize(("watcher", "method"), [(StaleGradients, "before_step"), (Modes, "see"), (Unfrozen, "see")])
def test_an_error_in_one_part_is_one_warning_and_ends_no_loop(monkeypatch, watcher, method):
    assert {"stale_gradients", "not_in_optimizer"} <= verdicts_of_a_faulty_loop()

    def broken(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(watcher, method, broken)
    with pytest.warns(UserWarning, match="HealthMonitor is switched off.*ours") as said:
        verdicts_of_a_faulty_loop()
    assert len(said) == 1
