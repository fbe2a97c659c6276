"""`no_gradient` and `not_updated`: what fires, and what looks alike and is well."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from health import looks
from health.trainings import (
    LAYERS,
    WEIGHTS,
    WINDOW,
    findings,
    judged,
    linear,
    of,
    places,
    stuck,
    training,
    zeros,
)

from hookboard.health.losses import AT_ZERO_SHARE
from hookboard.health.rules.shared import SCHEDULE_END_SHARE, UPDATE_RATIO_SMALL
from hookboard.health.run import Run, StepFacts
from hookboard.model.layers import Layer
from hookboard.model.sites import Site
from hookboard.tracing.questions import RULES

NO_GRADIENT, NOT_UPDATED = RULES["no_gradient"], RULES["not_updated"]


def cut_behind(name: str, by=lambda name, role: None):
    """No gradient (or what `by` gives) at a layer and all before it."""
    names = list(LAYERS)[: list(LAYERS).index(name) + 1]
    weights = [weight for layer in names for weight in LAYERS[layer].weights]
    slots = [(n, "grad_output") for n in names] + [(w, "parameter_grad") for w in weights]
    return {slot: by(*slot) for slot in slots}


def still(*weights: str):
    return {(weight, "parameter_update"): zeros(weight, "parameter_update") for weight in weights}


def changing(*weights: str):
    """Weights without a gradient at any look, which are others at every look."""
    found = {(w, "parameter_before"): of(w, "parameter_before", 0.1) for w in weights}
    return {**found, **dict.fromkeys((w, "parameter_grad") for w in weights)}


def always(change):
    return {"change": lambda step: change}


def without(name):
    """The weights of all layers but this one."""
    return [weight for weight in WEIGHTS if not weight.startswith(name)]


def ungraded(*weights):
    return dict.fromkeys((weight, "parameter_grad") for weight in weights)


def changed(**fields):
    """The layers, with fc0 changed."""
    return {"layers": {**LAYERS, "fc0": replace(LAYERS["fc0"], **fields)}}


def edited(**fields):
    return {"edit": lambda look: replace(look, **fields)}


def of_fc1(rate_of):
    """The rate of fc1 at a step, where that of others is 1e-3."""

    def edit(look):
        rates = {name: rate_of(look.step) if name.startswith("fc1") else 1e-3 for name in look.stepped}
        return replace(look, stepped={name: replace(one, rate=rates[name]) for name, one in look.stepped.items()})

    return {"edit": edit}


def said(rule, options):
    return findings(rule, training(**options), options.get("layers", LAYERS))


FC0, FC1 = LAYERS["fc0"].weights, LAYERS["fc1"].weights
TINY = {(weight, "parameter_grad"): of(weight, "parameter_grad", 1e-30) for weight in FC0}
FROZEN_LATER = always(ungraded(*FC1)) | {"held": without("fc1")} | edited(frozen=set(FC1))
PARTLY_NAN = looks.reading("fc1.weight", "parameter_update", [looks.row(90, 0.0, 0.0, zeros=90, nonfinite=10)])
MOVING = {"change": lambda step: {(w, "parameter_before"): of(w, "parameter_before", 0.1) for w in FC1}}

REACHED = {
    "a gradient that is tiny but not 0": always(TINY),
    "frozen layers": always(cut_behind("act0")) | {"held": without("fc0")} | changed(trainable=frozenset()),
    "zeros before the first step of a warm-up": always(cut_behind("fc1", zeros)) | {"rate": 0.0},
    "a layer whose loss is added only between looks": {"change": lambda step: {**cut_behind("fc0"), **changing(*FC0)}},
    "a weight that a parametrization computes": always(cut_behind("fc0")) | changed(is_computed=True),
    "a layer that is used without being called": always({("fc1", "output"): None, ("fc1", "grad_output"): None}),
    "a step that the scaler skipped": always(cut_behind("fc1")) | edited(overflowed=True),
    "a layer that was frozen in the course of the fit": FROZEN_LATER,
}


@pytest.mark.parametrize("options", REACHED.values(), ids=REACHED)
def test_no_layer_is_said_to_be_without_a_gradient_where_there_is(options):
    assert said(NO_GRADIENT, options) == []


UPDATED = {
    "a layer that was frozen in the course of the fit": FROZEN_LATER,
    "weights that move without an optimizer": MOVING | {"held": without("fc1")},
    "a layer that was stepped before": {"held": lambda step: WEIGHTS if step == 0 else without("fc1")},
    "a rate that has come down to 0": {"change": lambda step: still(*FC1) if step > 1 else {}}
    | of_fc1(lambda step: 0.0 if step > 1 else 1e-3),
    "a warm-up from 0": always(still(*WEIGHTS)) | {"rate": 0.0},
    "weights that no gradient reaches": always({**still(*FC1), **cut_behind("fc1")}),
    "weights that are NaN": always({("fc1.weight", "parameter_update"): PARTLY_NAN}),
    "a bias alone that does not move": always(still("fc1.bias")),
}


@pytest.mark.parametrize("options", UPDATED.values(), ids=UPDATED)
def test_no_weight_is_said_to_stay_where_there_is(options):
    assert said(NOT_UPDATED, options) == []


def never_ran(*names):
    """Linear layers behind the usual ones that have never run."""
    layers = {**LAYERS, **{name: linear(name) for name in names}}
    weights = [weight for name in names for weight in layers[name].weights]
    gone = dict.fromkeys((name, role) for name in names for role in ("output", "grad_output"))
    return always(gone | ungraded(*weights)) | {"layers": layers, "held": [*WEIGHTS, *weights]}


FREE = Layer("free", "Linear", "linear", ("free.weight",), frozenset())
PARTED = looks.layers(LAYERS["fc0"], FREE, LAYERS["fc1"], LAYERS["head"])
CUT_AROUND = ungraded(*FC0, *FC1) | dict.fromkeys((name, "grad_output") for name in ("fc0", "free", "fc1"))
IN_HALF = {("fc1.weight", "parameter_before"): replace(of("fc1.weight", "parameter_before", 0.1), dtype=torch.bfloat16)}
NEIGHBOURS = "the weights of 2 layers (fc0 to fc1) get a gradient but do not change: a step at a learning rate"

CUT = {
    "a cut where the gradient is lost first": (always(cut_behind("fc1")), True, "2 layers (fc0 to fc1)"),
    "zeros where they come first": (always(cut_behind("fc1", zeros)), False, "2 layers (fc0 to fc1)"),
    "a chain that a layer in no optimizer does not part": (always(CUT_AROUND) | {"layers": PARTED}, True, ""),
}


@pytest.mark.parametrize(("options", "is_root", "words"), CUT.values(), ids=CUT)
def test_one_alarm_names_the_layer_that_is_cut_off(options, is_root, words):
    """Only what nothing else could explain is a fault by itself."""
    (finding,) = said(NO_GRADIENT, options)
    assert (finding.module, finding.severity, finding.is_root) == ("fc1", "alarm", is_root)
    assert words in finding.evidence


STILL = {
    "one that only its output's gradient shows": (
        always(ungraded(*FC1)) | {"held": without("fc1")},
        ("fc1", "alarm", True),
        "no optimizer",
    ),
    "a backbone that the optimizer was not given": ({"held": LAYERS["head"].weights}, ("fc0", "note", True), ""),
    "an optimizer of a copy": ({"held": []}, ("", "alarm", True), "not of a copy"),
    "a layer whose rate is 0": (
        always(still(*FC1)) | of_fc1(lambda step: 0.0),
        ("fc1", "alarm", True),
        "learning rate is 0",
    ),
    "a rate that stays 0": (
        always(still(*WEIGHTS)) | {"looks_": 100, "rate": 0.0, "losses": stuck(100)},
        ("", "alarm", True),
        "",
    ),
    "updates that are lost to rounding": (always(still(*FC1) | IN_HALF), ("fc1", "alarm", False), "bfloat16"),
    "neighbours that do not move": (always(still(*WEIGHTS[:4])), ("fc0", "alarm", False), NEIGHBOURS),
    "all layers": (always(still(*WEIGHTS)), ("", "alarm", None), ""),
}


@pytest.mark.parametrize(("options", "place", "words"), STILL.values(), ids=STILL)
def test_one_finding_names_the_weights_that_stay(options, place, words):
    (finding,) = said(NOT_UPDATED, options)
    assert (finding.module, finding.severity, finding.is_root) == place
    assert words in f"{finding.evidence} {finding.advice}"


def test_zeros_behind_a_layer_that_starts_at_zero_do_not_last():
    made = training(change=lambda step: cut_behind("fc1", zeros) if step == 0 else {})
    assert judged([NO_GRADIENT], made).verdicts == ()


def test_parts_of_a_gan_that_step_in_turns_are_well():
    mine = [list(LAYERS["fc0"].weights), [*LAYERS["fc1"].weights, *LAYERS["head"].weights]]

    def change(step):
        return {(weight, "parameter_grad"): None for weight in mine[1 - step % 2]}

    made = training(10, change, held=lambda step: mine[step % 2])
    assert judged([NO_GRADIENT, NOT_UPDATED], made).verdicts == ()


def test_no_gradient_anywhere_is_an_alarm_unless_there_was_one_before():
    cut = cut_behind("head", zeros)
    assert places(findings(NO_GRADIENT, training(change=lambda step: cut))) == [("head", "alarm")]
    done = training(50, lambda step: cut if step > 3 else {})
    assert [severity for _, severity in places(findings(NO_GRADIENT, done))] == ["note"]
    harmed = training(100, lambda step: cut, losses=stuck(100))
    assert places(findings(NO_GRADIENT, harmed)) == [("head", "alarm")]


@pytest.mark.parametrize(("left", "fires"), [(1e-7, False), (1e-3, True)])
def test_a_layer_that_has_moved_and_has_hardly_any_gradient_left_is_done(left, fires):
    little = {(name, "parameter_grad"): of(name, "parameter_grad", left) for name in FC1}
    made = training(12, lambda step: {**still(*FC1), **little} if step > 2 else {})
    assert bool(findings(NOT_UPDATED, made)) is fires


@pytest.mark.parametrize("names", [WEIGHTS[:2], WEIGHTS])
@pytest.mark.parametrize(("times", "fires"), [(0.9, False), (1.1, True)])
def test_weights_that_no_longer_move_at_the_end_of_a_schedule_are_well(names, times, fires):
    def rate(step):
        return 1e-3 if step < 20 else times * SCHEDULE_END_SHARE * 1e-3

    made = training(40, lambda step: still(*names) if step >= 20 else {}, rate=rate)
    assert bool(findings(NOT_UPDATED, made)) is fires


@pytest.mark.parametrize(("times", "fires"), [(0.9, False), (1.1, True)])
def test_weights_that_no_longer_move_once_the_loss_is_at_0_are_well(times, fires):
    losses = [*[2.0] * 20, *[times * AT_ZERO_SHARE * 2.0] * 40]
    made = training(60, lambda step: still(*FC1) if step >= 20 else {}, losses=losses)
    assert bool(findings(NOT_UPDATED, made)) is fires


@pytest.mark.parametrize(("times", "fires"), [(0.9, False), (1.1, True)])
def test_updates_lost_in_rounding_are_none_of_a_layer_where_all_steps_are_too_small(times, fires):
    def change(step):
        move = looks.reading("", "parameter_update", [looks.row(100, 0.0, times * UPDATE_RATIO_SMALL * 0.1)])
        whole = looks.reading("", "parameter_before", [looks.row(100, 0.0, 0.1)])
        read = {"parameter_update": move, "parameter_before": whole}
        moves = {(w, role): replace(one, site=Site(w, role)) for w in WEIGHTS for role, one in read.items()}
        return moves | still("fc1.weight", "fc1.bias")

    assert bool(findings(NOT_UPDATED, training(100, change, losses=stuck(100)))) is fires


def skipped(*steps: int):
    """No gradient at fc1 at these steps: a branch that is left out."""
    slots = [("fc1", "grad_output"), *((weight, "parameter_grad") for weight in LAYERS["fc1"].weights)]
    return lambda step: dict.fromkeys(slots) if step in steps else {}


def test_a_branch_that_is_left_out_at_random_is_well():
    steps = np.flatnonzero(np.random.default_rng(0).random(60) < 0.5)
    assert not any(looked(training(60, skipped(*steps))))


def looked(made):
    """What the rule sees at each look."""
    run = Run(LAYERS, WINDOW)
    for one in made:
        run.see(one)
        yield list(NO_GRADIENT.judge(run))


@pytest.mark.parametrize(("earlier", "looks_"), [(range(0), 2 * WINDOW), (range(5, 10), 2 * 5)])
def test_a_cut_for_good_is_an_alarm_behind_two_windows_or_twice_the_longest_gap_before(earlier, looks_):
    *before, last = looked(training(20 + looks_ + 1, skipped(*earlier, *range(20, 99))))
    assert not any(before)
    assert [(s.module, s.severity, s.since) for s in last] == [("fc1", "alarm", 20)]


@pytest.mark.parametrize(("count", "first", "since"), [(1, 0, None), (2 * WINDOW + 2, 1, 1), (120, 20, 20)])
def test_a_cut_is_named_with_its_step_unless_no_gradient_ever_came(count, first, since):
    """The last one is longer ago than numbers are kept."""
    made = training(count, skipped(*range(first, 120)))
    *_, last = looked(made)
    assert [(s.module, s.severity) for s in last] == [("fc1", "alarm")]
    if count < 120:
        assert last[0].since == since
    else:
        assert [(v.module, v.since, v.until) for v in judged([NO_GRADIENT], made).verdicts] == [("fc1", since, None)]


@pytest.mark.parametrize(("losses", "severity"), [(None, "note"), ([2.3] * 60, "alarm")])
def test_a_layer_that_has_moved_and_no_longer_does_is_a_note_while_the_loss_is_lower_for_it(losses, severity):
    made = training(60, lambda step: still("fc1.weight", "fc1.bias") if step >= 50 else {}, losses=losses)
    assert places(findings(NOT_UPDATED, made)) == [("fc1", severity)]


def of_idle(names, options):
    """What `no_gradient` finds where the loss of the first step does not depend on some weights."""
    layers = options.get("layers", LAYERS)
    run = Run(layers, WINDOW)
    run.facts = StepFacts(idle=frozenset(names))
    found = []
    for look in training(**options):
        run.see(look)
        found = list(NO_GRADIENT.judge(run))
    return found


def test_layers_that_the_loss_does_not_depend_on_are_one_note():
    (found,) = of_idle(["a.weight", "a.bias", "b.weight", "b.bias"], never_ran("a", "b"))
    assert (found.module, found.severity) == ("", "note")
    assert "the weights of 2 of the 5 layers in an optimizer had no effect on the loss" in found.evidence


def test_a_loss_that_depends_on_hardly_any_layer_is_an_alarm():
    gone = dict.fromkeys((name, "parameter_grad") for name in WEIGHTS)
    assert [(f.module, f.severity) for f in of_idle(WEIGHTS, always(gone))] == [("head", "alarm")]


def test_a_layer_that_the_loss_depends_on_is_cut_off_though_others_are_not_used():
    unused = never_ran("a")
    found = of_idle(["a.weight", "a.bias"], unused | always({**cut_behind("fc1"), **unused["change"](0)}))
    assert sorted((f.module, f.severity) for f in found) == [("a", "note"), ("fc1", "alarm")]
