"""`update_too_small` and `update_too_large`: what fires, and what looks alike and is well."""

from dataclasses import replace

import numpy as np
from health import looks
from health.trainings import LAYERS, WEIGHTS, falling, judged, linear, places, risen, stuck, symptoms, training

from hookboard.health.rules import RULES
from hookboard.health.rules.updates import FAR_ABOVE, FAR_BELOW, LARGE, SMALL

TOO_SMALL, TOO_LARGE = RULES["update_too_small"], RULES["update_too_large"]


def moved(ratio: float, *names: str):
    """Updates of this size, relative to the weights, which are 0.1."""
    weights = [w for name in names or LAYERS for w in LAYERS[name].weights]
    return {(w, "parameter_update"): exactly(w, "parameter_update", ratio * 0.1) for w in weights} | {
        (w, "parameter_before"): exactly(w, "parameter_before", 0.1) for w in weights
    }


def exactly(name: str, role: str, rms: float):
    return looks.reading(name, role, [looks.row(100, 0.0, rms)])


def test_tiny_steps_of_a_model_that_does_not_learn_are_an_alarm():
    made = training(100, lambda step: moved(0.9 * SMALL), losses=stuck(100))
    found = symptoms(TOO_SMALL, made)
    assert places(found) == [("", "alarm")]
    assert "AdamW" in found[0].evidence


def test_steps_above_the_border_are_well_even_if_the_model_does_not_learn():
    assert symptoms(TOO_SMALL, training(100, lambda step: moved(1.1 * SMALL), losses=stuck(100))) == []


def test_tiny_steps_of_a_model_that_learns_are_well():
    assert symptoms(TOO_SMALL, training(60, lambda step: moved(1e-7))) == []


def test_tiny_steps_in_fine_tuning_are_no_alarm():
    made = training(60, lambda step: moved(1e-7), losses=[0.05 + 0.01 * (i % 3) for i in range(60)])
    # Eight channels at the end: a classifier of eight, which starts far below chance.
    assert places(symptoms(TOO_SMALL, made)) == [("", "note")]


def test_tiny_steps_in_a_warm_up_are_well():
    made = training(100, lambda step: moved(1e-7), losses=stuck(100), rate=lambda step: 1e-9 * (step + 1))
    assert symptoms(TOO_SMALL, made) == []


def test_tiny_steps_at_the_end_of_a_schedule_are_well():
    made = training(100, lambda step: moved(1e-7), losses=stuck(100), rate=lambda step: 1e-3 * (1 - step / 100) ** 4)
    assert symptoms(TOO_SMALL, made) == []


def test_a_layer_far_below_the_others_is_named():
    ratio = 0.9 * FAR_BELOW * 1e-3
    made = training(change=lambda step: moved(1e-3) | moved(ratio, "fc1"))
    assert places(symptoms(TOO_SMALL, made)) == [("fc1", "note")]
    made = training(100, lambda step: moved(1e-3) | moved(ratio, "fc1"), losses=stuck(100))
    assert places(symptoms(TOO_SMALL, made)) == [("fc1", "alarm")]


def test_rates_that_fall_from_layer_to_layer_are_well():
    made = training(change=lambda step: moved(1e-3) | moved(1e-5, "fc0") | moved(1e-4, "fc1"))
    assert symptoms(TOO_SMALL, made) == []


def test_large_steps_before_harm_are_an_alarm_since_they_began():
    made = training(60, lambda step: moved(1.1 * LARGE if step >= 20 else 1e-2), losses=risen(60))
    verdicts = judged([TOO_LARGE], made).verdicts
    assert [(v.severity, v.module, v.since) for v in verdicts] == [("alarm", "", 20)]


def test_large_steps_without_harm_are_well():
    assert symptoms(TOO_LARGE, training(60, lambda step: moved(2 * LARGE))) == []


def test_harm_with_steps_below_the_border_is_not_blamed_on_them():
    assert symptoms(TOO_LARGE, training(60, lambda step: moved(0.9 * LARGE), losses=risen(60))) == []


def test_a_rate_that_jumps_is_an_alarm_since_the_jump():
    made = training(60, lambda step: moved(0.1 if step >= 30 else 2e-3), losses=risen(60))
    found = symptoms(TOO_LARGE, made)
    assert [(s.module, s.since) for s in found] == [("", 30)]
    assert "0.002 before" in found[0].evidence


def test_one_large_step_is_no_rate_that_is_too_large():
    assert symptoms(TOO_LARGE, training(60, lambda step: moved(9.0 if step == 30 else 1e-2), losses=risen(60))) == []


def test_a_layer_far_above_the_others_is_named():
    made = training(60, lambda step: moved(0.01) | moved(1.1 * FAR_ABOVE * 0.01, "fc1"), losses=risen(60))
    assert places(symptoms(TOO_LARGE, made)) == [("fc1", "alarm")]
    made = training(60, lambda step: moved(0.01) | moved(0.9 * LARGE, "fc1"), losses=risen(60))
    assert symptoms(TOO_LARGE, made) == []


def test_a_layer_that_starts_at_zero_may_move_far():
    def change(step):
        before = exactly("fc1.weight", "parameter_before", 0.0 if step == 0 else 0.1)
        return moved(0.01) | moved(5.0, "fc1") | {("fc1.weight", "parameter_before"): before}

    assert symptoms(TOO_LARGE, training(60, change, losses=risen(60))) == []


def test_steps_from_weights_that_are_all_zero_are_not_counted():
    change = {(w, "parameter_before"): exactly(w, "parameter_before", 0.0) for w in WEIGHTS}
    assert symptoms(TOO_LARGE, training(60, lambda step: change, losses=risen(60))) == []


def test_layers_that_never_ran_and_empty_looks_are_no_fault():
    layers = {**LAYERS, "expert": linear("expert")}
    bare = training(40, losses=stuck(40), edit=lambda look: replace(look, readings={}))
    for rule in RULES.values():
        assert symptoms(rule, bare, layers) == [], rule.name


def test_a_healthy_training_gives_no_symptom_of_any_rule():
    made = training(120, losses=falling(120))
    for rule in RULES.values():
        assert symptoms(rule, made) == [], rule.name


def test_a_schedule_that_is_one_cycle_is_well():
    def rate(step):
        return 1e-3 * np.interp(step, [0, 40, 120], [0.04, 1, 1e-4])

    made = training(120, lambda step: moved(rate(step) * 10), rate=rate)
    assert judged([TOO_SMALL, TOO_LARGE], made).verdicts == ()


def test_gains_and_biases_alone_are_not_judged():
    layers = {**LAYERS, "fc1": replace(LAYERS["fc1"], weights=("fc1.bias",), shapes={"fc1.bias": (8,)})}
    made = training(60, lambda step: moved(9.0, "fc1"), losses=risen(60), layers=layers)
    assert symptoms(TOO_LARGE, made, layers) == []


def test_what_is_left_beside_nan_is_no_small_step():
    def spoiled(step):
        part = {}
        for (name, role), one in moved(0.1 * SMALL).items():
            size = 0.1 * SMALL * 0.1 if role == "parameter_update" else one.moments.rms
            part[name, role] = looks.reading(name, role, [looks.row(90, 0.0, size, nonfinite=10)])
        return part

    assert symptoms(TOO_SMALL, training(100, spoiled, losses=stuck(100))) == []
