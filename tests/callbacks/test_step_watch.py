"""What watches the training step: a fault of ours in one part ends that part alone."""

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


@pytest.mark.parametrize(
    ("watcher", "method", "what", "lost"),
    [
        (StaleGradients, "before_step", "the search for gradients that are not cleared", {"stale_gradients"}),
        (Modes, "see", "the search for layers left in evaluation mode", set()),
        (Unfrozen, "see", "the search for weights that are unfrozen later", {"not_in_optimizer"}),
    ],
)
def test_an_error_in_one_part_is_one_warning_and_the_others_go_on(monkeypatch, watcher, method, what, lost):
    all_found = {"stale_gradients", "not_in_optimizer"}
    assert all_found <= verdicts_of_a_faulty_loop()

    def broken(*args):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(watcher, method, broken)
    with pytest.warns(UserWarning, match=what) as said:
        found = verdicts_of_a_faulty_loop()
    assert len(said) == 1
    assert found & all_found == all_found - lost
