"""`update_too_small` and `update_too_large`: what fires, and what looks alike and is well."""

from dataclasses import replace

import numpy as np
import pytest
from health import looks
from health.trainings import (
    LAYERS,
    WEIGHTS,
    falling,
    findings,
    judged,
    linear,
    of,
    places,
    risen,
    seen,
    stuck,
    training,
)

from hookboard.health.look import Stepped
from hookboard.health.rules import LOOK_RULES
from hookboard.model.sites import Site
from hookboard.tracing.questions import RULES

OF_LOOKS = [rule for rule in LOOK_RULES if rule.of != "end"]
TOO_SMALL, TOO_LARGE = RULES["update_too_small"], RULES["update_too_large"]


def moved(ratio: float, *names: str):
    """Updates of this size, relative to the weights, which are 0.1."""
    weights = [w for name in names or LAYERS for w in LAYERS[name].weights]
    return {(w, "parameter_update"): exactly(w, "parameter_update", ratio * 0.1) for w in weights} | {
        (w, "parameter_before"): exactly(w, "parameter_before", 0.1) for w in weights
    }


def exactly(name: str, role: str, rms: float):
    return looks.reading(name, role, [looks.row(100, 0.0, rms)])


def sized(*sizes: float, begin: float = 0.1, layer: str = ""):
    """Weights that are so many times as large as at the beginning, each for 10 steps; the last one to the end."""

    def change(step):
        size = begin * sizes[min(step // 10, len(sizes) - 1)]
        names = [name for name in WEIGHTS if name.startswith(layer)]
        return {(name, "parameter_before"): exactly(name, "parameter_before", size) for name in names}

    return change


@pytest.mark.parametrize(
    ("highest", "said"),
    [
        (1e-6, " by a factor of about 1000, so that a step at the highest rate changes the weights by 0.1%,"),
        (1.1e-3, ","),
    ],
)
def test_the_advice_on_tiny_steps_is_for_the_highest_rate_and_not_for_what_a_schedule_left_of_it(highest, said):
    def change(step):
        return moved(highest * (1 - step / 106))  # at the last look 7 %

    made = training(100, change, losses=stuck(100), rate=lambda step: 1e-9 * (1 - step / 106))
    (found,) = findings(TOO_SMALL, made)
    assert f"raise the learning rate{said}" in found.advice


def at_step(step, there, elsewhere):
    """Updates of one size at a step, and of another one at all others."""
    return lambda now: moved(there if now == step else elsewhere)


def from_zero(step):
    return moved(0.01) | moved(5.0, "fc1") | sized(float(step > 0), layer="fc1")(step)


SIZES = {"parameter_update": 1e-6, "parameter_before": 0.1}
BESIDE_NAN = {
    (name, role): looks.reading(name, role, [looks.row(90, 0.0, SIZES[role], nonfinite=10)])
    for name, role in moved(1e-5)
}
FROM_LAYER_TO_LAYER = moved(1e-3) | moved(1e-5, "fc0") | moved(1e-4, "fc1")
LEARNS, STAYS, RISES = falling(100), stuck(100), risen(100)
WELL = {
    "steps above the border though the model does not learn": (TOO_SMALL, lambda step: moved(1.1e-4), STAYS),
    "tiny steps of a model that learns": (TOO_SMALL, lambda step: moved(1e-7), LEARNS),
    "rates that fall from layer to layer": (TOO_SMALL, lambda step: FROM_LAYER_TO_LAYER, LEARNS),
    "large steps without harm": (TOO_LARGE, lambda step: moved(0.2), LEARNS),
    "harm with steps below the border": (TOO_LARGE, lambda step: moved(0.09), RISES),
    "one large step": (TOO_LARGE, at_step(30, 9.0, 1e-2), RISES),
    "a first step that overwrites the weights while the loss falls": (TOO_LARGE, at_step(0, 1.0, 1e-3), LEARNS),
    "one large step at the start of a loss that stays": (TOO_LARGE, at_step(0, 0.9, 1e-3), STAYS),
    "steps from weights that are all 0": (TOO_LARGE, sized(0.0), RISES),
    "a layer that starts at 0 and moves far": (TOO_LARGE, from_zero, RISES),
    "one layer that has grown": (TOO_LARGE, sized(1, 99, layer="fc1"), STAYS),
    "weights that have grown while the loss falls": (TOO_LARGE, sized(1, 2, 10, 60), LEARNS),
    # The L2 norm of the eight weights of a unit is 0.1 where it counts.
    "weights that have grown from near 0": (TOO_LARGE, sized(1, 60, begin=0.097 / 8**0.5), STAYS),
    "a layer not far above the others": (TOO_LARGE, lambda step: moved(0.01) | moved(0.09, "fc1"), RISES),
    "what is left beside NaN": (TOO_SMALL, lambda step: BESIDE_NAN, STAYS),
}


@pytest.mark.parametrize(("rule", "change", "losses"), WELL.values(), ids=WELL)
def test_nothing_is_said_of(rule, change, losses):
    assert findings(rule, training(100, change, losses)) == []


FAR_BELOW = moved(1e-3) | moved(9e-7, "fc1")
FAR_ABOVE = moved(0.01) | moved(0.33, "fc1")
FOUND = {
    "tiny steps of a model that does not learn": (TOO_SMALL, lambda step: moved(9e-5), STAYS, ("", "alarm")),
    # Eight channels at the end: a classifier of eight, which starts far below chance.
    "tiny steps in fine-tuning": (
        TOO_SMALL,
        lambda step: moved(1e-7),
        [0.05 + 0.01 * (i % 3) for i in range(100)],
        ("", "note"),
    ),
    "a layer far below the others": (TOO_SMALL, lambda step: FAR_BELOW, LEARNS, ("fc1", "note")),
    "a layer far below the others with harm": (TOO_SMALL, lambda step: FAR_BELOW, STAYS, ("fc1", "alarm")),
    "a layer far above the others": (TOO_LARGE, lambda step: FAR_ABOVE, RISES, ("fc1", "alarm")),
    "weights that have grown": (TOO_LARGE, sized(1, 60, begin=0.103 / 8**0.5), STAYS, ("", "alarm")),
}


@pytest.mark.parametrize(("rule", "change", "losses", "place"), FOUND.values(), ids=FOUND)
def test_one_finding_names(rule, change, losses, place):
    (finding,) = findings(rule, training(100, change, losses))
    assert (finding.module, finding.severity) == place
    assert (rule is TOO_SMALL and place[0] == "") is ("AdamW" in finding.evidence)


def test_nothing_is_said_of_weights_that_have_grown_where_nobody_can_tell_whether_the_loss_falls():
    def several(look):
        return replace(look, losses=[replace(loss, backwards=2) for loss in look.losses])

    assert findings(TOO_LARGE, training(60, sized(1, 2, 10, 60), losses=stuck(60), edit=several)) == []


@pytest.mark.parametrize("rate", [lambda step: 1e-9 * (step + 1), lambda step: 1e-3 * (1 - step / 100) ** 4])
def test_tiny_steps_in_a_warm_up_or_at_the_end_of_a_schedule_are_well(rate):
    assert findings(TOO_SMALL, training(100, lambda step: moved(1e-7), stuck(100), rate=rate)) == []


@pytest.mark.usefixtures("at_every_look")
def test_large_steps_before_harm_are_an_alarm_since_they_began():
    made = training(60, lambda step: moved(0.11 if step >= 20 else 1e-2), losses=risen(60))
    verdicts = judged([TOO_LARGE], made).verdicts
    assert [(v.severity, v.module, v.since) for v in verdicts] == [("alarm", "", 20)]


def test_a_healthy_training_gives_no_finding_of_any_rule():
    run = seen(training(120, losses=falling(120)))
    assert [rule.name for rule in OF_LOOKS if list(rule.judge(run))] == []


def test_gains_and_biases_alone_are_not_judged():
    layers = {**LAYERS, "fc1": replace(LAYERS["fc1"], weights=("fc1.bias",), shapes={"fc1.bias": (8,)})}
    made = training(60, lambda step: moved(9.0, "fc1"), losses=risen(60), layers=layers)
    assert findings(TOO_LARGE, made, layers) == []


def test_steps_that_became_tiny_are_too_small_since_then_though_the_loss_shows_it_later():
    def change(step):
        # At step 39 nothing was measured.
        nothing = {(w, "parameter_update"): None for w in WEIGHTS} if step == 39 else {}
        return moved(9e-5 if step >= 40 else 1e-3) | nothing

    found = findings(TOO_SMALL, training(100, change, losses=stuck(100)))
    assert [(s.module, s.since) for s in found] == [("", 40)]
    found = findings(TOO_SMALL, training(100, lambda step: moved(9e-5), losses=stuck(100)))
    assert [(s.module, s.since) for s in found] == [("", 0)]


@pytest.mark.parametrize(("times", "fires"), [(29, False), (31, True)])
def test_weights_that_have_grown_out_of_proportion_are_an_alarm_where_the_loss_does_not_fall(times, fires):
    found = findings(TOO_LARGE, training(60, sized(1, 2, 10, times), losses=stuck(60)))
    assert places(found) == ([("", "alarm")] if fires else [])
    assert [s.since for s in found] == ([20] if fires else [])


def test_the_weights_of_an_adapter_have_grown_though_all_others_are_frozen():
    held = ["fc1.weight", "fc1.bias"]
    made = training(60, sized(1, 99, layer="fc1"), losses=stuck(60), held=held)
    assert places(findings(TOO_LARGE, made)) == [("", "alarm")]


def test_a_layer_that_comes_during_the_fit_is_no_fault():
    """Its rows begin with NaN."""
    layers = {**LAYERS, "late": linear("late"), "bn": replace(linear("bn"), type="BatchNorm1d", kind="norm")}
    run = seen(training(20))
    run.follow(layers)
    held = [weight for layer in layers.values() for weight in layer.weights]
    gain = {("bn.weight", "parameter_before"): exactly("bn.weight", "parameter_before", 1.0)}
    for look in training(80, lambda step: gain, losses=falling(100)[20:], layers=layers, held=held):
        run.see(replace(look, step=look.step + 20))
        for rule in OF_LOOKS:
            assert list(rule.judge(run)) == [], rule.name


@pytest.mark.parametrize(("names", "fires"), [(["head"], False), (["fc1", "head"], True)])
def test_a_single_layer_may_leave_its_initialization_in_one_step(names, fires):
    """In a regression, whose gradients have an offset in common."""
    layers = {name: LAYERS[name] for name in names}
    offset = {("head", "grad_output"): of("head", "grad_output", 0.01, mean=0.01)}
    change = lambda step: moved(2.0 if step == 0 else 1e-3, *layers) | offset  # noqa: E731
    made = training(40, change, [3.0, 9.0, *falling(38)], layers=layers)
    assert bool(findings(TOO_LARGE, made, layers)) is fires


@pytest.mark.parametrize(("well", "severity"), [(40, "note"), (0, "alarm")])
def test_large_steps_that_were_over_when_the_loss_was_at_its_best_have_not_made_it_rise(well, severity):
    losses = [*np.linspace(2.3, 2.2, 10), *np.linspace(2.2, 0.5, well), *[2.9] * (80 - well)]
    made = training(90, lambda step: moved(0.2 if step < 8 else 1e-3), losses=losses)
    (found,) = findings(TOO_LARGE, made)
    assert found.severity == severity


@pytest.mark.parametrize(("ratio", "severity"), [(2.9, "note"), (3.1, "alarm")])
def test_a_first_step_of_three_times_the_weights_is_an_alarm_whatever_the_loss_does(ratio, severity):
    judge = judged([TOO_LARGE], training(60, lambda step: moved(ratio if step == 0 else 1e-3)))
    assert judge.run.losses.is_well
    assert [(v.severity, v.since) for v in judge.verdicts] == [(severity, 0)]


@pytest.mark.parametrize(
    ("rates", "frozen", "why"),
    [
        ([1e-9], [], "the learning rate is 1e-09"),
        ([], WEIGHTS, "none of them requires a gradient"),
        ([], [], "no optimizer steps them"),
    ],
)
def test_weights_that_stopped_for_good_are_an_alarm_with_the_reason_unless_a_schedule_ends(rates, frozen, why):
    (verdict,) = judged([RULES["not_updated"]], stopping(60, 30, rates, frozen)).verdicts
    assert (verdict.severity, verdict.module, verdict.since) == ("alarm", "", 29)
    assert verdict.evidence == f"no weight of the model has changed since step 29: {why} (31 of 60 steps)"
    assert judged([RULES["not_updated"]], stopping(60, 46, rates, frozen)).verdicts == ()


def stopping(steps, moving, rates, frozen):
    """A healthy training whose weights are the same from a step on, with what the optimizer does there."""
    sites = [Site(name, "parameter_before") for name in WEIGHTS]
    for look in training(steps):
        at = min(look.step, moving - 1)
        readings = {site: exactly(site.name, "parameter_before", 0.1 + 1e-4 * at) for site in sites}
        is_over = look.step >= moving
        updates = {Site(n, "parameter_update"): exactly(n, "parameter_update", 0.0) for n in WEIGHTS if is_over}
        stepped = {name: Stepped("SGD", rate, False) for name in WEIGHTS for rate in rates}
        yield replace(
            look,
            readings=looks.readings_of({**look.readings, **readings, **updates}.values()),
            stepped=stepped if is_over else look.stepped,
            frozen=frozenset(frozen if is_over else ()),
        )


def test_weights_that_begin_near_0_may_move_by_many_times_their_size():
    """As an embedding of standard deviation 1e-4, or the factors of a matrix."""
    small = {(w, role): exactly(w, role, 1e-3) for w in WEIGHTS for role in ("parameter_before", "parameter_update")}
    judge = judged([TOO_LARGE], training(60, lambda step: small if step == 0 else moved(1e-3)))
    assert judge.verdicts == ()
    assert judge.run.first_move == pytest.approx(1e-3)
