"""A tensor of any kind between the modules of a model is measured truly or named, and its neighbours are measured."""

import pytest
import torch
from callbacks.heard import warnings_of
from callbacks.user_program import Does
from oracle import assert_true
from torch import nn
from torch.masked import masked_tensor
from toys import Toy, batches, fit

from hookboard import (
    ActivationLogger,
    CAMLogger,
    Edit,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    ParameterLogger,
    Scale,
    capture,
)
from hookboard.measure.statistics import FORMULAS

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse.*beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of (nested|MaskedTensors):UserWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning"),
]


def nested(x, **options):
    return torch.nested.as_nested_tensor([x[:1], x[1:]], **options)


KINDS = {
    "nested": nested,
    "nested, transposed": lambda x: nested(x).transpose(1, 2),
    "nested, of pictures": lambda x: torch.nested.as_nested_tensor([x[:1].view(1, 2, 2), x[1:].reshape(-1, 2, 2)]),
    "nested, of vectors": lambda x: torch.nested.as_nested_tensor([x[0], x[1, :2]]),
    "jagged": lambda x: nested(x, layout=torch.jagged),
    "coo": lambda x: x.relu().to_sparse(),
    "csr": lambda x: x.relu().to_sparse_csr(),
    "scalar": lambda x: x.sum(),
}

UNREAD = {
    "quantized": lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8),
    "mkldnn": lambda x: x.detach().to_mkldnn(),
    "masked": lambda x: masked_tensor(x.detach(), x > 0),
}
"""Those that hold their values in a way of their own."""

NOTHING = {
    "nested, without parts": lambda x: torch.nested.nested_tensor([]),
    "nested, of empty parts": lambda x: torch.nested.nested_tensor([x[:0], x[:0]]),
    "empty": lambda x: x[:0],
    "meta": lambda x: x.to("meta"),
}


def values_in(tensor):
    """All values as one flat tensor, by torch's own conversions."""
    if tensor.is_nested:
        return torch.cat([part.flatten() for part in tensor.unbind()])
    if tensor.layout != torch.strided:
        return tensor.to_dense().flatten()
    return tensor.flatten()


NAMES = ("net.first", "net.gives", "net.last")
ASKED = tuple(FORMULAS)


class Between(nn.Module):
    """Two layers, and between them a module that returns a tensor of some kind, and one that takes it."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.gives, self.takes = Does(make), Does(lambda given: None)

    def forward(self, x):
        x = self.first(x)
        given = self.gives(x)
        self.takes(given)
        out = self.last(x)
        self.kept = dict(zip(NAMES, (x.detach(), given.detach(), out.detach()), strict=True))
        in_loss = given.is_nested and given.requires_grad
        return out + values_in(given).sum() if in_loss else out


def run(folder, make, *watching):
    """Fits for two steps; returns the model and what was said of something that is switched off."""
    model, options = Toy(Between(make)), {"limit_val_batches": 1, "num_sanity_val_steps": 0}
    said = warnings_of(lambda: fit(folder, model, batches(5, 5), *watching, **options))
    return model, [text for text in said if "is switched off from now on" in text]


@pytest.mark.parametrize("make", UNREAD.values(), ids=UNREAD)
def test_a_tensor_with_values_in_a_way_of_its_own_is_named_and_its_neighbours_are_measured(tmp_path, make):
    outputs = ActivationLogger(list(NAMES), statistics=ASKED, stages="validate")
    model, (off,) = run(tmp_path, make, outputs)
    assert "output of 'net.gives'" in off
    measured = {reading.site.name: reading for reading in outputs.readings}
    assert measured.keys() == {"net.first", "net.last"}
    for name, reading in measured.items():
        assert_true(reading.statistics, [values_in(model.net.kept[name])])


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_tensor_of_any_kind_is_measured_over_its_values(tmp_path, make):
    outputs = ActivationLogger(list(NAMES), statistics=ASKED, histogram=True, stages="validate")
    inputs = ActivationLogger("net.takes", roles="input", statistics=ASKED, stages="validate")
    model, off = run(tmp_path, make, outputs, inputs)
    assert off == []
    measured = {reading.site.name: reading for reading in [*outputs.readings, *inputs.readings]}
    for name in NAMES:
        values = values_in(model.net.kept[name])
        assert_true(measured[name].statistics, [values])
        assert sum(measured[name].histogram.counts) == values.numel()
    assert_true(measured["net.takes"].statistics, [values_in(model.net.kept["net.gives"])])


def test_the_gradient_of_a_nested_output_is_measured_over_its_values(tmp_path):
    arrived = []

    def keeping(x):
        given = nested(x)
        if given.requires_grad:
            given.register_hook(lambda gradient: arrived.append(gradient.detach().clone()))
        return given

    logger = GradientLogger("net.gives", statistics=ASKED)
    _, off = run(tmp_path, keeping, logger)
    assert off == []
    (reading,) = logger.readings
    assert_true(reading.statistics, [values_in(arrived[-1])])


ALL = {**KINDS, **UNREAD, **NOTHING}


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_a_tensor_of_any_kind_switches_nothing_off_but_itself(tmp_path, make):
    pictures = [FeatureMapLogger("**", stage=stage, every_n_steps=1) for stage in ("train", "validate")]
    _, off = run(tmp_path, make, HealthMonitor("**", every_n_steps=1), *pictures, CAMLogger(every_n_steps=1))
    assert [text for text in off if "'net.gives'" not in text] == []


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_what_was_captured_is_summed_up_whatever_its_kind(make):
    net = Between(make)
    with capture(net, "gives") as seen:
        net(batches(5)[0])
    assert "gives" in seen.summary()
    assert "gives" in repr(seen["gives"])


def test_a_nested_tensor_is_edited():
    net = Between(nested)
    with capture(net, "gives", edit=Edit(Scale(2.0), "gives")) as seen:
        net(batches(5)[0])
    first = net.first(batches(5)[0])
    assert torch.allclose(values_in(seen["gives"].output), 2 * first.flatten())


PARTS = [torch.arange(4.0), torch.ones(2)]
PARAMETERS = {
    "nested": (lambda: torch.nested.nested_tensor(PARTS), False),
    "jagged": (lambda: torch.nested.nested_tensor(PARTS, layout=torch.jagged), True),
    "coo": (lambda: torch.eye(3).to_sparse(), True),
    "float8": (lambda: torch.arange(4.0).view(2, 2).to(torch.float8_e4m3fn), False),
    "empty": (lambda: torch.zeros(0, 4), True),
    "scalar": (lambda: torch.tensor(2.0), True),
}


class Holds(nn.Linear):
    """A layer with a parameter of some kind."""

    def __init__(self, make, trained):
        super().__init__(4, 3)
        self.odd = nn.Parameter(make(), requires_grad=trained)

    def forward(self, x):
        self.before = values_in(self.odd.detach()).double()
        return super().forward(x) + (values_in(self.odd).sum() if self.odd.requires_grad else 0)


@pytest.mark.parametrize(("make", "trained"), PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_of_any_kind_and_its_update_are_measured_over_their_values(tmp_path, make, trained):
    logger = ParameterLogger(statistics=["mean", "l2", "zero_fraction", "update_norm"], every_n_steps=1)
    model, monitor = Toy(Holds(make, trained)), HealthMonitor(every_n_steps=1)
    said = warnings_of(lambda: fit(tmp_path, model, batches(5, 5, 5), logger, monitor))
    assert not any("is switched off" in text for text in said)
    after = values_in(model.net.odd.detach()).double()
    measured = {reading.site.role: reading.statistics for reading in logger.readings if reading.site.name == "net.odd"}
    if after.numel():
        assert_true(measured["parameter"], [after])
    if trained and after.numel():
        moved = (after - model.net.before).norm().item()
        assert measured["parameter_update"]["update_norm"] == pytest.approx(moved, rel=1e-4)
        assert moved > 0
