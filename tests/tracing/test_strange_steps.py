"""Steps that do what few do: the trace does not change them, keeps nothing of them, and reads them all the same."""

import gc
import sys
import threading
import warnings
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from toys import newer_torch
from tracing import steps

from hookboard import HealthMonitor, watch

X, CLASSES = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def net(*last):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), *last)


def faulty():
    return net(nn.Softmax(1))


def loss_of(model):
    return cross_entropy(model(X), CLASSES)


watched = partial(steps.watched, batch=(X, CLASSES))


def said(monitor, rule):
    return [verdict.evidence for verdict in monitor.verdicts if verdict.rule == rule]


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_from_before_the_step_may_end_inside_of_it():
    mode = Mode()

    def loss(model):
        computed = loss_of(model)
        mode.__exit__(None, None, None)
        return computed

    mode.__enter__()
    found = said(watched(faulty(), loss), "loss_input")
    assert _get_current_function_mode_stack() == []
    assert "test_strange_steps.py" in found[0]


def test_a_line_is_not_that_of_a_mode_of_the_user():
    def loss(model):
        with Mode():
            return loss_of(model)

    line = loss_of.__code__.co_firstlineno + 1
    assert f"test_strange_steps.py:{line}" in said(watched(faulty(), loss), "loss_input")[0]


def test_a_default_device_may_be_set_and_taken_back_inside_of_the_step():
    def loss(model):
        torch.set_default_device("cpu")
        with torch.device("meta"):
            computed = loss_of(model)
        assert torch.zeros(1).device.type == "cpu"
        torch.set_default_device(None)
        return computed

    assert said(watched(faulty(), loss, loss), "loss_input")
    assert _get_current_function_mode_stack() == []


@newer_torch
@pytest.mark.compiles
def test_attention_in_evaluation_is_compiled_whole():
    torch._dynamo.reset()
    frozen = nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)
    compiled = torch.compile(lambda x: frozen(x, x, x)[0], backend="aot_eager", fullgraph=True)
    graphs = []

    def loss(model):
        given = compiled(X[:, None])[:, 0]
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        return cross_entropy(model(given), CLASSES)

    watched(net(), loss, loss)
    assert graphs[0] == graphs[1]


def test_a_step_is_inspected_for_one_monitor_and_another_says_so(caplog):
    model, first, second = faulty(), HealthMonitor(every_n_steps=1), HealthMonitor(every_n_steps=1)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), [first, second]) as run, run.step((X, CLASSES)):
        loss_of(model).backward()
    assert [bool(said(monitor, "loss_input")) for monitor in (first, second)] == [True, False]
    assert "the training step was not inspected: another HealthMonitor inspects it." in caplog.text


def inside_vmap(model):
    weights = torch.nn.functional.one_hot(CLASSES, 3)
    return -torch.vmap(lambda row, weight: (row.softmax(-1).log() * weight).sum())(model(X), weights).mean()


def on_meta(model):
    nn.functional.linear(torch.empty(2, 4, device="meta"), torch.empty(3, 4, device="meta"))
    return loss_of(model)


def traced(model):
    return torch.fx.experimental.proxy_tensor.make_fx(lambda x: cross_entropy(x, CLASSES))(model(X))(model(X))


def of_nothing(model):
    return cross_entropy(model(X[:0]), CLASSES[:0], reduction="sum") + nn.functional.l1_loss(
        model(X[:0]), X[:0, :3], reduction="sum"
    )


@pytest.mark.parametrize("loss", [inside_vmap, on_meta, traced, of_nothing])
def test_tensors_without_values_end_no_rule(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(net(), loss)


def test_a_warning_names_the_line_that_it_names_without_the_trace():
    def warned(audit):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watched(net(nn.Softmax()), loss_of, audit=audit)
        return [(one.filename, one.lineno) for one in caught if "Implicit dimension" in str(one.message)]

    assert warned(True) == warned(False) != []


class Scaled(nn.Module):
    """Gives its weight to a function that returns it as it is, and cuts a copy of it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))

    def forward(self, x):
        with torch.no_grad():
            scale = self.weight.norm()
        return nn.functional.linear(x, self.weight.float().contiguous() / scale)


def test_a_weight_is_known_after_a_call_that_returns_it():
    assert not said(watched(Scaled(), loss_of), "cut")


def test_the_line_of_another_thread_is_not_guessed():
    def loss(model, shift=0.0):
        found = []

        def work():
            found.append((model(X).softmax(1) - shift).log().mean())

        thread = threading.Thread(target=work)
        thread.start()
        square = model(X).square().mean()
        thread.join()
        return found[0] + square

    (evidence,) = said(watched(net(), loss, lambda model: loss(model, 5.0)), "nonfinite")
    assert "came from log()" in evidence
    assert ".py" not in evidence


def test_what_is_frozen_while_its_loss_is_judged_is_not_frozen():
    model = net()
    model[0] = nn.Sequential(model[0], nn.Dropout(0.1))
    optimizer, monitor = torch.optim.SGD(model.parameters(), lr=0.1), HealthMonitor(every_n_steps=1)
    with watch(model, optimizer, [monitor]) as run, run.step((X, CLASSES)):
        model[0].requires_grad_(False)
        loss_of(model).backward()
        model[0].requires_grad_(True)
    assert not said(monitor, "eval_mode")


class Deletes(nn.Module):
    """Deletes a tensor, and passes its locals on."""

    def __init__(self):
        super().__init__()
        self.layer, self.is_alive = nn.Linear(4, 3), None

    def forward(self, x, scale=1.0):
        copy = x.clone()
        reference = weakref.ref(copy)
        copy.sum()
        del copy
        self.is_alive = reference() is not None
        kwargs = locals()
        del kwargs["self"], kwargs["reference"]
        x.sum()
        return self.scaled(**kwargs)

    def scaled(self, x, scale):
        return self.layer(x) * scale


def test_what_a_forward_deletes_is_gone_and_what_locals_has_returned_stays_as_it_is():
    model = Deletes()
    watched(model, loss_of)
    assert model.is_alive is False


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("is_after", [False, True], ids=["before the backward pass", "after it"])
def test_tensors_may_be_swapped(is_after, swapping):
    def change(model, x):
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(model[0].weight.detach() * 2))
        torch.utils.swap_tensors(x.clone(), x * 2)
        torch.utils.swap_tensors(x, x * 2)

    def seen(*callbacks):
        model, x = net(), X.clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, optimizer, callbacks) as run, run.step(x):
            if not is_after:
                change(model, x)
            cross_entropy(model(x), CLASSES).backward()
            optimizer.step()
            if is_after:
                change(model, x)
        return [one.tolist() for one in (x, *model.parameters())]

    assert seen(HealthMonitor()) == seen()


@pytest.mark.filterwarnings("ignore:.*not inspected")
def test_the_trace_takes_no_more_than_two_frames_of_pythons_limit():
    def called_at(depth):
        return called_at(depth - 1) if depth else X * 2

    def fits(depth):
        try:
            return called_at(depth) is not None
        except RecursionError:
            return False

    def followed(depth):
        model = net()
        with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), [HealthMonitor()]) as run, run.step(X):
            found = fits(depth)
            loss_of(model).backward()
        return found

    most = max(depth for depth in range(sys.getrecursionlimit()) if fits(depth))
    assert all(map(followed, range(most - 40, most - 2)))  # `followed` itself is one more frame


@pytest.mark.parametrize("put", [sys.settrace, sys.setprofile])
def test_a_tracer_sees_no_calls_in_the_users_file_but_the_users(put):
    def seen(audit):
        calls = []

        def note(frame, event, argument):
            if event == "call" and frame.f_code.co_filename == __file__:
                calls.append(frame.f_code.co_name)

        def loss(model):
            before = sys.gettrace() if put is sys.settrace else sys.getprofile()
            put(note)
            try:
                return loss_of(model)
            finally:
                put(before)

        watched(net(), loss, audit=audit)
        return calls

    assert seen(True) == seen(False) == ["loss_of"]


def test_the_first_batch_and_the_tensors_of_its_step_are_gone_after_it():
    model = net()
    gc.disable()
    try:
        with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), [HealthMonitor()]) as run:
            x = X.clone()
            with run.step(x):
                output = model(x)
                cross_entropy(output, CLASSES).backward()
            references = weakref.ref(x), weakref.ref(output)
            del x, output
            assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


class Logarithm(nn.Module):
    def forward(self, x):
        return x.log()


@pytest.mark.parametrize(
    "differently",
    [
        lambda model, x: model(x - 100).mean() + 0.1 * model[0].weight.square().mean(),
        lambda model, x: model(x * model[0].bias.mean() - 100).mean(),
    ],
    ids=["at its end", "at its begin"],
)
def test_the_first_nan_has_its_layer_and_line_where_a_step_is_not_just_like_the_first(differently):
    model = nn.Sequential(nn.Linear(4, 3), Logarithm(), nn.Linear(3, 1))
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.constant_(model[0].bias, 1.0)
    (evidence,) = said(
        watched(model, lambda model: model(X.abs()).mean(), lambda model: differently(model, X)), "nonfinite"
    )
    assert f"log() at test_strange_steps.py:{Logarithm.forward.__code__.co_firstlineno + 1} in '1'" in evidence


@pytest.mark.parametrize("is_nan", [False, True])
def test_a_graph_of_many_nodes_is_not_looked_through(is_nan):
    """Torch would free the nodes that Python has seen within each other, until the stack overflows."""

    def loss(model):
        output = model(X)
        for _ in range(50_000):
            output = output * 1.0
        return output.mean() / (0 if is_nan else 1)

    monitor = watched(net(), loss, audit=not is_nan)
    assert len(said(monitor, "nonfinite")) == is_nan
