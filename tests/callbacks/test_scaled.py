"""Gradients under a GradScaler."""

import math

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from toys import EachStep, Toy, batches, fit, mlp

from hookboard import GradientLogger
from hookboard.measure.statistics import FORMULAS

# The first module's input is the data, which has no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:hookboard.*had nothing to measure")
ROLES = ("grad_output", "grad_input", "parameter_grad")


def gradients(folder, model, data, scaler=None, histogram=False, **options):
    """The readings of every step, by site."""
    watched = GradientLogger(roles=ROLES, statistics=tuple(FORMULAS), histogram=histogram)
    kept = EachStep(watched)
    if scaler is not None:
        options["plugins"] = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    fit(folder, model, data, watched, kept, **options)
    return [{reading.site: reading for reading in readings} for readings in kept.readings]


def changing_scaler():
    """Doubles its scale after every second step."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_those_of_the_float32_run_while_the_scale_changes(tmp_path, accumulate):
    data = batches(*[8] * 8)
    scaled = gradients(tmp_path, Toy(mlp()), data, changing_scaler(), accumulate_grad_batches=accumulate)
    plain = gradients(tmp_path, Toy(mlp()), data, accumulate_grad_batches=accumulate)
    assert len(scaled) == len(plain) == 8 // accumulate
    for mine, theirs in zip(scaled, plain, strict=True):
        assert mine.keys() == theirs.keys()
        for site in theirs:
            assert not mine[site].overflowed
            for name in ("l2", "abs_max", "abs_mean"):
                assert mine[site].statistics[name] == pytest.approx(theirs[site].statistics[name], rel=0.05)


class Overflows(torch.nn.Module):
    """Its gradient is infinite in one step."""

    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        if self.training:
            self.step += 1
        return x * (math.inf if self.step == 2 else 1.0) if x.requires_grad else x


def test_a_step_that_overflowed_has_its_counts_and_no_number_that_looks_normal(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    model = Toy(torch.nn.Sequential(mlp(), Overflows(), torch.nn.Linear(3, 2)))
    steps = gradients(tmp_path, model, batches(4, 4, 4), scaler, histogram=True)
    assert [any(reading.overflowed for reading in step.values()) for step in steps] == [False, True, False]
    for reading in steps[1].values():
        for name, value in reading.statistics.items():
            assert name.endswith("_count") or math.isnan(value)
        assert reading.histogram is None
    assert any(reading.statistics["nonfinite_count"] for reading in steps[1].values())
    assert all(math.isfinite(reading.statistics["l2"]) for reading in steps[2].values())


def test_the_count_of_an_overflow_is_logged_where_it_was_not_asked_for(tmp_path):
    watched = GradientLogger(statistics="std")
    kept = EachStep(watched)
    model = Toy(torch.nn.Sequential(mlp(), Overflows()))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    fit(tmp_path, model, batches(4, 4), watched, kept, plugins=MixedPrecision("16-mixed", "cpu", scaler=scaler))
    assert {name for reading in kept.readings[0] for name in reading.statistics} == {"std"}
    assert {name for reading in kept.readings[1] for name in reading.statistics} == {"std", "nonfinite_count"}


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute:UserWarning"
)
def test_compiled_gradients_are_unscaled_too(tmp_path):
    def net():
        return Toy(mlp())

    torch.compiler.reset()
    compiled = net()
    compiled.net = torch.compile(compiled.net, backend="aot_eager")
    found = gradients(tmp_path, compiled, batches(*[4] * 5), changing_scaler())
    expected = gradients(tmp_path, net(), batches(*[4] * 5), changing_scaler())
    for mine, theirs in zip(found, expected, strict=True):
        outputs = [site for site in theirs if site.role == "grad_output"]
        assert len(outputs) == 3
        for site in outputs:
            assert mine[site].statistics["l2"] == pytest.approx(theirs[site].statistics["l2"], rel=0.02)
    torch.compiler.reset()
