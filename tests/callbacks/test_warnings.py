"""A warning of the user's or of torch's that comes once comes once with us too."""

import warnings

import pytest
import torch
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, HealthMonitor, watch


def hint():
    warnings.warn("comes once", stacklevel=1)


def shown(run):
    """How often a warning is shown that `run` gives many times."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        run()
    return sum(str(one.message) == "comes once" for one in said)


class Scheduled(Toy):
    """Warns in each step."""

    def training_step(self, batch):
        hint()
        return super().training_step(batch)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_fit_start(self):
        hint()


def test_in_a_fit_with_a_schedule():
    def run(*watching):
        return lambda: fit(None, Scheduled(mlp()), batches(4, 4, 4, 4), *watching)

    assert shown(run(HealthMonitor(every_n_steps=1), ActivationLogger(every_n_steps=1))) == shown(run())


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
