"""Every number that is logged equals a float64 computation over the raw tensors of its optimizer step."""

import math

import pytest
import torch
from callbacks.user_program import Does
from oracle import assert_equals, assert_true, normal, truth
from torch import nn
from toys import EachStep, Raw, Toy, batches, events, fit, mlp, scalars

from hookboard import ActivationLogger, GradientLogger
from hookboard.measure.statistics import FORMULAS
from hookboard.model.sites import ROLES

ALL = tuple(FORMULAS)


def assert_everything_logged_is_true(folder, model, data, rel=1e-6, **options):
    """Both loggers, every role that a plain hook can keep, every step; in memory and in the event file."""
    raw = Raw()
    forward = ActivationLogger(roles=["output", "input"], every_n_steps=1, statistics=ALL)
    backward = GradientLogger(roles=["grad_output", "parameter_grad"], every_n_steps=1, statistics=ALL)
    kept = EachStep(forward), EachStep(backward)
    fit(folder, model, data, raw, forward, backward, *kept, **options)
    written = scalars(folder)
    checked = 0
    for step, tensors in enumerate(raw.steps[:-1]):
        readings = {(r.site.role, r.site.name): r for each in kept for r in each.readings[step]}
        assert readings.keys() == tensors.keys()
        for (role, name), true in tensors.items():
            expected = truth(true)
            assert_equals(readings[role, name].statistics, expected, rel)
            logged = {s: written[f"{ROLES[role].kind}_{s}/{name}"][step] for s in ALL}
            # An event holds float32.
            rounded = {s: v for s, v in logged.items() if s != "mean" or not math.isclose(v, 0, abs_tol=1e-12)}
            assert_equals(rounded, expected, max(rel, 2e-7))
            checked += 1
    assert checked


class Repeats(nn.Module):
    """Calls one layer three times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def shifted(offset, scale):
    return Does(lambda x: x * scale + offset)


def spoiled(bad):
    return Does(lambda x: x.index_fill(0, torch.tensor([3], device=x.device), bad))


def poisoned(bad):
    return Toy(nn.Sequential(nn.Linear(4, 4), spoiled(bad), nn.Linear(4, 3)), lambda y: y.nansum())


def halved(dtype):
    casts = Does(lambda x: x.to(dtype)), Does(lambda x: x.float())
    return Toy(nn.Sequential(nn.Linear(4, 64), casts[0], nn.ReLU(), casts[1], nn.Linear(64, 2)))


def convolutional():
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2)
    return Toy(nn.Sequential(*layers))


UNEQUAL = batches(3, 17, 1, 40, 8, 2, 5, 30)
CASES = {
    "a net with batch norm and in-place ReLU": (convolutional, [normal(5, 1, 8, 8), normal(7, 1, 8, 8)], {}),
    "four unequal micro-batches": (lambda: Toy(mlp()), UNEQUAL, {"accumulate_grad_batches": 4}),
    "a last step of fewer micro-batches": (lambda: Toy(mlp()), batches(3, 5, 7, 2, 6), {"accumulate_grad_batches": 4}),
    "a module called three times": (lambda: Toy(Repeats()), batches(6, 6), {}),
    "values around ten thousand": (lambda: Toy(nn.Sequential(nn.Linear(4, 8), shifted(1e4, 0.1))), batches(64), {}),
    "nothing but zeros": (lambda: Toy(nn.Sequential(nn.Linear(4, 8), nn.Threshold(1e9, 0.0))), batches(16), {}),
    "NaN": (lambda: poisoned(math.nan), batches(16), {}),
    "infinity": (lambda: poisoned(math.inf), batches(16), {}),
    "bfloat16": (lambda: halved(torch.bfloat16), batches(32), {}),
    "float16": (lambda: halved(torch.float16), batches(32), {}),
    "autocast": (lambda: Toy(mlp()), batches(16, 16), {"precision": "bf16-mixed"}),
}


@pytest.mark.parametrize("case", CASES)
def test_everything_that_is_logged_is_true_of(tmp_path, case):
    make, data, options = CASES[case]
    assert_everything_logged_is_true(tmp_path, make(), data, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("offset", [0.0, 1e4, math.nan])
def test_on_a_gpu(tmp_path, offset):
    middle = spoiled(offset) if math.isnan(offset) else shifted(offset, 0.1)
    net = nn.Sequential(nn.Linear(4, 64), middle, nn.ReLU(inplace=True), nn.Linear(64, 3))
    model = Toy(net, lambda y: y.nansum())
    assert_everything_logged_is_true(tmp_path, model, batches(16, 300), accelerator="gpu", devices=1)


@pytest.mark.large
def test_of_more_elements_than_float32_can_count(tmp_path):
    assert_everything_logged_is_true(tmp_path, Toy(nn.Linear(1, 1)), [torch.randn(2**24 + 100_001, 1)])


def test_of_gradients_of_inputs(tmp_path):
    x_seen = []

    class Watched(nn.Linear):
        def forward(self, x):
            x.register_hook(lambda grad: x_seen.append(grad.clone()))
            return super().forward(x)

    net = nn.Sequential(nn.Linear(4, 4), Watched(4, 3))
    logger = GradientLogger("net.1", roles="grad_input", every_n_steps=1, statistics=ALL)
    fit(tmp_path, Toy(net), batches(5, 9), logger, EachStep(logger), accumulate_grad_batches=2)
    (reading,) = logger.readings
    assert len(x_seen) == 2
    assert_true(reading.statistics, x_seen)


def test_the_logged_gradient_is_that_of_the_loss_that_lightning_divides(tmp_path):
    logger = GradientLogger("net.2", every_n_steps=1, statistics="abs_max")
    (data,) = batches(8)
    fit(tmp_path / "1", Toy(mlp(), lambda y: y.sum()), [data], logger)
    whole = logger.readings[0].statistics["abs_max"]
    fit(tmp_path / "2", Toy(mlp(), lambda y: y.sum()), [data, data], logger, accumulate_grad_batches=2)
    assert (whole, logger.readings[0].statistics["abs_max"]) == (1.0, 0.5)


def test_a_histogram_holds_every_finite_value_of_the_step(tmp_path):
    logger = ActivationLogger("net.0", every_n_steps=1, histogram=True)
    raw = Raw()
    fit(tmp_path, Toy(mlp()), batches(8, 16, 8), raw, logger, accumulate_grad_batches=3)
    (point,) = events(tmp_path).Histograms("activations/net.0")
    values = torch.cat([t.flatten() for t in raw.steps[0]["output", "net.0"]]).double()
    proto = point.histogram_value
    assert point.step == 0
    assert proto.num == sum(proto.bucket) == len(values)
    assert (proto.min, proto.max) == (values.min().item(), values.max().item())
    assert proto.sum == pytest.approx(values.sum().item(), rel=1e-9)
    assert proto.sum_squares == pytest.approx(values.square().sum().item(), rel=1e-9)


def test_a_histogram_of_values_whose_squares_overflow_is_written(tmp_path):
    net = nn.Sequential(nn.Linear(4, 4), Does(lambda x: x.double() * 1e200))
    model, logger = Toy(net, lambda y: (y / 1e200).square().mean()), ActivationLogger("net.1", histogram=True)
    fit(tmp_path, model, batches(8), logger)
    (point,) = events(tmp_path).Histograms("activations/net.1")
    assert point.histogram_value.num == 32
    assert point.histogram_value.max > 1e199
