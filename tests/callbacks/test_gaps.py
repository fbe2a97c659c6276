"""What is selected and not measured is named once, with the cause."""

import re

import pytest
import torch
from callbacks.heard import warnings_of
from callbacks.user_program import Does
from torch import nn
from toys import Toy, batches, fit, mlp

from hookboard import (
    ActivationLogger,
    GradientLogger,
    HealthMonitor,
    Intervention,
    KernelLogger,
    ParameterLogger,
    Scale,
    watch,
)


class Odd(nn.Module):
    """Every way of not being measured."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.never_called = nn.Linear(4, 4)
        self.called_directly = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.teacher = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
        self.argmax, self.describe, self.empty = Does(lambda x: x.argmax(-1)), Does(str), Does(lambda x: x[:0])
        self.scripted = torch.jit.script(nn.Linear(4, 4))

    def forward(self, x):
        self.describe(self.argmax(self.frozen(x)))
        with torch.no_grad():
            self.teacher(x)
        self.empty(x)
        y = self.scripted(self.called_directly.forward(self.used(x)))
        return self.attention(y[None], y[None], y[None])[0]


def causes(message):
    """Name to cause."""
    lines = re.findall(r"\n  - (.*?): (\w+: .*)", message)
    return {name: cause for names, cause in lines for name in names.split(", ")}


def test_a_module_of_which_one_output_is_empty_has_something_to_measure(tmp_path):
    class Two(nn.Linear):
        def forward(self, x):
            return super().forward(x), x[:, :0]

    model = Toy(Two(4, 3), loss=lambda two: two[0].square().mean())
    assert not warnings_of(lambda: fit(tmp_path, model, batches(4, 4), ActivationLogger("net", every_n_steps=1)))


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:.*torch.jit:FutureWarning")
def test_every_gap_is_named_once_with_its_cause(tmp_path):
    net = Odd()
    forward = ActivationLogger(every_n_steps=1)
    backward = GradientLogger(every_n_steps=1)
    selected = ActivationLogger("net.used", every_n_steps=1)
    messages = warnings_of(lambda: fit(tmp_path, Toy(net), batches(4, 4, 4), forward, backward, selected))
    assert len(messages) == 2
    in_forward, in_backward = map(causes, messages)

    unseen = {"never_called", "called_directly", "describe", "scripted", "empty"}
    assert in_forward.keys() == {f"net.{name}" for name in unseen}
    assert "was not called (or" in in_forward["net.never_called"]
    assert "its forward was called directly" in in_forward["net.called_directly"]
    assert "returned str, which contains no tensor" in in_forward["net.describe"]
    assert "TorchScript" in in_forward["net.scripted"]
    assert "every tensor was empty" in in_forward["net.empty"]

    assert "frozen" in in_backward["net.frozen"]
    assert "under torch.no_grad()" in in_backward["net.teacher"]
    assert "int64, a dtype that cannot have a gradient" in in_backward["net.argmax"]
    assert "net.used" not in in_backward


@pytest.mark.parametrize(
    ("selected", "is_said"), [({}, False), ({"types": "Linear"}, False), ({"modules": "**.out_proj"}, True)]
)
def test_weights_that_attention_uses_itself_are_a_gap_only_if_they_are_named(tmp_path, selected, is_said):
    net = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 2))
    logger = ActivationLogger(**selected, every_n_steps=1)
    data = [torch.randn(4, 3, 4) for _ in range(2)]
    messages = warnings_of(lambda: fit(tmp_path, Toy(net), data, logger))
    if is_said:
        (message,) = messages
        assert "as nn.MultiheadAttention does" in causes(message)["net.0.self_attn.out_proj"]
    else:
        assert messages == []
        measured = {reading.site.name for reading in logger.readings}
        assert ("net.0.self_attn" in measured) == (not selected)


def test_parameters_without_a_gradient_or_an_update_are_named(tmp_path):
    class LeavesOneOut(nn.Sequential):
        def forward(self, x):
            return self[0](self[1](x))

    gradients = GradientLogger(roles="parameter_grad", every_n_steps=1)
    model = Toy(LeavesOneOut(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)))
    trained = [*model.net[0].parameters(), *model.net[2].parameters()]
    model.configure_optimizers = lambda: torch.optim.SGD(trained, lr=0.1)
    of_gradients, of_updates = warnings_of(
        lambda: fit(tmp_path, model, batches(4), gradients, ParameterLogger(every_n_steps=1))
    )
    assert causes(of_gradients).keys() == {"net.1.weight", "net.1.bias", "net.2.weight", "net.2.bias"}
    assert "frozen" in causes(of_gradients)["net.1.bias"]
    assert "received no gradient" in causes(of_gradients)["net.2.bias"]
    assert causes(of_updates).keys() == {"net.1.weight", "net.1.bias"}


def test_updates_are_measured_up_to_the_cap_and_the_others_are_named_once(tmp_path, monkeypatch):
    # The parameters of `mlp()` have 128, 32, 96 and 12 bytes.
    monkeypatch.setattr("hookboard.callbacks.measurement_state.MOST_COPIED_BYTES", 180)
    callback = ParameterLogger(every_n_steps=1)
    (said,) = warnings_of(lambda: fit(tmp_path, Toy(mlp()), batches(4, 4, 4), callback))
    assert "1 of 8 sites had nothing to measure" in said
    assert causes(said)["net.2.weight"].startswith("parameter_update: copies of all parameters")
    measured = {(reading.site.role, reading.site.name) for reading in callback.readings}
    names = {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
    assert {name for role, name in measured if role == "parameter"} == names
    assert {name for role, name in measured if role == "parameter_update"} == names - {"net.2.weight"}


@pytest.mark.parametrize("options", [{"logger": False}, {"fast_dev_run": True}], ids=str)
def test_without_a_log_nothing_is_measured_and_one_line_says_so(tmp_path, options, lines):
    callback = ActivationLogger(every_n_steps=1)
    fit(tmp_path, Toy(mlp()), batches(4), callback, **options)
    assert callback.readings == ()
    assert sum("ActivationLogger measures nothing" in line for line in lines) == 1


NOTHING_DUE = [
    (ActivationLogger(), 0, "ActivationLogger measured nothing in train: the fit took 2 steps, but every_n_steps is 0"),
    (HealthMonitor(), 0, "HealthMonitor measured nothing in train: the fit took 2 steps, but every_n_steps is 0."),
    (KernelLogger(), 0, "KernelLogger showed nothing: the fit took 2 steps, but every_n_steps is 0."),
    (ActivationLogger(every_n_steps=9), 1, "measured nothing in train: the fit took 2 steps, but every_n_steps is 9."),
    (ActivationLogger(stages="validate"), 1, "nothing in validate: the fit ran no validate loop after its start."),
]


@pytest.mark.parametrize(("callback", "trainer_logs", "line"), NOTHING_DUE)
def test_a_fit_in_which_nothing_is_due_says_so_once(tmp_path, callback, trainer_logs, line, lines):
    net = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2))
    fit(tmp_path, Toy(net), batches(4, 4), callback, log_every_n_steps=trainer_logs)
    assert "".join(lines).count(line) == 1


def test_a_loop_that_tells_no_batch_is_told_what_to_call(lines):
    net = mlp()
    with watch(net, torch.optim.SGD(net.parameters(), 0.1), HealthMonitor()):
        net(batches(4)[0]).sum().backward()
    assert "HealthMonitor measured nothing in train: no batch was trained inside `run.step`." in lines


def test_a_logger_that_lightning_has_put_there_for_fast_dev_run_is_not_written_to():
    fit(None, Toy(mlp()), batches(4), Intervention(Scale(0.5), "net.0"), fast_dev_run=True, logger=True)
