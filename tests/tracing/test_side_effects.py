"""What the user's world sees of a fit is the same with and without HealthMonitor: no code of theirs runs twice.

Each effect below is a function that takes a list and returns what the training step does besides. The step adds to the
list what it sees; functions in the list are called when the fit is over.
"""

import io
import itertools
import logging
import os
import random
import tempfile
import threading
import warnings
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import parametrizations, parametrize, prune
from torch.quasirandom import SobolEngine
from torch.utils.data import DataLoader
from toys import Toy, batches, fit

from hookboard import HealthMonitor

pytestmark = pytest.mark.trains

STEPS = 3
EFFECTS = {}


def effect(make):
    EFFECTS[make.__name__] = make
    return make


class Affected(Toy):
    def __init__(self, make, seen, first_nan):
        super().__init__(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 4)))
        self.first_nan = first_nan
        self.during, self.seen = make(seen), seen

    def training_step(self, batch, batch_idx):
        output = self.net(batch)
        loss = mse_loss(output, batch)
        returned = self.during(self, output)
        if isinstance(returned, torch.Tensor):
            loss = loss + returned
        if batch_idx == self.first_nan:
            loss = loss / torch.zeros(())
        self.seen.append((batch_idx, float(loss.detach())))
        return loss

    def on_after_backward(self):
        self.seen.append([None if p.grad is None else p.grad.norm().item() for p in self.parameters()])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def effect_in_each_step(during):
    """An effect without anything of its own that lasts."""
    EFFECTS[during.__name__] = lambda seen: partial(during, seen)
    return during


def world_after(make, first_nan, *callbacks):
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    seen = []
    model = Affected(make, seen, first_nan)
    fit(None, model, batches(*[8] * STEPS), *callbacks)
    draws = torch.rand(1).item(), random.random(), np.random.rand()
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    return repr([one() if callable(one) else one for one in seen]), repr(weights), draws


@effect_in_each_step
def nothing(seen, model, output):
    pass


# What Python has.


@effect
def containers_change_and_numbers_are_drawn(seen):
    numbers, held, array, stream = itertools.count(), [], np.zeros(2), io.StringIO()
    seen += [lambda: held, lambda: array.tolist(), stream.getvalue]
    sobol, of_torch, of_numpy = SobolEngine(2), torch.Generator().manual_seed(1), np.random.default_rng(1)
    order = iter(DataLoader(range(9), shuffle=True))

    def during(model, output):
        seen.append(next(numbers))
        held.append(len(seen))
        np.add(array, len(seen), out=array)
        stream.write("x")
        seen.append((sobol.draw(1).tolist(), torch.rand(1, generator=of_torch).item(), of_numpy.random()))
        seen.append((torch.rand(1).item(), np.random.rand(), random.random(), next(order).item()))

    return during


@effect_in_each_step
def it_prints_and_logs(seen, model, output):
    print("a step")
    logging.getLogger("of the user").warning("a step")
    model.log("mean", output.mean(), batch_size=8)
    seen.append(float(model.trainer.callback_metrics.get("mean", -1)))


@effect
def it_warns_and_torch_warns_of_its_line_and_once_for_a_line(seen):
    caught = []
    showing = warnings.showwarning

    def show(message, category, filename, lineno, *rest):
        caught.append((str(message), os.path.basename(filename), lineno))

    def during(model, output):
        warnings.showwarning = show
        globals().pop("__warningregistry__", None)
        try:
            for action in ("always", "default"):
                with warnings.catch_warnings():
                    warnings.simplefilter(action)
                    warnings.warn("of the user", stacklevel=1)
                    for _ in range(3):
                        mse_loss(output, output.detach()[:1])  # of another shape
        finally:
            warnings.showwarning = showing

    seen.append(lambda: caught)
    return during


@effect
def files_are_written_and_a_thread_computes(seen):
    lines, tensors = tempfile.mktemp(), tempfile.mktemp()

    def during(model, output):
        with open(lines, "a") as file:
            file.write("a step\n")
        torch.save([*(torch.load(tensors) if os.path.exists(tensors) else []), 1], tensors)
        seen.append(len(torch.load(tensors)))
        thread = threading.Thread(target=lambda: seen.append(torch.ones(2).sum().item()))
        thread.start()
        thread.join()

    seen.append(lambda: os.path.getsize(lines))
    return during


# What belongs to torch.


@effect_in_each_step
def hooks_change_gradients_and_count(seen, model, output):
    output.register_hook(lambda grad: seen.append("hook") or grad * 2)
    model.net[0].weight.register_post_accumulate_grad_hook(lambda weight: seen.append("hook"))


@effect_in_each_step
def hooks_on_modules_are_registered(seen, model, output):
    model.net[0].register_forward_hook(lambda module, args, output: seen.append("hook") or output * 1.1)
    model.net[3].register_full_backward_hook(lambda *args: seen.append("hook") and None)


@effect_in_each_step
def saved_tensors_are_packed(seen, model, output):
    pack = lambda tensor: seen.append("pack") or tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: seen.append("unpack") or tensor):
        return model.net(output).square().mean()


@effect_in_each_step
def a_checkpointed_block_runs(seen, model, output, use_reentrant=False):
    def block(x):
        seen.append("block")
        return x.exp().mean()

    return torch.utils.checkpoint.checkpoint(block, output, use_reentrant=use_reentrant)


@effect_in_each_step
def a_block_is_checkpointed_the_old_way(seen, model, output):
    return a_checkpointed_block_runs(seen, model, output, use_reentrant=True)


class Scales(torch.autograd.Function):
    scale = 1.0

    @staticmethod
    def forward(ctx, x):
        Scales.scale *= 0.5
        return x * Scales.scale

    @staticmethod
    def backward(ctx, grad):
        Scales.scale *= 1.5
        return grad * Scales.scale


@effect
def a_function_of_autograd_counts(seen):
    Scales.scale = 1.0

    def during(model, output):
        loss = Scales.apply(output).mean()
        seen.append(Scales.scale)
        return loss

    return during


@effect
def the_model_keeps_a_buffer_a_weight_and_an_average(seen):
    averages = {}

    def during(model, output):
        if not hasattr(model, "late"):
            model.late = nn.Parameter(torch.rand(4))
            model.register_buffer("steps", torch.zeros(()))
        model.steps += 1
        with torch.no_grad():
            for name, weight in model.named_parameters():
                averages.setdefault(name, torch.zeros_like(weight)).lerp_(weight, 0.1)
        seen.append([value.sum().item() for value in averages.values()])
        return (output * model.late).mean()

    return during


@effect
def an_optimizer_of_its_own_steps(seen):
    extra = nn.Parameter(torch.ones(4))
    own = torch.optim.Adam([extra], lr=0.1)

    def during(model, output):
        own.zero_grad()
        (extra - output.detach()).square().mean().backward()
        own.step()
        seen.append(extra.tolist())

    return during


@effect
def a_layer_is_reparametrized_in_the_first_step_and_another_is_pruned(seen):
    layer, pruned, calls = nn.Linear(4, 4), nn.Linear(4, 4), itertools.count()

    def during(model, output):
        if next(calls) == 0:
            parametrizations.weight_norm(layer)
        prune.l1_unstructured(pruned, "weight", amount=0.25)
        seen.append((parametrize.is_parametrized(layer), pruned.weight_mask.sum().item()))
        return pruned(layer(output)).mean()

    return during


@effect_in_each_step
def a_mode_of_the_users_counts(seen, model, output):
    class Counts(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in (torch.nn.functional.linear, torch.nn.functional.batch_norm):  # not what hooks call
                seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Counts():
        loss = model.net(output).square().mean()
    seen.append(len(torch.overrides._get_current_function_mode_stack()) < 2)
    return loss


@effect_in_each_step
def a_mode_of_dispatch_counts(seen, model, output):
    class Counts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Counts():
        return model.net(output).square().mean()


class Counting(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@effect
def a_subclass_of_tensor_counts(seen):
    Counting.calls = 0

    def during(model, output):
        loss = (output.as_subclass(Counting) * 2).mean()
        seen.append(Counting.calls)
        return loss.as_subclass(torch.Tensor)

    return during


@effect
def an_eval_layer_takes_its_fast_way(seen):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval().requires_grad_(False)

    def during(model, output):
        with torch.no_grad():
            seen.append(layer(output.detach()[None]).sum().item())

    return during


@effect
def graphs_are_freed(seen):
    held = []

    def during(model, output):
        seen.append(sum(ref() is not None for ref in held))
        held.append(weakref.ref(output))

    return during


def outside_of(make, first_nan, capsys, caplog, *callbacks):
    caplog.clear()
    capsys.readouterr()
    world = world_after(make, first_nan, *callbacks)
    said = capsys.readouterr()
    of_user = [one.message for one in caplog.records if one.name == "of the user"]
    return world, said.out.count("a step"), of_user


@pytest.mark.filterwarnings("ignore:.*model changed|Encountered .nan|.*fork|.*optimizer.step|.*The .grad attribute")
@pytest.mark.parametrize("first_nan", [None, 1], ids=["in a healthy training", "around the first NaN"])
@pytest.mark.parametrize("name", EFFECTS)
def test_the_world_sees_the_same_with_a_monitor(name, first_nan, capsys, caplog):
    unpacks = name in ("saved_tensors_are_packed", "a_checkpointed_block_runs")
    if unpacks and not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
        pytest.skip("torch 2.6 does not tell whether hooks pack what it saves, see limits.md")
    make = EFFECTS[name]
    bare = outside_of(make, first_nan, capsys, caplog)
    monitor = HealthMonitor(nonfinite="exact")
    assert outside_of(make, first_nan, capsys, caplog, monitor) == bare
    assert ("nonfinite" in {verdict.rule for verdict in monitor.verdicts}) is (first_nan is not None)
