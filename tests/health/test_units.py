"""Units that nothing activates."""

from dataclasses import replace

import pytest
from health.looks import reading, row
from health.runs import (
    falling,
    findings,
    harmed,
    linear,
    noise,
    nothing,
    outputs,
    rectified,
    run_of,
    weights,
    without_weights,
)

from hookboard.health.rules.units import DEAD_UNITS, FAINT_INPUT_SPREAD
from hookboard.model.layers import Layer

UNITS = 8

CHAIN = [linear("fc0"), without_weights("act0"), linear("fc1"), without_weights("act1"), linear("head", 3)]
WIDE = [*CHAIN[:2], linear("fc1", 20), without_weights("act1"), linear("head", 3, 20)]


def chain(act1, fc1=None, fc1_weights=None, act0=None):
    """What a look at CHAIN reads."""
    return [
        outputs("fc0", noise(UNITS)),
        outputs("act0", rectified(UNITS) if act0 is None else act0),
        outputs("fc1", noise(UNITS) if fc1 is None else fc1),
        outputs("act1", act1),
        outputs("head", noise(3)),
        *weights("fc0"),
        *(weights("fc1", seed=3) if fc1_weights is None else fc1_weights),
        *weights("head", 3, seed=6),
    ]


def partly_dead(dead, units=UNITS, count=100):
    return nothing(dead, count) + rectified(units - dead, count=count)


def negative(units, count=100):
    return [row(count, mean=-5.0, deviation=1.0) for _ in range(units)]


def test_a_layer_whose_units_are_all_dead_is_an_alarm_at_the_layer_whose_weights_make_it_so():
    (finding,) = findings(DEAD_UNITS, run_of(CHAIN, lambda n: chain(nothing(UNITS))))
    assert (finding.module, finding.severity, finding.since) == ("fc1", "alarm", 0)
    assert finding.evidence == (
        "8 of 8 units of act1 (ReLU) have been 0 at every measurement since step 0; no similar layer has dead units."
    )


@pytest.mark.parametrize(
    ("dead", "losses", "said"),
    [
        (3, falling, []),
        (4, falling, [("note", False)]),
        (7, falling, [("note", False)]),
        (8, falling, [("alarm", True)]),
        (5, harmed, [("note", False)]),
        (6, harmed, [("alarm", False)]),
        (8, harmed, [("alarm", True)]),
    ],
)
def test_half_of_the_units_make_a_note_and_nine_of_ten_or_with_harm_three_of_four_an_alarm(dead, losses, said):
    """That of a layer as good as dead needs no loss."""
    found = findings(DEAD_UNITS, run_of(CHAIN, lambda n: chain(partly_dead(dead)), losses=losses))
    assert [(finding.severity, finding.is_hard) for finding in found] == said


def test_a_unit_that_came_back_from_a_silence_must_be_silent_for_more_than_twice_as_long():
    def silent(n):
        return chain(rectified(UNITS) if n == 4 else nothing(UNITS))

    assert not findings(DEAD_UNITS, run_of(CHAIN, silent, count=13))
    (finding,) = findings(DEAD_UNITS, run_of(CHAIN, silent, count=14))
    assert finding.since == 50


TURNS = {
    # The third of 8 units, with which the fault begins, falls silent together with most of the others.
    "most at once": ((0, 2, 2, 2, 4), 20, "40 (4 of them by step 20);", "the inputs of this layer up to step 20;"),
    # More than a quarter of the 8 units are dead since the third one died.
    "one after the other": ((0, 0, 2, 4, 6), 20, "60 (3 of them by step 20);", "how this layer is initialized"),
    "most later": ((0, 4, 4, 6), 40, "60 (3 of them by step 40);", "the inputs of this layer up to step 40;"),
}


@pytest.mark.parametrize(("begins", "since", "steps", "advice"), TURNS.values(), ids=TURNS)
def test_the_steps_at_which_units_died_are_named_and_the_advice_goes_by_that_of_most(begins, since, steps, advice):
    """Of units each of which falls silent at its own look."""

    def readings(n):
        dying = [(nothing(1) if n >= at else rectified(1))[0] for at in begins]
        return chain(dying + rectified(UNITS - len(begins)))

    finding = findings(DEAD_UNITS, run_of(CHAIN, readings, 12))[0]
    assert finding.since == since
    assert f"act1 (ReLU) have been 0 at every measurement since step {steps}" in finding.evidence
    assert advice in finding.advice


def test_the_rate_is_to_blame_for_dead_units_where_a_step_until_then_was_large():
    steps = [reading("fc1.weight", "parameter_before", [row(UNITS, 0.0, 0.1)] * UNITS)]
    steps += [reading("fc1.weight", "parameter_update", [row(UNITS, 0.0, 0.005)] * UNITS)]
    run = run_of(CHAIN, lambda n: [*chain(partly_dead(1) if n < 4 else nothing(UNITS)), *steps], count=8)
    (finding,) = findings(DEAD_UNITS, run)
    assert (
        finding.advice
        == "Lower the learning rate or warm it up, because by step 40 a single step had changed these weights by 5%."
    )


def test_a_dropout_is_no_other_layer_of_the_kind_of_a_rectifier():
    alone = [linear("fc1"), without_weights("act1"), without_weights("drop", "dropout", "Dropout"), linear("head", 3)]
    given = ("fc1", noise(UNITS)), ("act1", partly_dead(4)), ("drop", partly_dead(4)), ("head", noise(3))
    readings = [*(outputs(*each) for each in given), *weights("fc1"), *weights("head", 3, seed=6)]
    (finding,) = findings(DEAD_UNITS, run_of(alone, lambda n: readings))
    assert finding.evidence == "4 of 8 units of act1 (ReLU) have been 0 at every measurement since step 0."


@pytest.mark.parametrize(("dead", "enough"), [(UNITS - 1, 16), (UNITS, 4)], ids=["of some units", "of all units"])
def test_too_few_samples_tell_nothing(dead, enough):
    def few(count):
        return run_of(CHAIN, lambda n: chain(partly_dead(dead, count=count)), count=8)

    assert not findings(DEAD_UNITS, few(enough - 1))
    assert findings(DEAD_UNITS, few(enough))


CALLED = [linear("fc1", 32), linear("fc2", 8, 32)]
"""A feed-forward part whose activation is called as a function."""


def called(fc1, gradient, head=None):
    return [
        outputs("fc1", fc1),
        outputs("fc2", noise(8)),
        *weights("fc1", 32, gradient=gradient),
        *weights("fc2", 8, seed=5, gradient=head),
    ]


def test_of_a_large_weight_the_units_that_are_measured_count():
    # 32 units of 8192 inputs, of which every fourth is measured.
    layers = [linear("fc1", 32, 8192), linear("fc2", 8, 32)]
    of_weights = [*weights("fc1", 8, gradient=nothing(8)), *weights("fc2", 8, 5)]
    readings = [outputs("fc1", negative(32)), outputs("fc2", noise(8)), *of_weights]
    (finding,) = findings(DEAD_UNITS, run_of(layers, lambda n: readings))
    assert finding.evidence.startswith("8 of 8 sampled units (of 32) have not been above 0 at any measurement")


@pytest.mark.parametrize(("times", "fires"), [(0.97, False), (1.03, True)])
def test_units_that_are_given_next_to_a_constant_are_not_called_dead(times, fires):
    # Each of them is on or off for all samples, by chance: their deviation over the samples is this share of their RMS.
    share = times * FAINT_INPUT_SPREAD
    given = [row(100, mean=(1 - share**2) ** 0.5, deviation=share, low=0.0)] * UNITS
    run = run_of(CHAIN, lambda n: chain(nothing(UNITS), act0=given))
    assert [finding.module for finding in findings(DEAD_UNITS, run)] == (["fc1"] if fires else [])


@pytest.mark.parametrize(
    ("dead", "losses", "severity"),
    [(19, falling, "note"), (19, lambda n: [2.3, 2.299] * 5, "alarm"), (20, falling, "alarm")],
)
def test_a_layer_of_which_a_few_units_live_is_a_note_while_the_loss_falls_with_them(dead, losses, severity):
    readings = chain(partly_dead(dead, 20), fc1=noise(20))
    (finding,) = findings(DEAD_UNITS, run_of(WIDE, lambda n: readings, losses=losses))
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("bias", "advice"),
    [
        (-8.0, "Initialize the biases of this layer to 0, because their mean is -8."),
        (0.01, "Check how this layer is init"),
    ],
)
@pytest.mark.parametrize("names", [["fc1.bias"], ["fc1.weight", "fc1.bias"]], ids=["a layer", "a norm"])
def test_biases_are_to_blame_for_units_dead_from_the_start_where_they_make_the_outputs_negative(names, bias, advice):
    layers = [*CHAIN[:2], replace(linear("fc1"), shapes=dict.fromkeys(names, (UNITS,))), *CHAIN[3:]]
    biases = [reading(name, "parameter_before", [row(UNITS, bias if "bias" in name else 1.0, 0.01)]) for name in names]
    (finding,) = findings(DEAD_UNITS, run_of(layers, lambda n: [*chain(nothing(UNITS), fc1=negative(UNITS)), *biases]))
    assert finding.advice.startswith(advice)


def turns(n):
    """At each look another half is silent, as where each batch is of one class."""
    return chain(nothing(4) + rectified(4) if n // 2 % 2 else rectified(4) + nothing(4))


def beside_nan(n):
    """From the fourth look on, all but two units and their weights are NaN."""
    outs = nothing(2) + [row(0, 0.0, 0.0, nonfinite=100)] * 6
    rows = [row(8)] * 2 + [row(0, 0.0, 0.0, nonfinite=8)] * 6
    return chain(partly_dead(2) if n < 3 else outs, fc1_weights=weights("fc1", rows=rows))


NORM = Layer("bn", "BatchNorm2d", "norm", ("bn.weight",), frozenset({"bn.weight"}))
NORMED = [linear("conv", kind="conv"), NORM, without_weights("act")]
DROPOUT = without_weights("drop", "dropout", "Dropout")
TANH = without_weights("act", "bounded", "Tanh")
PRUNED = weights("fc1", rows=nothing(6) + noise(2, scale=0.1), gradient=nothing(6) + noise(2))
PRUNED_CONV = weights("conv", rows=nothing(6) + noise(2, scale=0.1))
BELOW_0 = [row(100, -1.0, 1e-4)] * 32
DEEP = [row(100, mean=-7.0, deviation=1.0)] * 32
LITTLE = [row(8, 0.0, 1e-8)] * 32
SOME_CLASSES = weights("head", 32, 4, gradient=nothing(24) + noise(8, scale=0.01))

HEALTHY = {
    "a layer with 95 % zeros": (CHAIN, lambda n: chain(rectified(UNITS, zeros=95))),
    "units that take turns": (CHAIN, turns),
    "pruned units": (CHAIN, lambda n: chain(partly_dead(6), fc1_weights=PRUNED)),
    "pruned units before a norm": (
        NORMED,
        lambda n: [outputs("conv", noise(8)), outputs("bn", noise(8)), outputs("act", partly_dead(6)), *PRUNED_CONV],
    ),
    "an expert that gets no tokens": (CHAIN, lambda n: chain(nothing(UNITS))[: None if n < 2 else 2]),
    "units in front of a function that get a gradient": (CALLED, lambda n: called(negative(32), noise(32, scale=0.01))),
    "units in front of a function that are positive at times": (CALLED, lambda n: called(noise(32), nothing(32))),
    "a model where nothing gets a gradient": (CALLED, lambda n: called(negative(32), nothing(32), nothing(8))),
    "units not far below 0 that get little": (CALLED, lambda n: called(negative(32), LITTLE)),
    "units before a tanh": (
        [CALLED[0], TANH, CALLED[1]],
        lambda n: [outputs("act", BELOW_0), *called(negative(32), nothing(32))],
    ),
    "classes that never come": (
        [linear("fc", 8), linear("head", 32, 8)],
        lambda n: [outputs("fc", noise(8)), outputs("head", negative(32)), *weights("fc"), *SOME_CLASSES],
    ),
    "units beside NaN": (CHAIN, beside_nan),
}


@pytest.mark.parametrize(("layers", "seen"), HEALTHY.values(), ids=HEALTHY)
def test_nothing_is_dead_of(layers, seen):
    assert findings(DEAD_UNITS, run_of(layers, seen, losses=harmed)) == []


WITH_DROPOUT = [*CHAIN[:4], DROPOUT, CHAIN[4]]
CONSTANT = [row(100, mean=-1.0, deviation=0.0)] * UNITS
FAINT = [row(100, mean=-1.0, deviation=0.5 * FAINT_INPUT_SPREAD)] * 3

DEAD = {
    "behind a norm": (
        NORMED,
        [outputs("conv", noise(8)), outputs("bn", negative(8)), outputs("act", nothing(8)), *weights("conv")],
        ("bn", "alarm"),
    ),
    "of a frozen layer": (
        [*CHAIN[:2], linear("fc1", trainable=False), *CHAIN[3:]],
        chain(nothing(UNITS)),
        ("fc1", "note"),
    ),
    "in front of a function": (CALLED, called(negative(32), nothing(32)), ("fc1", "alarm")),
    "far below 0 of a GELU, which lets next to no gradient through": (CALLED, called(DEEP, LITTLE), ("fc1", "alarm")),
    "of a dropout of everything": (
        WITH_DROPOUT,
        [*chain(rectified(UNITS)), outputs("drop", nothing(UNITS))],
        ("drop", "alarm"),
    ),
    "before a dropout": (WITH_DROPOUT, [*chain(nothing(UNITS)), outputs("drop", nothing(UNITS))], ("fc1", "alarm")),
    # Behind a dead layer all is constant, and half of the units are negative by chance.
    "before what they feed": (
        CHAIN,
        chain(nothing(UNITS), fc1=CONSTANT, act0=nothing(UNITS)),
        ("fc0", "alarm"),
    ),
    # Counted backwards, the head stands right before the first layer: what that gives says nothing of it.
    "of the first layer": (
        CHAIN,
        [*chain(rectified(UNITS), act0=nothing(UNITS)), outputs("head", FAINT)],
        ("fc0", "alarm"),
    ),
}


@pytest.mark.parametrize(("layers", "readings", "place"), DEAD.values(), ids=DEAD)
def test_one_finding_names_dead_units(layers, readings, place):
    (finding,) = findings(DEAD_UNITS, run_of(layers, lambda n: readings, losses=harmed))
    assert (finding.module, finding.severity) == place


def test_several_layers_with_some_dead_units_are_one_note_at_the_first():
    run = run_of(CHAIN, lambda n: chain(partly_dead(5), act0=partly_dead(4)), losses=falling)
    assert [(s.module, s.severity) for s in findings(DEAD_UNITS, run)] == [("fc0", "note")]
