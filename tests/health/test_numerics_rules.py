"""`nonfinite` and `precision`: what fires, and what looks alike and is well."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from health import looks
from health.trainings import LAYERS, WEIGHTS, falling, findings, judged, of, places, stuck, training

from hookboard.health.rules.numerics import (
    FLOAT16_HEADROOM_FACTOR,
    SWALLOWED_SHARE_NOTE,
    UNDERFLOW_SHARE_NOTE,
    Nonfinite,
    before_nonfinite,
)
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


def nan_of(role, *names):
    return {(name, role): bad(name, role, nan=5) for name in names}


EVENTS = {
    "in forward": (
        nan_of("output", "fc1", "act1", "head"),
        "fc1",
        "(forward)",
        "the output of the layer before it, 'act0', was finite",
    ),
    "in the input": (nan_of("output", *LAYERS) | nan_of("input", "fc0"), "fc0", "(forward)", "not finite either"),
    "in the loss": (nan_of("grad_output", "head"), "", "", "although all outputs are finite"),
    "where the gradient was still finite": (nan_of("grad_output", "fc0", "act0", "fc1"), "act1", "(backward)", ""),
    "in the gradient of a weight": (nan_of("parameter_grad", "fc1.weight"), "fc1", "(backward)", ""),
    "in an update": (
        nan_of("parameter_update", "fc1.weight"),
        "fc1",
        "of the update of fc1.weight, with finite gradients",
        "",
    ),
}


@pytest.mark.parametrize(("change", "layer", "during", "words"), EVENTS.values(), ids=EVENTS)
def test_a_nan_is_named_at_the_first_layer_with_its_step_and_batch(change, layer, during, words):
    is_behind = not any(role in ("output", "grad_output") and name == "head" for name, role in change)
    made = training(12, all_bad_from(6, change), losses=nan_from(7 if is_behind else 6))
    (verdict,) = judged([NONFINITE], made).verdicts
    assert (verdict.severity, verdict.module, verdict.since, verdict.batch_idx) == ("alarm", layer, 6, 6)
    assert during in verdict.evidence
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
            changes[weight, "parameter_before"] = replace(of(weight, "parameter_before", 0.1), dtype=dtype)
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
    return replace(replace(one, site=Site(name, role), moments=moments, histogram=histogram), dtype=torch.float16)


@pytest.mark.parametrize(("times", "said"), [(1.01, [("fc1", "note")]), (0.99, [])])
def test_numbers_near_the_largest_or_below_the_normal_range_of_float16_are_named(times, said):
    large = in_half("fc1", "output", times * 65504 / FLOAT16_HEADROOM_FACTOR)
    for one in (large, in_half("fc1", "grad_output", 1e-2, times * UNDERFLOW_SHARE_NOTE)):
        change = {(one.site.name, one.site.role): one}
        assert places(findings(PRECISION, training(change=lambda step, change=change: change))) == said


def event(step=3, during="forward", **options):
    return Nonfinite("net", during, step, 7, "It broke.", "Fix it.", **options)


def test_the_finding_is_an_alarm_of_its_step_and_batch():
    found = event().finding
    assert (found.module, found.severity, found.since, found.batch_idx) == ("net", "alarm", 3, 7)


def test_events_come_by_step_and_of_one_step_those_with_a_place_first():
    given = [event(4), event(2, is_located=False), event(2, during="backward"), event(2)]
    assert sorted(given, key=lambda one: one.order) == [given[3], given[2], given[1], given[0]]


def test_the_table_of_what_was_before_has_a_row_for_each_site_and_names_the_batch_in_words():
    given = [replace(looks.reading("", "input", [looks.row()]), site=Site("", "input", index)) for index in ("", "1")]
    given.append(looks.reading("a.b", "output", [looks.row(mean=3, deviation=4)]))
    given.append(looks.reading("a", "output", [looks.row(count=0, mean=math.nan, nonfinite=4)]))
    lines = before_nonfinite(looks.look(5, given)).splitlines()
    assert lines[2].startswith("| layer or parameter | values |")
    assert [line.split("|")[1].strip() for line in lines[4:6]] == ["the batch", "tensor 1 of the batch"]
    assert lines[6:8] == ["| a.b | output | 5 | -9 | 15 |  |  |", "| a | output |  |  |  | 4 |  |"]
