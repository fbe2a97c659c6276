import copy
import io
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Mapping

import pytest
import torch
from torch import nn
from toys import encoder, hooked, sequences

from hookboard import capture
from hookboard.measure.taps import Taps
from hookboard.model.selection import select
from hookboard.model.sites import Site


class Seen(dict):
    """Keeps a copy of every tensor that passes, by site."""

    def open(self, site):
        return lambda tensor: self.setdefault(site, []).append(tensor.detach().clone())

    def paths(self, role="output"):
        return {site.path for site in self if site.role == role}


def tapped(modules, roles=("output",), **options):
    seen = Seen()
    if isinstance(modules, nn.Module):
        modules = select(modules)
    taps = Taps(modules, roles, seen.open, **options)
    taps.attach()
    taps.active = True
    return taps, seen


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, *args, **kwargs):
        return self.make(*args, **kwargs)


def test_tensors_pass_as_they_were_before_an_in_place_operation():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    _, seen = tapped(net, ["input", "output"])
    x = torch.randn(3, 4)
    net(x)
    true = net[0](x).detach()
    assert true.min() < 0
    assert seen[Site("0", "output")][0].equal(true)
    assert seen[Site("1", "input")][0].equal(true)


@pytest.mark.parametrize(
    ("args", "kwargs", "paths"),
    [
        ((torch.ones(1),), {}, {"m"}),
        ((torch.ones(1), torch.ones(1)), {}, {"m/0", "m/1"}),
        ((), {"x": torch.ones(1)}, {"m/x"}),
        ((torch.ones(1),), {"mask": torch.ones(1)}, {"m/0", "m/mask"}),
        (((torch.ones(1), torch.ones(1)),), {}, {"m/0", "m/1"}),
    ],
    ids=["one", "two", "keyword", "both", "tuple"],
)
def test_inputs_are_named_as_they_are_passed(args, kwargs, paths):
    _, seen = tapped({"m": (module := Returns(lambda *a, **k: torch.ones(1)))}, ["input"])
    module(*args, **kwargs)
    assert seen.paths("input") == paths


def test_the_outputs_of_an_inactive_tap_pass_unseen():
    net = nn.Sequential(nn.Linear(1, 1))
    taps, seen = tapped(net, ["input", "output", "grad_output", "grad_input"])
    taps.active = False
    net(torch.ones(1, 1, requires_grad=True)).sum().backward()
    assert not seen


def test_detaching_leaves_no_hook_and_silences_graphs_that_live_on():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    taps, seen = tapped(net, ["output", "input", "grad_output", "grad_input"])
    loss = net(torch.ones(1, 2, requires_grad=True)).sum()
    taps.detach()
    taps.detach()
    seen.clear()
    loss.backward()
    assert not hooked(net)
    assert not seen


def two_stages(net):
    """Taps of two stages on the same modules, attached and not active, with what each has seen."""
    here, there = Seen(), Seen()
    training, evaluation = (Taps(select(net), ("output", "grad_output"), seen.open) for seen in (here, there))
    training.attach()
    evaluation.attach()
    return (training, here), (evaluation, there)


def call(net, number):
    net(torch.full((1, 2), float(number), requires_grad=True) * 1).sum().backward()


def test_of_two_stages_those_that_are_active_see_a_call():
    net = nn.Sequential(nn.Identity())
    (training, here), (evaluation, there) = two_stages(net)
    for number, active in enumerate([[training], [evaluation], [training, evaluation], []]):
        for taps in active:
            taps.active = True
        call(net, number)
        for taps in active:
            taps.active = False
    assert [t[0, 0].item() for t in here[Site("0", "output")]] == [0.0, 2.0]
    assert [t[0, 0].item() for t in there[Site("0", "output")]] == [1.0, 2.0]
    assert len(here[Site("0", "grad_output")]) == len(there[Site("0", "grad_output")]) == 2


def test_a_gradient_goes_to_the_stage_in_which_its_output_came():
    net = nn.Sequential(nn.Linear(2, 2))
    (training, here), (evaluation, there) = two_stages(net)
    training.active = True
    loss = net(torch.ones(1, 2)).sum()
    evaluation.active = True
    net(torch.ones(1, 2))
    loss.backward()
    assert len(here[Site("0", "grad_output")]) == 1
    assert Site("0", "grad_output") not in there


@pytest.mark.parametrize("first", [0, 1])
def test_a_stage_that_ends_leaves_the_hooks_to_the_other(first):
    net = nn.Sequential(nn.Linear(2, 2))
    stages = two_stages(net)
    (ending, _), (staying, seen) = stages[first], stages[1 - first]
    ending.detach()
    staying.active = True
    call(net, 1)
    assert len(seen[Site("0", "output")]) == 1
    staying.detach()
    assert not hooked(net)


def added(module, number, **options):
    return module.register_forward_hook(lambda module, args, output: output + number, **options)


def test_idle_hooks_keep_their_place_among_those_of_others():
    net = nn.Sequential(nn.Identity())
    added(net[0], 1)
    first, early = tapped(net)
    added(net[0], 10)
    second, late = tapped(net)
    for taps in (first, second):
        taps.active = False
    added(net[0], 100)
    added(net[0], 1000, prepend=True)
    for taps in (second, first):
        taps.active = True
    assert net(torch.zeros(1)).item() == 1111
    assert [t.item() for t in early[Site("0", "output")]] == [1001.0]
    assert [t.item() for t in late[Site("0", "output")]] == [1011.0]


def test_other_threads_call_a_model_while_taps_are_switched_on_and_off():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    x, failed, is_over = torch.ones(1, 2), [], threading.Event()
    true = net(x)

    def call_on():
        try:
            while not is_over.is_set():
                assert torch.equal(net(x), true)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=call_on) for _ in range(3)]
    switched, interval = time.monotonic() + 0.3, sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    taps, _ = tapped(net, ["input", "output", "grad_input"])
    try:
        while time.monotonic() < switched:
            taps.active = not taps.active
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        for thread in threads:
            thread.join()
        taps.detach()
    assert failed == []


def test_an_output_that_is_a_parameter_keeps_no_hook_and_is_named():
    weight = nn.Parameter(torch.ones(2))
    taps, seen = tapped({"m": (module := Returns(lambda: weight))}, ["grad_output", "grad_input"])
    module().sum().backward()
    assert not seen
    assert not weight._backward_hooks
    assert "the output is a parameter" in taps.why_silent("m", "grad_output")


def silent(modules, role, run):
    taps, _ = tapped(modules, [role])
    run()
    return taps.why_silent("m", role)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:.*torch.jit:FutureWarning")
def test_why_a_module_was_silent_is_established():
    linear, x = nn.Linear(1, 1), torch.ones(1, 1)
    frozen = nn.Linear(1, 1).requires_grad_(False)
    scripted = torch.jit.script(nn.Linear(1, 1))
    argmax, text = Returns(lambda x: x.argmax()), Returns(lambda x: "text")

    def no_grad():
        with torch.no_grad():
            linear(x)

    assert "was not called (or" in silent({"m": linear}, "output", lambda: None)
    assert "forward was called directly" in silent({"m": linear}, "output", lambda: linear.forward(x).sum().backward())
    assert "TorchScript" in silent({"m": scripted}, "output", lambda: scripted(x))
    assert "under torch.no_grad()" in silent({"m": linear}, "grad_output", no_grad)
    assert "frozen" in silent({"m": frozen}, "grad_output", lambda: frozen(x))
    assert "int64, a dtype that cannot have a gradient" in silent({"m": argmax}, "grad_output", lambda: argmax(x))
    assert "returned str, which contains no tensor" in silent({"m": text}, "output", lambda: text(x))
    assert "the loss does not depend on the tensor" in silent({"m": linear}, "grad_output", lambda: linear(x))
    assert "the input does not require a gradient" in silent({"m": linear}, "grad_input", lambda: linear(x))


def test_a_fault_in_opening_an_output_is_said_once_and_training_goes_on():
    class Broken(Mapping):
        def items(self):
            raise RuntimeError("no items today")

        __getitem__ = __iter__ = __len__ = items

    _, seen = tapped({"m": (module := Returns(lambda: Broken()))})
    with pytest.warns(UserWarning, match=r"module 'm' is switched off.*no items today"):
        module()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module()
    assert not seen


def test_a_copied_and_a_pickled_model_see_nothing():
    net = nn.Sequential(nn.Linear(1, 1))
    _, seen = tapped(net)
    saved = io.BytesIO()
    torch.save(net, saved)
    saved.seek(0)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(saved, weights_only=False)):
        twin(torch.ones(1, 1))
    assert not seen


@pytest.mark.compiles
def test_a_compiled_module_is_left_alone():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    taps, seen = tapped(net, ["output", "grad_output"])
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(1, 2)).sum().backward()
    assert not seen
    assert "compiled" in taps.why_silent("0", "output")


class Retries(nn.Module):
    """Calls itself, which fails, and goes on without."""

    def forward(self, x, inner=False):
        if inner:
            raise ValueError("on purpose")
        try:
            self(x * 5, inner=True)
        except ValueError:
            return 2 * x


def test_a_call_inside_a_call_that_fails_leaves_the_outer_one_right():
    net = nn.Sequential(Retries())
    taps, seen = tapped(net, ["grad_input", "output"])
    x = torch.ones(3, requires_grad=True)
    net(x).sum().backward()
    taps.detach()
    assert [grad.tolist() for grad in seen[Site("0", "grad_input")]] == [[2.0, 2.0, 2.0]]


def test_a_gradient_from_before_is_not_taken_for_one_that_came_without_a_call():
    net = nn.Sequential(nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()
    taps, _ = tapped(net)
    taps.detach()
    assert "received a gradient" not in taps.why_silent("0", "output")


TELLS_EXPORT = pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 does not tell that it exports"
)


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    "written",
    [
        lambda net, x: torch.jit.trace(net, x).code,
        pytest.param(lambda net, x: torch.export.export(net, (x,), strict=True).graph_module.code, marks=TELLS_EXPORT),
    ],
    ids=["jit.trace", "export"],
)
def test_what_torch_writes_down_of_a_model_in_a_measured_step_holds_nothing_of_ours(written):
    net, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)
    plain = written(net, x)
    taps = Taps({"0": net[0], "1": net[1]}, ["input", "output", "grad_output"], lambda site: id, in_graphs=True)
    taps.attach()
    taps.active = True
    assert written(net, x) == plain
    taps.detach()


# Layers that torch runs as one operation unless a module in them has a hook.


def tapped_inside(net):
    modules = {name: part for name, part in net.named_modules() if name}
    return tapped(modules, ["input", "output"], model=net)


def test_in_evaluation_the_layer_stays_one_operation_and_its_modules_are_named():
    net, x = encoder().eval(), sequences(3)[0]
    with torch.no_grad():
        bare = net(x)
        taps, seen = tapped_inside(net)
        assert torch.equal(net(x), bare)
    assert seen == {}
    for name in ("layers.0", "layers.0.linear1"):
        assert "an nn.TransformerEncoderLayer, and all inside it, as one operation" in taps.why_silent(name, "output")
    taps.detach()


def test_an_idle_hook_is_not_on_the_layer():
    net = encoder()
    taps, _ = tapped_inside(net)
    assert "layers.0.linear1" in hooked(net)
    taps.active = False
    assert [name for name in hooked(net) if name != "layers"] == []
    taps.detach()


def test_capture_shows_every_module_though_torch_would_call_none():
    net, x = encoder().eval(), sequences(3)[0]
    with torch.no_grad(), capture(net) as seen:
        net(x)
    assert seen["layers.0.linear1"].output.shape == (3, 5, 16)
