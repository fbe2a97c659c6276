"""From its second call on a module's plain output is shown by a shorter way, which shows what the long one shows."""

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from hookboard.hooks.module_tap import ModuleTap
from hookboard.hooks.own_call import own_call
from hookboard.hooks.taps import Taps


class Does(nn.Module):
    """Multiplies by its weight, and then does what it is told."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.then = lambda x: x

    def forward(self, x):
        return self.then(x * self.weight)


class Sub(Tensor):
    pass


def in_place(x):
    view = x[:2]
    view.mul_(2.0)
    return view


THEN = {
    "a plain tensor": lambda x: x,
    "a view": lambda x: x[1:],
    "a view changed in place": in_place,
    "a tuple": lambda x: (x, x + 1),
    "a subclass": lambda x: x.as_subclass(Sub),
    "a frozen tensor": lambda x: x.detach(),
    "a leaf": lambda x: x.detach().requires_grad_(),
    "integers": lambda x: x.long(),
    "nothing": lambda x: None,
}


def seen_of(then, roles, call):
    """The values that taps show of the second call of a module, and why nothing was shown."""
    module, seen = Does(), []
    taps = Taps({"does": module}, roles, lambda site: lambda tensor: seen.append((site, tensor.detach().tolist())))
    taps.attach()
    taps.active = True
    module(torch.ones(3)).sum().backward()
    seen.clear()
    module.then = then
    call(module)
    taps.settle()
    taps.detach()
    return seen, {role: taps.why_silent("does", role) for role in roles}


def backward_of(module):
    output = module(torch.full((3,), 2.0))
    output = output[0] if isinstance(output, tuple) else output
    if isinstance(output, Tensor) and output.requires_grad:
        output.square().sum().backward()


def under_no_grad(module):
    with torch.no_grad():
        module(torch.ones(3))


def as_own_call(module):
    with own_call():
        backward_of(module)


def checkpointed(module):
    checkpoint(module, torch.ones(3, requires_grad=True), use_reentrant=False).sum().backward()


CALLS = [backward_of, under_no_grad, as_own_call]
ROLES = [("output",), ("grad_output",), ("output", "grad_output")]


@pytest.mark.parametrize("roles", ROLES, ids=" and ".join)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("then", THEN.values(), ids=THEN)
def test_it_shows_what_the_long_way_shows(then, call, roles, monkeypatch):
    short = seen_of(then, roles, call)
    monkeypatch.setattr(ModuleTap, "_quick", lambda self: None)
    assert short == seen_of(then, roles, call)


@pytest.mark.parametrize("roles", ROLES, ids=" and ".join)
def test_it_shows_a_checkpointed_call_once(roles, monkeypatch):
    short = seen_of(THEN["a plain tensor"], roles, checkpointed)
    monkeypatch.setattr(ModuleTap, "_quick", lambda self: None)
    assert short == seen_of(THEN["a plain tensor"], roles, checkpointed)


def test_a_plain_output_takes_it(monkeypatch):
    module = Does()
    taps = Taps({"does": module}, ["output", "grad_output"], lambda site: lambda tensor: None)
    taps.attach()
    taps.active = True
    module(torch.ones(3))
    monkeypatch.setattr(ModuleTap, "leave", None)  # who calls it fails
    module(torch.ones(3))
    taps.detach()


class Raises(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") == "__get__":
            raise ValueError("on purpose")
        return function(*args, **(kwargs or {}))


def test_a_fault_of_asking_a_tensor_does_not_reach_the_model():
    module = Does()
    taps = Taps({"does": module}, ["grad_output"], lambda site: lambda tensor: None)
    taps.attach()
    taps.active = True
    module(torch.ones(3))
    with pytest.warns(UserWarning, match="module 'does'.*on purpose"), Raises():
        module(torch.ones(3))
    taps.detach()


class MapsArguments(TorchFunctionMode):
    """Rebuilds what holds tensors, as a mode does that unwraps them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*tree_map(lambda x: x, args), **(kwargs or {}))


class MapsResults(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return tree_map(lambda x: x, function(*args, **(kwargs or {})))


class RefusesAssignment(TorchFunctionMode):
    """Knows no attribute that is assigned, as a tracer does."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") == "__set__":
            raise NotImplementedError("assignment")
        return function(*args, **(kwargs or {}))


def with_hook_of_a_user(x):
    x.register_hook(lambda grad: None)
    return x


@pytest.mark.parametrize("mode", [MapsArguments, MapsResults, RefusesAssignment])
@pytest.mark.parametrize("then", [lambda x: x, with_hook_of_a_user], ids=["alone", "beside a hook of the user's"])
def test_under_a_mode_of_the_users_every_tap_sees_the_gradient(mode, then):
    module, seen = Does(), []
    several = [Taps({"does": module}, ["grad_output"], lambda site: lambda grad: seen.append(1)) for _ in range(2)]
    module.then = then
    for taps in several:
        taps.attach()
        taps.active = True
    for _ in range(2):
        seen.clear()
        with mode():
            output = module(torch.ones(3))
        output.sum().backward()
    for taps in several:
        taps.detach()
    assert len(seen) == 2


def test_a_fault_on_it_is_said_once_and_the_module_goes_on():
    module, faults = Does(), []

    def observe(tensor):
        faults.append(tensor)
        if len(faults) > 1:
            raise ValueError("on purpose")

    taps = Taps({"does": module}, ["output"], lambda site: observe)
    taps.attach()
    taps.active = True
    module(torch.ones(3))
    with pytest.warns(UserWarning, match="module 'does'.*on purpose"):
        module(torch.ones(3))
    module(torch.ones(3))
    assert len(faults) == 2
    taps.detach()
