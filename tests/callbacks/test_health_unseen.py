"""What `HealthMonitor` says of layers that gave it no output."""

import pytest
import torch
from torch import nn
from toys import Toy, batches, encoder, fit, mlp, sequences

from hookboard import HealthMonitor

pytestmark = pytest.mark.filterwarnings("ignore:Found .* in eval mode at the start of training")


class Student(Toy):
    """Learns what a frozen encoder says."""

    def __init__(self):
        super().__init__(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
        self.teacher = encoder().eval().requires_grad_(False)

    def training_step(self, batch):
        with torch.no_grad():
            taught = self.teacher(batch)
        return (self.net(batch) - taught).square().mean()


class Attends(nn.Module):
    """Its nn.MultiheadAttention uses the weights of its `out_proj` by itself."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0])


class Fickle(nn.Module):
    """Calls its second layer from the third call on."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        x = self.first(x)
        return self.second(x) if self.calls > 2 else x


class Holds(Toy):
    """Weights of its own and in a list, which nobody calls."""

    def __init__(self):
        super().__init__(nn.Linear(4, 4))
        self.scale, self.shifts = nn.Parameter(torch.ones(4)), nn.ParameterList([torch.zeros(4)])

    def training_step(self, batch):
        return super().training_step(batch * self.scale + self.shifts[0])


@pytest.fixture
def judged(lines):
    """Trains with a monitor; returns what it said last, in one line."""

    def train(model, data, *modules):
        fit(None, model, data, HealthMonitor(*modules))
        return " ".join(lines[-1].split())

    return train


def test_layers_that_torch_runs_as_one_operation_are_not_counted_as_looked_at_and_named_with_the_cause(judged):
    model = Student()
    said = judged(model, sequences(*[4] * 6))
    below = [n for n, m in model.teacher.named_modules() if n.count(".") >= 2 and not isinstance(m, nn.ModuleList)]
    assert f"in 3 layers, measured 6 times from step 0 to 5; {len(below)} more layers produced no output." in said
    assert (
        "In the measured steps, no output was seen from "
        "teacher.**, because the module was not called (or its forward was called directly" in said
    )
    assert "torch runs an nn.TransformerEncoderLayer, and all inside it, as one operation in evaluation)." in said


def test_a_layer_whose_weights_its_parent_uses_is_named_as_that_if_a_pattern_selects_it(judged):
    said = judged(Toy(Attends()), sequences(*[4] * 6), ["net.attention", "net.attention.*", "net.head"])
    assert "in 2 layers, measured 6 times from step 0 to 5; 1 more layer produced no output." in said
    assert (
        "In the measured steps, no output was seen from "
        "net.attention.out_proj, because the module was not called (or its forward" in said
    )
    assert "its parent uses the weights directly, as nn.MultiheadAttention does" in said


@pytest.mark.parametrize(
    ("model", "data"),
    [(Toy(Attends()), sequences(*[4] * 6)), (Holds(), batches(*[8] * 6))],
    ids=["weights that attention uses itself", "weights of no module that is called"],
)
def test_nothing_is_said_of_weights_that_are_used_and_measured_all_the_same(judged, model, data):
    said = judged(model, data)
    assert "in 3 layers, measured 6 times from step 0 to 5." in said
    assert "o output" not in said


@pytest.mark.parametrize("net", [mlp, Fickle], ids=["all at each look", "one at later looks alone"])
def test_nothing_is_said_of_layers_that_gave_an_output_at_any_look(judged, net):
    assert "o output" not in judged(Toy(net()), batches(*[8] * 6))


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:.*torch.jit:FutureWarning")
def test_a_torchscript_module_in_the_model_ends_nothing(tmp_path):
    net = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 3))
    monitor = HealthMonitor(every_n_steps=1)
    fit(tmp_path, Toy(net), batches(4, 4, 4), monitor)  # warnings are errors here
    assert monitor._run.seen == 3
