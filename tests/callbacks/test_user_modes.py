"""Modes and classes of tensors of the user's, which see every call of torch, see none of ours."""

import itertools
import random

import numpy as np
import pytest
import torch
from callbacks.user_program import IGNORED, Does, Effects, Within, assert_the_same_is_seen, surely
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()


class Functions(TorchFunctionMode):
    """Sees each function, and draws, so that a call of ours would change what is drawn later."""

    def __init__(self, user):
        super().__init__()
        self.user = user

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.user.saw("function", str(resolve_name(func)))
        np.random.rand(), random.random()
        with torch._C.DisableTorchFunction():
            torch.rand(())
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    def __init__(self, user):
        super().__init__()
        self.user = user

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.user.saw("operation", str(func))
        torch.rand(()), np.random.rand(), random.random()
        return func(*args, **(kwargs or {}))


def mode_in_a_layer(kind):
    def effect_of(user):
        user.net[4] = Within(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)), lambda: kind(user))

    return effect_of


effect |= {
    "a function mode is around the fit": lambda user: setattr(user, "around_fit", lambda: Functions(user)),
    "a function mode is around the step": lambda user: setattr(user, "around_step", lambda: Functions(user)),
    "a function mode is in a forward": mode_in_a_layer(Functions),
    "a dispatch mode is around the fit": lambda user: setattr(user, "around_fit", lambda: Operations(user)),
    "a dispatch mode is around the step": lambda user: setattr(user, "around_step", lambda: Operations(user)),
    "a dispatch mode is in a forward": mode_in_a_layer(Operations),
}


@effect
def a_function_mode_is_entered_in_one_step_and_left_in_the_next(user):
    one, steps = Functions(user), itertools.count()

    def during(output):
        (one.__exit__(None, None, None) if next(steps) % 2 else one.__enter__()) and None

    user.during = during


@effect
def the_default_device_changes_in_the_first_step(user):
    if not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("torch 2.6 cannot tell the default device after it was reset")

    def during(output):
        user.saw(str(torch.get_default_device()))
        torch.set_default_device("meta")
        user.saw(str(torch.ones(1).device), str(torch.get_default_device()))
        torch.set_default_device(None)

    user.during = during
    user.at_end.append(lambda: user.saw(str(torch.get_default_device())))


@effect
def the_default_type_changes_in_a_forward(user):
    @surely
    def double():
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)

    user.net[4] = Within(nn.Linear(6, 4), double)
    user.net[4].register_forward_hook(lambda *args: user.saw(str(torch.rand(1).dtype)) and None)


@effect
def a_dry_run_makes_fake_tensors(user):
    from torch._subclasses.fake_tensor import FakeTensorMode

    def during(output):
        with FakeTensorMode():
            made = nn.Sequential(nn.Linear(4, 6), nn.ReLU())(torch.ones(3, 4))
        user.saw(tuple(made.shape), type(made).__name__)

    user.during = during


@effect
def saved_tensors_are_packed_in_the_fit(user):
    pack = lambda tensor: user.saw("pack", tuple(tensor.shape)) or tensor  # noqa: E731
    unpack = lambda tensor: user.saw("unpack", tuple(tensor.shape)) or tensor  # noqa: E731
    user.around_fit = lambda: torch.autograd.graph.saved_tensors_hooks(pack, unpack)


@effect
def autocast_caches_what_it_casts(user):
    def during(output):
        with torch.autocast("cpu", torch.bfloat16), Operations(user):
            return user.net(output).float().mean() + user.net(output).float().mean()

    user.during = during


def tensor_class(user):
    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            user.saw(str(resolve_name(func)), [one.__name__ for one in types])
            return super().__torch_function__(func, types, args, kwargs or {})

    return Counted


@effect
def inputs_targets_outputs_and_the_loss_have_a_class_of_the_users(user):
    kind = tensor_class(user)
    user.data = [(batch, batch.as_subclass(kind)) for batch in user.data]
    user.given = lambda batch: batch[0].as_subclass(kind)


@effect
def a_weight_has_a_class_of_the_users(user):
    kind = tensor_class(user)
    user.net[4].weight = nn.Parameter(user.net[4].weight.detach().as_subclass(kind))
    user.output = lambda output: output.as_subclass(torch.Tensor)


@effect
def a_gradient_has_a_class_of_the_users(user):
    kind = tensor_class(user)
    user.during = lambda output: output.register_hook(lambda grad: grad.as_subclass(kind)) and None


@effect
def an_operand_is_no_tensor_but_overrides(user):
    class Operand:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            user.saw(func.__name__)
            args = [2.0 if isinstance(one, Operand) else one for one in args]
            return func(*args, **(kwargs or {}))

    user.data = [(batch, Operand()) for batch in user.data]
    user.net.append(Does(lambda x: torch.mul(x, Operand())))
    user.given = lambda batch: batch[0]


@effect
def a_buffer_is_dispatched_by_its_class(user):
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner = inner
            return made

        def __init__(self, inner):
            pass

        def __repr__(self):
            user.saw("repr")
            return "Wrapper"

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            user.saw(str(func))
            args = pytree.tree_map_only(Wrapper, lambda one: one.inner, args)
            return pytree.tree_map_only(torch.Tensor, Wrapper, func(*args, **(kwargs or {})))

    user.net.register_buffer("scale", Wrapper(torch.ones(4)))
    user.output = lambda output: output * user.net.scale.inner


@pytest.mark.parametrize(("make", "way"), effect.cases())
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
