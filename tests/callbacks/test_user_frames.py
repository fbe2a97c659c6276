"""Tracers see no line of ours in a user's code, and what a step made dies with it, with our callbacks too."""

import contextlib
import copy
import gc
import inspect
import sys
import threading
import traceback
import weakref
from collections import Counter

import pytest
import torch
from callbacks.user_program import (
    IGNORED,
    STEPS,
    Does,
    Effects,
    assert_the_same_is_seen,
    surely,
)
from torch import nn
from torch.overrides import TorchFunctionMode

pytestmark = pytest.mark.filterwarnings(*IGNORED)

effect = Effects()


# Tracers and profilers.


OF_THE_LOGGER = {"log_metrics", "log_hyperparams"}


def is_of_the_user(code):
    return code.co_filename == __file__ and code.co_name not in OF_THE_LOGGER


def traced(install):
    def effect_of(user):
        def trace(frame, event, arg):
            if not is_of_the_user(frame.f_code):
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
def a_tracer_of_threads_sees_lines(user):
    def trace(frame, event, arg):
        if is_of_the_user(frame.f_code):
            user.saw(event, frame.f_code.co_name)
            return trace
        return None

    def during(output):
        def work():
            user.net[4](torch.ones(2, 6)).sum().item()

        threading.settrace(trace)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        threading.settrace(None)

    user.during = during


@effect
def a_profile_counts_calls(user):
    import cProfile
    import pstats

    @surely
    def around():
        profile = cProfile.Profile()
        with profile:
            yield
        for (file, line, name), (_, calls, *_) in sorted(pstats.Stats(profile).stats.items()):
            if file == __file__ and name not in OF_THE_LOGGER:
                user.saw(name, line, calls)

    user.around_fit = around
    user.during = lambda output: output.exp().tanh().mean()


@effect
def events_are_monitored(user):
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        pytest.skip("sys.monitoring came with Python 3.12")

    def start(code, offset):
        if is_of_the_user(code):
            user.saw("start", code.co_name)

    @surely
    def around():
        monitoring.use_tool_id(4, "of the user")
        monitoring.register_callback(4, monitoring.events.PY_START, start)
        monitoring.set_events(4, monitoring.events.PY_START)
        yield
        monitoring.set_events(4, 0)
        monitoring.free_tool_id(4)

    user.around_fit = around
    user.during = lambda output: output.exp().tanh().mean()


@effect
def torchs_profiler_sees_what_the_user_records(user):
    @surely
    def around():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            yield
        of_user = [event.name for event in profile.events() if event.name.startswith(("of the user", "Optimizer"))]
        user.saw(Counter(of_user))

    def during(output):
        with torch.profiler.record_function("of the user"):
            return output.exp().mean()

    user.around_fit, user.during = around, during


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
def a_layer_asks_who_called_it(user):
    class Asks(nn.Module):
        def forward(self, x):
            frame, found = sys._getframe(1), []
            while frame is not None:
                if frame.f_code.co_filename == __file__:
                    found.append((frame.f_code.co_name, frame.f_lineno))
                frame = frame.f_back
            user.saw(found)
            return torch.relu(x)

    user.net.append(Asks())


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


# What is alive.


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
def outputs_die_with_the_step(user):
    alive = Remembers(user)

    def during(output):
        alive.count()
        alive.keep("output", output)

    user.during = during


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


@effect
def batches_die_with_the_step(user):
    alive = Remembers(user)

    def given(batch):
        alive.count()
        alive.keep("batch", batch)
        return batch

    user.data, user.given = Fresh(lambda batch: batch), given


@effect
def objects_in_batches_die_with_the_step(user):
    class Held:
        def __del__(self):
            user.saw("a batch is gone")

    user.data = Fresh(lambda batch: {"x": batch, "held": Held(), "also": [Held()]})
    user.given = lambda batch: batch["x"]
    user.around_fit = without_collecting


@effect
def objects_given_to_layers_die_with_the_call(user):
    class Held:
        def __del__(self):
            user.saw("an argument is gone")

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            returned = self.inner(x, held=Held())
            user.saw("the call is over")
            return returned

    class Inner(nn.Module):
        def forward(self, x, held):
            return torch.relu(x) + x

    user.net.append(Takes())
    user.around_fit = without_collecting


@effect
def graphs_die_with_the_step(user):
    alive = Remembers(user)

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.held = Held()
            alive.keep("context", ctx.held)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    class Held:
        pass

    user.net.append(Does(Node.apply))
    user.during = lambda output: alive.count()


@effect
def losses_die_with_the_step(user):
    alive = Remembers(user)

    def during(output):
        alive.count()
        more = output.exp().mean()
        alive.keep("loss", more)
        return more

    user.during = during


@effect
def what_a_forward_deletes_is_gone_at_once(user):
    class Deletes(nn.Module):
        def forward(self, x):
            made = x.exp()
            ref = weakref.ref(made)
            kept = made.detach().sum()
            del made
            user.saw("alive" if ref() is not None else "gone")
            return x * kept.sigmoid()

    user.net.append(Deletes())
    user.around_fit = without_collecting


@effect
def an_object_that_a_forward_deletes_is_gone_at_once(user):
    class Held:
        pass

    class Deletes(nn.Module):
        def forward(self, x):
            held = Held()
            ref = weakref.ref(held)
            x = torch.relu(x) + x
            del held
            user.saw("alive" if ref() is not None else "gone")
            return x

    user.net.append(Deletes())
    user.around_fit = without_collecting


@effect
def what_is_forgotten_calls_back(user):
    kept = []

    def during(output):
        kept.append(weakref.ref(output, lambda ref: user.saw("output is gone")))
        made = output.exp()
        kept.append(weakref.ref(made, lambda ref: user.saw("exp is gone")))
        return made.mean()

    user.during, user.around_fit = during, without_collecting


@effect
def a_detached_input_is_freed_without_gradients(user):
    def during(output):
        with torch.no_grad():
            made = user.net[4](output[:, [0, 1, 2, 3, 0, 1]])
            ref = weakref.ref(made)
            total = made.sum().item()
            del made
            user.saw(total, ref() is None)

    user.during, user.around_fit = during, without_collecting


@effect
def weak_references_to_weights_are_counted(user):
    user.during = lambda output: user.saw([weakref.getweakrefcount(p) for p in nn.Module.parameters(user.net)])


@effect
def references_to_outputs_are_counted(user):
    def exp(x):
        made = x.exp()
        user.saw(sys.getrefcount(made), torch._C._storage_Use_Count(made.untyped_storage()._cdata))
        return made

    user.net.append(Does(exp))
    user.during = lambda output: user.saw(sys.getrefcount(output))


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
def references_to_storages_are_counted(user):
    def during(output):
        made = output.exp()
        user.saw(torch._C._storage_Use_Count(made.untyped_storage()._cdata))
        user.saw([torch._C._storage_Use_Count(p.untyped_storage()._cdata) for p in nn.Module.parameters(user.net)])

    user.during = during


@effect
def tensors_with_a_graph_are_counted(user):
    def during(output):
        user.saw(sum(type(one) is torch.Tensor and one.grad_fn is not None for one in gc.get_objects()))

    user.during, user.around_fit = during, without_collecting


@effect
def the_collector_is_as_the_user_set_it(user):
    user.during = lambda output: user.saw(gc.isenabled(), gc.get_threshold(), gc.get_debug())


@effect
def the_collector_calls_back(user):
    def collected(phase, info):
        user.saw(phase, info["generation"]) if info["generation"] == 2 else None

    @surely
    def around():
        with without_collecting():
            gc.callbacks.append(collected)
            yield
            gc.callbacks.remove(collected)

    user.around_fit = around


@effect
def weights_of_an_average_are_swapped(user):
    average = copy.deepcopy(user.net)

    def during(output):
        with torch.no_grad():
            for mine, other in zip(average.parameters(), user.net.parameters(), strict=True):
                mine.lerp_(other, 0.5)
        torch.utils.swap_tensors(average[0].bias, nn.Parameter(torch.ones(6)))
        user.saw(average[0].bias.sum().item(), average(torch.ones(2, 4)).sum().item())

    user.during = during


@effect
def states_are_loaded_by_swapping(user):
    @surely
    def around():
        torch.__future__.set_swap_module_params_on_conversion(True)
        yield
        torch.__future__.set_swap_module_params_on_conversion(False)

    layer = nn.Linear(4, 4)
    user.net.aside = layer
    user.net.forward = lambda x: nn.Sequential.forward(user.net[:5], x)

    def during(output):
        layer(output.detach())
        layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})
        layer.double().float()
        user.saw(layer.bias.sum().item())

    user.around_fit, user.during = around, during


@effect
def a_storage_is_resized_in_a_forward(user):
    class Frees(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                made = x.detach().exp()
                total = made.sum()
                made.untyped_storage().resize_(0)
            user.saw(made.untyped_storage().size())
            return x * total.sigmoid()

    user.net.append(Frees())


@pytest.mark.parametrize(("make", "way"), effect.cases())
def test_user_code_sees_the_same_with_callbacks(make, way):
    assert_the_same_is_seen(make, way)
