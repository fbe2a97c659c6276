"""Tracers see no line of ours in a user's code, and what a step made dies with it, with our callbacks too."""

import contextlib
import gc
import inspect
import sys
import traceback
import weakref

import pytest
import torch
from callbacks.user_program import IGNORED, STEPS, Does, Effects, assert_the_same_is_seen, surely
from torch import nn
from torch.overrides import TorchFunctionMode

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()


def traced(install):
    def effect_of(user):
        def trace(frame, event, arg):
            if frame.f_code.co_filename != __file__:
                return None
            name = getattr(arg, "__name__", "") if event.startswith("c_") else ""
            user.saw(event, frame.f_code.co_name, frame.f_lineno, name)
            return trace

        @surely
        def around():
            before = sys.gettrace(), sys.getprofile()
            install(trace)
            try:
                yield
            finally:
                sys.settrace(before[0])
                sys.setprofile(before[1])

        user.around_fit = around

        def during(output):
            more = output.exp()
            return (more + output.tanh()).mean()

        user.during = during

    return effect_of


effect |= {
    "a tracer sees lines": traced(sys.settrace),
    "a profiler sees calls": traced(sys.setprofile),
}


@effect
def the_stack_is_inspected(user):
    def look(*args):
        user.saw([one.function for one in inspect.stack(0) if one.filename == __file__])
        user.saw([one.name for one in traceback.extract_stack() if one.filename == __file__])

    class Looks(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            look()
            return func(*args, **(kwargs or {}))

    user.net.append(Does(lambda x: look() or x * 1))

    def during(output):
        with Looks():
            return output.exp().mean()

    user.during = during


@effect
def a_forward_takes_its_locals(user):
    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def core(self, x, scale, **others):
            return self.layer(x) * scale

        def forward(self, x, scale=1.0):
            kwargs = locals()
            del kwargs["self"]
            x.sum()
            user.saw(sorted(kwargs))
            return self.core(**kwargs)

    user.net.append(Takes())


@contextlib.contextmanager
def without_collecting():
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Remembers:
    """Weak references to what a step made, without the garbage collector."""

    def __init__(self, user):
        self.user, self.refs = user, []
        user.around_fit = without_collecting
        user.at_end.append(self.count)

    def keep(self, name, one):
        self.refs.append((name, len(self.user.parts), weakref.ref(one)))

    def count(self):
        self.user.saw([(name, part) for name, part, ref in self.refs if ref() is not None])


@effect
def outputs_of_layers_die_with_the_step(user):
    alive = Remembers(user)
    for number, layer in enumerate(user.net):
        layer.register_forward_hook(lambda layer, args, output, number=number: alive.keep(number, output))
    user.during = lambda output: alive.count()


class Fresh(torch.utils.data.IterableDataset):
    """Makes its batches when they are asked for."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        for seed in range(STEPS):
            yield self.make(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)))


class Held:
    """Says when it dies."""

    def __init__(self, user):
        self.user = user

    def __del__(self):
        self.user.saw("it is gone")


@effect
def objects_in_batches_die_with_the_step(user):
    user.data = Fresh(lambda batch: {"x": batch, "held": Held(user), "also": [Held(user)]})
    user.given = lambda batch: batch["x"]
    user.around_fit = without_collecting


@effect
def objects_given_to_layers_die_with_the_call(user):
    class Inner(nn.Module):
        def forward(self, x, held):
            return torch.relu(x) + x

    def call(x):
        returned = user.net.inner(x, held=Held(user))
        user.saw("the call is over")
        return returned

    user.net.inner = Inner()
    user.net.calls = Does(call)
    user.net.forward = lambda x: user.net.calls(nn.Sequential.forward(user.net[:5], x))
    user.around_fit = without_collecting


@effect
def graphs_die_with_the_step(user):
    alive = Remembers(user)

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.held = Held(user)
            alive.keep("context", ctx.held)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    user.net.append(Does(Node.apply))
    user.during = lambda output: alive.count()


@effect
def weak_references_to_weights_are_counted(user):
    user.during = lambda output: user.saw([weakref.getweakrefcount(p) for p in nn.Module.parameters(user.net)])


@effect
def references_to_outputs_are_counted(user):
    def exp(x):
        made = x.exp()
        user.saw(sys.getrefcount(made), torch._C._storage_Use_Count(made.untyped_storage()._cdata))
        return made

    def during(output):
        user.saw(sys.getrefcount(output))
        user.saw([torch._C._storage_Use_Count(p.untyped_storage()._cdata) for p in nn.Module.parameters(user.net)])

    user.net.append(Does(exp))
    user.during = during


@effect
def weights_die_with_their_layer(user):
    user.net.append(nn.Linear(4, 4))
    ref = weakref.ref(user.net[-1].weight)

    def at_end():
        user.in_trainer = None
        del user.net[-1]
        user.saw("alive" if ref() is not None else "gone")

    user.at_end.append(at_end)
    user.around_fit = without_collecting


@effect
def the_collector_is_as_the_user_set_it(user):
    def collected(phase, info):
        user.saw(phase, info["generation"]) if info["generation"] == 2 else None

    @surely
    def around():
        with without_collecting():
            gc.callbacks.append(collected)
            yield
            gc.callbacks.remove(collected)

    user.around_fit = around
    user.during = lambda output: user.saw(gc.isenabled(), gc.get_threshold(), gc.get_debug())


@pytest.mark.parametrize(("make", "way"), effect.cases())
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
