"""`nonfinite` and `precision`: what fires, and what looks alike and is well."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from health import looks
from health.trainings import LAYERS, WEIGHTS, falling, findings, judged, of, places, stuck, training, typed

from hookboard.health.rules.numerics import FLOAT16_HEADROOM_FACTOR, SWALLOWED_SHARE_NOTE, UNDERFLOW_SHARE_NOTE
from hookboard.measure.row import Histogram, Moments
from hookboard.model.sites import Site
from hookboard.tracing.questions import RULES

NONFINITE, PRECISION = RULES["nonfinite"], RULES["precision"]


def bad(name: str, role: str, nan: float = 0, posinf: float = 0, neginf: float = 0):
    one = of(name, role, 1.0)
    return replace(one, moments=one.moments._replace(nan=nan, posinf=posinf, neginf=neginf))


def all_bad_from(step: int, change: dict):
    """At one step the change, afterwards NaN everywhere."""

    def at(now: int):
        if now < step:
            return {}
        if now == step:
            return change
        outputs = {(name, "output"): bad(name, "output", nan=5) for name in LAYERS}
        return outputs | {(w, "parameter_before"): bad(w, "parameter_before", nan=5) for w in WEIGHTS}

    return at


def nan_from(step: int, steps: int = 12):
    return [*falling(step), *[math.nan] * (steps - step)]


def verdict_of(change: dict, losses=None):
    judge = judged([NONFINITE], training(12, all_bad_from(6, change), losses=losses or nan_from(6)))
    assert len(judge.verdicts) == 1
    return judge.verdicts[0]


def test_a_nan_in_forward_is_named_at_the_first_layer_with_its_step_and_batch():
    change = {(name, "output"): bad(name, "output", nan=5) for name in ("fc1", "act1", "head")}
    verdict = verdict_of(change)
    assert (verdict.severity, verdict.module, verdict.since, verdict.batch_idx) == ("alarm", "fc1", 6, 6)
    assert "(forward)" in verdict.evidence
    assert "the output of the layer before it, 'act0', was finite" in verdict.evidence


def test_a_first_layer_whose_input_is_not_finite_says_so():
    change = {(name, "output"): bad(name, "output", nan=5) for name in LAYERS}
    verdict = verdict_of({**change, ("fc0", "input"): bad("fc0", "input", posinf=1)})
    assert verdict.module == "fc0"
    assert "not finite either" in verdict.evidence


def test_a_loss_that_is_not_finite_though_all_outputs_are_is_the_fault_of_the_loss():
    verdict = verdict_of({("head", "grad_output"): bad("head", "grad_output", nan=5)})
    assert verdict.module == ""
    assert "although all outputs are finite" in verdict.evidence


@pytest.mark.parametrize(
    ("change", "layer", "words"),
    [
        ({(n, "grad_output"): bad(n, "grad_output", nan=5) for n in ("fc0", "act0", "fc1")}, "act1", "(backward)"),
        ({("fc1.weight", "parameter_grad"): bad("fc1.weight", "parameter_grad", nan=1)}, "fc1", "(backward)"),
        (
            {("fc1.weight", "parameter_update"): bad("fc1.weight", "parameter_update", nan=1)},
            "fc1",
            "of the update of fc1.weight, with finite gradients",
        ),
    ],
    ids=["where the gradient was still finite", "at the layer of the weight", "with the pass of the optimizer"],
)
def test_a_nan_behind_the_loss_is_named(change, layer, words):
    verdict = verdict_of(change, [*falling(7), *[math.nan] * 5])
    assert verdict.module == layer
    assert words in verdict.evidence


def test_between_two_looks_the_loss_tells_the_step():
    made = training(6, lambda step: all_bad_from(30, {})(step), losses=nan_from(33, 60), every=10)
    verdict = judged([NONFINITE], made).verdicts[0]
    assert (verdict.since, verdict.batch_idx) == (33, 33)
    assert "before the step" in verdict.evidence


@pytest.mark.parametrize(("given", "advice"), [({"neginf": 50}, "mask"), ({"nan": 50}, "")])
def test_a_mask_or_an_output_that_nobody_uses_is_a_note(given, advice):
    change = {("act0", "output"): bad("act0", "output", **given)}
    (found,) = findings(NONFINITE, training(change=lambda step: change))
    assert (found.module, found.severity) == ("act0", "note")
    assert advice in found.advice


@pytest.mark.parametrize("layer", ["fc0", "head"])
def test_a_nan_that_comes_after_a_mask_is_named_with_its_own_step(layer):
    mask = {("act0", "output"): bad("act0", "output", neginf=50)}
    nan = {(name, "output"): bad(name, "output", nan=5) for name in list(LAYERS)[list(LAYERS).index(layer) :]}
    made = training(12, lambda step: {**mask, **(nan if step >= 6 else {})}, losses=nan_from(6))
    (verdict,) = (v for v in judged([NONFINITE], made).verdicts if v.severity == "alarm")
    assert (verdict.module, verdict.since, verdict.batch_idx) == (layer, 6, 6)


def test_overflows_under_a_scaler_are_well():
    change = {(w, "parameter_grad"): bad(w, "parameter_grad", posinf=5) for w in WEIGHTS}
    made = training(change=lambda step: change, edit=lambda look: replace(look, overflowed=True))
    assert findings(NONFINITE, made) == []


def half(dtype, share: float, *names: str):
    """Weights of this type, of whose elements the step did not change this share."""
    changes = {}
    for name in names or LAYERS:
        for weight in LAYERS[name].weights:
            still = looks.row(1000, 0.0, 1e-4, zeros=1000 * share)
            changes[weight, "parameter_update"] = looks.reading(weight, "parameter_update", [still])
            changes[weight, "parameter_before"] = typed(of(weight, "parameter_before", 0.1), dtype)
            gradient = looks.row(1000, 0.0, 0.01)
            changes[weight, "parameter_grad"] = looks.reading(weight, "parameter_grad", [gradient])
    return changes


SWALLOWED = half(torch.bfloat16, SWALLOWED_SHARE_NOTE + 0.01)
NEXT_TO_ALL = half(torch.bfloat16, 0.995)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (SWALLOWED, {}, [("", "note")]),
        (SWALLOWED, {"looks_": 100, "losses": stuck(100)}, [("", "alarm")]),
        (NEXT_TO_ALL, {}, [("", "alarm")]),
        (NEXT_TO_ALL, {"rate": lambda step: 0.1 * 0.5**step}, [("", "note")]),
        (half(torch.bfloat16, 0.1) | half(torch.bfloat16, 0.99, "fc1"), {}, [("fc1", "note")]),
        (half(torch.bfloat16, SWALLOWED_SHARE_NOTE - 0.01), {}, []),
        (half(torch.float32, 0.99), {}, []),
    ],
    ids=["many", "with harm", "next to all", "at the end of a schedule", "of one layer", "below the border", "float32"],
)
def test_updates_that_bf16_swallows(change, options, said):
    found = findings(PRECISION, training(change=lambda step: change, **options))
    assert places(found) == said
    assert change is not SWALLOWED or "91%" in found[0].evidence


def test_rows_without_a_gradient_are_not_swallowed():
    change = half(torch.bfloat16, 0.99)
    for weight in WEIGHTS:
        rare = looks.row(1000, 0.0, 0.01, zeros=990)
        change[weight, "parameter_grad"] = looks.reading(weight, "parameter_grad", [rare])
    assert findings(PRECISION, training(change=lambda step: change)) == []


def in_half(name: str, role: str, largest: float, tiny_share: float | None = None):
    moments = Moments(1000, 0.0, largest / 3, largest / 4, 0, 0, 0, 0, -largest / 2, largest)
    histogram = None
    if tiny_share is not None:
        edges = [-largest, -6e-5, 6e-5, largest]
        counts = [500 * (1 - tiny_share), 1000 * tiny_share, 500 * (1 - tiny_share)]
        histogram = Histogram(edges=np.array(edges), counts=np.array(counts))
    one = of(name, role, 1.0)
    return typed(replace(one, site=Site(name, role), moments=moments, histogram=histogram), torch.float16)


@pytest.mark.parametrize(("times", "said"), [(1.01, [("fc1", "note")]), (0.99, [])])
def test_numbers_near_the_largest_or_below_the_normal_range_of_float16_are_named(times, said):
    large = in_half("fc1", "output", times * 65504 / FLOAT16_HEADROOM_FACTOR)
    for one in (large, in_half("fc1", "grad_output", 1e-2, times * UNDERFLOW_SHARE_NOTE)):
        change = {(one.site.name, one.site.role): one}
        assert places(findings(PRECISION, training(change=lambda step, change=change: change))) == said
