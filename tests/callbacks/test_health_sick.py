"""Sick nets, trained for real: which layer `HealthMonitor` names, and what it does not blame."""

import pytest
import torch
from torch import nn
from toys import Toy, batches, fit, mean_square

from hookboard import HealthMonitor, watch


class Block(nn.Module):
    def __init__(self, norm, activation):
        super().__init__()
        self.norm = norm
        self.activation = activation

    def forward(self, x):
        return x + self.activation(self.norm(x))


def alarms_of(model, data):
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, model, data, monitor)
    return [(verdict.rule, verdict.module) for verdict in monitor.verdicts if verdict.severity == "alarm"]


def relu(kind):
    """What gives each block its activation: one of its own, one that all share, or no module."""
    shared = nn.ReLU()
    return {"its own": nn.ReLU, "shared": lambda: shared, "a function": lambda: torch.relu}[kind]


@pytest.mark.parametrize(("bias", "alarms"), [(-20.0, [("dead_units", "net.2.norm")]), (0.0, [])])
@pytest.mark.parametrize("kind", ["its own", "shared", "a function"])
def test_a_norm_is_dead_if_it_closes_the_activation_behind_it(kind, bias, alarms):
    torch.manual_seed(0)
    activation = relu(kind)
    blocks = [Block(nn.BatchNorm1d(8), activation()) for _ in range(3)]
    nn.init.constant_(blocks[1].norm.bias, bias)
    net = nn.Sequential(nn.Linear(4, 8), *blocks, nn.Linear(8, 3))
    assert alarms_of(Toy(net), batches(*[32] * 12)) == alarms


def test_a_norm_whose_input_an_epsilon_outweighs_still_uses_the_statistics_of_its_batch():
    """It gives hardly anything, as one in evaluation mode may; that is not why."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    monitor = HealthMonitor(every_n_steps=1)
    fit(None, Toy(net), [1e-4 * batch for batch in batches(*[32] * 12)], monitor)
    assert [verdict for verdict in monitor.verdicts if "running statistics" in verdict.evidence] == []


class Annealed(Toy):
    """Its second head counts by a weight in a buffer, which is 0 at first."""

    def __init__(self, steps):
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 4))
        self.first, self.second = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.steps = steps
        self.register_buffer("weight", torch.tensor(0.0))

    def training_step(self, batch, batch_idx):
        self.weight.fill_(float(batch_idx >= self.steps))
        x = self.net(batch)
        return mean_square(self.first(x)) + self.weight * mean_square(self.second(x))


@pytest.mark.parametrize("steps", [6, 100])
def test_a_term_that_is_multiplied_by_a_tensor_of_0_is_no_alarm(steps):
    assert alarms_of(Annealed(steps), batches(*[16] * 20)) == []


@pytest.mark.parametrize(("every", "said"), [(0, ["g.0"]), (1, []), (3, [])])
def test_an_optimizer_that_never_steps_is_said_to_be_so(every, said):
    torch.manual_seed(0)
    nets = nn.ModuleDict({"g": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)), "d": nn.Linear(8, 1)})
    optimizers = [torch.optim.Adam(net.parameters(), 1e-3) for net in nets.values()]
    with watch(nets, optimizers, [monitor := HealthMonitor(every_n_steps=1)]) as run:
        for number in range(30):
            real = torch.randn(16, 8)
            with run.step(real):
                optimizers[0].zero_grad()
                fake = nets["g"](torch.randn(16, 4))
                nn.functional.softplus(-nets["d"](fake)).mean().backward()
                if every and number % every == 0:
                    optimizers[0].step()
                optimizers[1].zero_grad()
                given = torch.cat([nets["d"](fake.detach()), -nets["d"](real)])
                nn.functional.softplus(given).mean().backward()
                optimizers[1].step()
    alarms = [one for one in monitor.verdicts if one.severity == "alarm"]
    assert [one.module for one in alarms] == said
    assert all("the optimizer that holds its weights has never stepped" in one.evidence for one in alarms)
