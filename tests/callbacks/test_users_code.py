"""Code of the user's that a step does not call by itself is not called for measuring either."""

import time
from collections.abc import Mapping

import torch
from toys import mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger, watch

WATCHING = [HealthMonitor, ActivationLogger, GradientLogger, ParameterLogger]


def trained(batch, before=lambda: None):
    """Train eight steps on the `x` of a batch, of which none after the first is due; return the seconds of each."""
    net = mlp()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    took = []
    with watch(net, sgd, [kind(every_n_steps=100) for kind in WATCHING]) as run:
        for _ in range(8):
            start = time.process_time()
            with run.step(batch):
                before()
                sgd.zero_grad()
                net(batch["x"]).square().mean().backward()
                sgd.step()
            took.append(time.process_time() - start)
    return took


class Counted(Mapping):
    """A batch that counts how often it is asked for an item."""

    def __init__(self, **items):
        self.held, self.asked = items, 0

    def __getitem__(self, key):
        self.asked += 1
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


def test_a_mapping_is_not_read_in_a_step_that_is_not_due():
    batch, at = Counted(x=torch.ones(2, 4)), []
    trained(batch, before=lambda: at.append(batch.asked))
    assert at[-1] - at[2] == len(at) - 3


def test_a_step_that_is_not_due_takes_no_longer_with_many_objects_in_the_batch():
    few, many = ({"x": torch.ones(2, 4), "more": [object()] * n} for n in (1, 50_000))
    took = [min(trained(batch)[2:]) for batch in (few, many)]
    assert took[1] - took[0] < 1e-3
