"""The same fault of a step gets the same alarm in each loop, and training goes on as without a monitor."""

import contextlib

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from toys import Toy, fit, fit_in_transformers
from tracing.steps import watched

from hookboard import HealthMonitor, watch
from hookboard.tracing.questions import STEP

pytestmark = [pytest.mark.trains, pytest.mark.filterwarnings("ignore:hookboard.*had nothing to measure")]

STEPS, ROWS = 3, 8


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


X = torch.randn(STEPS * ROWS, 4, generator=draw())
CLASSES = torch.arange(STEPS * ROWS) % 3
REAL = torch.randn(STEPS * ROWS, generator=draw(1))
BITS = (REAL > 0).float()
TOKENS = torch.randint(11, (STEPS * ROWS, 12), generator=draw(2))
FAULTS = {}


class Net(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.net = nn.Sequential(*layers or (nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))

    def forward(self, x, labels):
        return {"loss": self.loss_of(x, labels)}

    def loss_of(self, x, labels):
        return cross_entropy(self.net(x), labels)


def fault(rule, x=X, labels=CLASSES):
    def register(kind):
        FAULTS[kind.__name__] = kind, rule, x, labels
        return kind

    return register


@fault("")
class Healthy(Net):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


@fault("loss_input")
class SoftmaxBeforeCrossEntropy(Net):
    def loss_of(self, x, labels):
        return cross_entropy(self.net(x).softmax(1), labels)


@fault("loss_shape", labels=REAL)
class Broadcasts(Net):
    def __init__(self):
        super().__init__(nn.Linear(4, 1))

    def loss_of(self, x, labels):
        return (self.net(x) - labels).square().mean()


@fault("not_in_optimizer")
class KeepsALayerInAList(Net):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 16)]
        self.last = nn.Linear(16, 3)

    def loss_of(self, x, labels):
        return cross_entropy(self.last(self.layers[0](x).relu()) + self.net(x), labels)


@fault("eval_mode")
class StaysInEvaluation(Net):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def loss_of(self, x, labels):
        self.eval()
        return super().loss_of(x, labels)


@fault("future_leak", TOKENS, TOKENS)
class SeesLaterTokens(Net):
    def __init__(self):
        super().__init__(nn.Embedding(11, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 11)

    def loss_of(self, x, labels):
        return cross_entropy(self.logits_of(x[:, :-1]).flatten(0, 1), labels[:, 1:].flatten())

    def logits_of(self, tokens):
        return self.head(self.encoder(self.net(tokens)))


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def batches_of(x, labels):
    return list(zip(x.split(ROWS), labels.split(ROWS), strict=True))


class InLightning(Toy):
    def __init__(self, model):
        super().__init__(None)
        self.model = model

    def training_step(self, batch, batch_idx):
        return self.model(*batch)["loss"]


def lightning(folder, model, x, labels, monitor=None, kind=InLightning, **options):
    fit(folder, kind(model), batches_of(x, labels), *[monitor] if monitor else [], **options)


def train(model, optimizer, data, monitor, backward=torch.Tensor.backward, around=None, tells_batch=True):
    nothing = contextlib.nullcontext
    with watch(model, optimizer, monitor) if monitor else nothing() as run:
        for batch in data:
            step = run.step(*[batch] * tells_batch) if run else nothing()
            with step, around(model) if around else nothing():
                backward(model(*batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()


def bare(folder, model, x, labels, monitor=None):
    train(model, optimizer_of(model), batches_of(x, labels), monitor, tells_batch=False)


def fabric(folder, model, x, labels, monitor=None, **options):
    launched = Fabric(accelerator="cpu", **{"devices": 1, **options})
    launched.launch()
    train(*launched.setup(model, optimizer_of(model)), batches_of(x, labels), monitor, launched.backward)


def accelerated(folder, model, x, labels, monitor=None, **options):
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
    model, optimizer = accelerator.prepare(model, optimizer_of(model))
    train(model, optimizer, batches_of(x, labels), monitor, accelerator.backward, accelerator.accumulate)


def hugging_face(folder, model, x, labels, monitor=None):
    data = [{"x": x, "labels": labels} for x, labels in batches_of(x, labels)]
    fit_in_transformers(folder, model, data, monitor or [], optim="sgd")


LOOPS = [lightning, bare, fabric, accelerated, hugging_face]


def trained(loop, folder, kind, x, labels, monitor=None):
    """The weights after a training from the same start on the same batches."""
    torch.manual_seed(0)
    model = kind()
    loop(folder, model, x, labels, monitor)
    return model.state_dict()


OF_OTHERS = ["Healthy", "Broadcasts", "KeepsALayerInAList", "StaysInEvaluation", "SeesLaterTokens"]
"""Those that differ in what they need of a loop: its batch, its optimizer, the mode and the calls of its model."""


@pytest.mark.filterwarnings("ignore:Found .* in eval mode")
@pytest.mark.parametrize(
    ("loop", "name"), [(loop, name) for loop in LOOPS for name in (FAULTS if loop is lightning else OF_OTHERS)]
)
def test_a_fault_is_found_in_each_loop_and_the_training_is_the_same(tmp_path, loop, name):
    kind, rule, *data = FAULTS[name]
    expected = trained(loop, tmp_path / "bare", kind, *data)
    monitor = HealthMonitor(every_n_steps=1)
    weights = trained(loop, tmp_path / "watched", kind, *data, monitor)
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    found = {verdict.rule: verdict for verdict in monitor.verdicts if verdict.rule in STEP}
    assert (rule in found) if rule else not found
    if rule in ("loss_input", "loss_shape"):
        assert "test_loops.py:" in found[rule].evidence


@pytest.mark.parametrize("loop", LOOPS)
def test_inputs_out_of_scale_are_found_once_in_each_loop(tmp_path, loop):
    expected = trained(loop, tmp_path / "bare", Healthy, 1000 * X, CLASSES)
    monitor = HealthMonitor(every_n_steps=1, window=1)
    weights = trained(loop, tmp_path / "watched", Healthy, 1000 * X, CLASSES, monitor)
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    assert [verdict.rule for verdict in monitor.verdicts].count("input_scale") == 1


def findings_of(loss_of, outputs=1):
    """The rules that fire on a loss of outputs and targets, in a loop that tells no batch."""
    steps = [lambda model, x=x, y=y: loss_of(model(x), y) for x, y in batches_of(X, REAL)]
    return STEP & {verdict.rule for verdict in watched(nn.Sequential(nn.Linear(4, outputs)), *steps).verdicts}


def test_a_target_is_known_where_the_loop_tells_no_batch():
    assert findings_of(lambda outputs, targets: (outputs - targets).square().mean()) == {"loss_shape"}


def test_a_target_that_is_converted_before_the_model_runs_is_known_where_the_loop_tells_no_batch():
    def loss_of(model):
        targets = REAL[:ROWS].double().float()
        return (model(X[:ROWS]) - targets).square().mean()

    monitor = watched(nn.Sequential(nn.Linear(4, 1)), loss_of)
    assert "loss_shape" in {verdict.rule for verdict in monitor.verdicts}


def test_a_constant_is_no_target_where_the_loop_tells_no_batch():
    means = torch.zeros(3)
    assert not findings_of(lambda outputs, targets: (outputs - means - targets[:, None]).square().mean(), 3)


class Logits(SeesLaterTokens):
    forward = SeesLaterTokens.logits_of


def test_a_leak_is_found_in_outputs_that_fabric_has_hooked():
    launched, monitor = Fabric(accelerator="cpu", devices=1), HealthMonitor(every_n_steps=1)
    model = Logits()
    model, optimizer = launched.setup(model, optimizer_of(model))
    tokens = TOKENS[:ROWS]
    with watch(model, optimizer, monitor) as run, run.step(tokens):
        logits = model(tokens[:, :-1])
        launched.backward(cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
        optimizer.step()
    assert "future_leak" in {verdict.rule for verdict in monitor.verdicts}
