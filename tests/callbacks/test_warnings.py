"""torch does not warn of our code in a step that the user has compiled."""

import pytest
import torch
from toys import batches, mlp

from hookboard import HealthMonitor, watch


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
