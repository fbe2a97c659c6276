"""Code of the user's that a step does not call by itself is not called for measuring either."""

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from toys import mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger, watch


def watching(every_n_steps=1):
    every = {"every_n_steps": every_n_steps}
    return [
        HealthMonitor(**every),
        ActivationLogger("**", roles=["output", "input"], **every),
        GradientLogger("**", roles=["grad_output", "grad_input", "parameter_grad"], **every),
        ParameterLogger(**every),
    ]


def trained(step, batch, callbacks, steps=4, net=None):
    """Train some steps by `step(net, batch)`, which returns a loss; return the weights and the seconds of each step."""
    net = mlp() if net is None else net
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    took = []
    with watch(net, sgd, callbacks) as run:
        for _ in range(steps):
            start = time.process_time()
            with run.step(batch):
                sgd.zero_grad()
                step(net, batch).backward()
                sgd.step()
            took.append(time.process_time() - start)
    return net.state_dict(), took


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


def of_items(net, batch):
    return net(batch["x"]).square().mean()


def test_a_mapping_is_not_read_in_a_step_that_is_not_due():
    batch = Counted(x=torch.ones(2, 4))
    at = []
    trained(lambda net, batch: at.append(batch.asked) or of_items(net, batch), batch, watching(every_n_steps=100), 8)
    assert at[-1] - at[2] == len(at) - 3


def test_a_step_that_is_not_due_takes_no_longer_with_many_objects_in_the_batch():
    few, many = ({"x": torch.ones(2, 4), "more": [object()] * n} for n in (1, 50_000))
    took = [min(trained(of_items, batch, [HealthMonitor(every_n_steps=100)], 8)[1][2:]) for batch in (few, many)]
    assert took[1] - took[0] < 1e-3


class OwnParameters(nn.Module):
    """Counts how often it is asked for its parameters, by methods of its own, as in few-shot programs."""

    asked = 0

    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([torch.ones(1, 4), torch.zeros(1)])

    def forward(self, x):
        return nn.functional.linear(x, *self.vars)

    def parameters(self):
        self.asked += 1
        return self.vars

    def named_parameters(self):
        self.asked += 1
        return [("own", self.vars[0])]


def test_parameters_are_not_asked_of_methods_that_users_override():
    net = nn.Sequential(OwnParameters())
    sgd = torch.optim.SGD(net[0].vars.parameters(), 0.1)
    with watch(net, sgd, watching()) as run:
        for _ in range(3):
            with run.step():
                sgd.zero_grad()
                net(torch.ones(2, 4)).square().mean().backward()
                sgd.step()
    assert net[0].asked == 0


class CountsFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))


class CountsOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.calls[str(operator)] += 1
        return operator(*args, **(kwargs or {}))


class CountsItself(torch.Tensor):
    calls: ClassVar[Counter] = Counter()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls[getattr(function, "__name__", str(function))] += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x):
        x = self.norm(self.first(x).view(2, -1, 4))
        return self.last(nn.functional.scaled_dot_product_attention(x, x, x).relu().flatten(1, 1))


def mean_square(net, x):
    return net(x).square().mean()


@pytest.mark.parametrize("mode", [CountsFunctions, CountsOperators])
@pytest.mark.parametrize("is_around_all", [False, True])
def test_a_mode_of_the_users_sees_the_same_calls_with_and_without_callbacks(mode, is_around_all):
    def calls(callbacks):
        seen = mode()
        around, inside = (seen, nullcontext()) if is_around_all else (nullcontext(), seen)

        def step(net, x):
            with inside:
                return mean_square(net, x)

        with around:
            trained(step, torch.arange(24.0).view(6, 4).sin(), callbacks, net=Attends())
        return seen.calls

    assert calls([]) == calls(watching())


def test_a_tensor_class_of_the_users_sees_the_same_calls_with_and_without_callbacks():
    calls = []
    for callbacks in ([], watching()):
        CountsItself.calls = Counter()
        trained(mean_square, torch.arange(24.0).view(6, 4).sin().as_subclass(CountsItself), callbacks, net=Attends())
        calls.append(CountsItself.calls)
    assert calls[0] == calls[1]
