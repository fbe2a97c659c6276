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
    typed,
    zeros,
)

from hookboard.health import Run
from hookboard.health.losses import AT_ZERO_SHARE
from hookboard.health.rules.shared import SCHEDULE_END_SHARE, UPDATE_RATIO_SMALL
from hookboard.model.layers import Layer
from hookboard.model.sites import Site
from hookboard.tracing import RULES

NO_GRADIENT, NOT_UPDATED = RULES["no_gradient"], RULES["not_updated"]


def cut_behind(name: str, by=lambda name, role: None):
    """No gradient (or what `by` gives) at a layer and all before it."""
    names = list(LAYERS)[: list(LAYERS).index(name) + 1]
    weights = [weight for layer in names for weight in LAYERS[layer].weights]
    slots = [(n, "grad_output") for n in names] + [(w, "parameter_grad") for w in weights]
    return {slot: by(*slot) for slot in slots}


@pytest.mark.parametrize("by", [lambda name, role: None, zeros], ids=["none", "zeros"])
def test_a_cut_is_named_where_the_gradient_is_lost_first(by):
    found = findings(NO_GRADIENT, training(change=lambda step: cut_behind("fc1", by)))
    assert places(found) == [("fc1", "alarm")]
    assert "2 layers, fc0 to fc1" in found[0].evidence


@pytest.mark.parametrize(("by", "is_root"), [(lambda name, role: None, True), (zeros, False)], ids=["none", "zeros"])
def test_only_a_gradient_that_never_comes_is_a_fault_by_itself(by, is_root):
    assert findings(NO_GRADIENT, training(change=lambda step: cut_behind("fc1", by)))[0].is_root is is_root


def test_a_cut_behind_an_activation_is_named_there():
    assert places(findings(NO_GRADIENT, training(change=lambda step: cut_behind("act1")))) == [("act1", "alarm")]


def test_a_gradient_everywhere_is_well():
    assert findings(NO_GRADIENT, training()) == []


def test_a_gradient_that_is_tiny_but_not_zero_is_none_of_this_rule():
    change = {(weight, "parameter_grad"): of(weight, "parameter_grad", 1e-30) for weight in LAYERS["fc0"].weights}
    assert findings(NO_GRADIENT, training(change=lambda step: change)) == []


def test_frozen_layers_are_no_matter():
    frozen = {**LAYERS, "fc0": replace(LAYERS["fc0"], trainable=frozenset())}
    held = [weight for weight in WEIGHTS if not weight.startswith("fc0")]
    made = training(change=lambda step: cut_behind("act0"), held=held, layers=frozen)
    assert findings(NO_GRADIENT, made, frozen) == []


def test_zeros_behind_a_layer_that_starts_at_zero_do_not_last():
    made = training(change=lambda step: cut_behind("fc1", zeros) if step == 0 else {})
    assert judged([NO_GRADIENT], made).verdicts == ()


def test_zeros_before_the_first_step_of_a_warm_up_are_no_matter():
    made = training(change=lambda step: cut_behind("fc1", zeros), rate=0.0)
    assert findings(NO_GRADIENT, made) == []


def test_parts_of_a_gan_that_step_in_turns_are_well():
    mine = [list(LAYERS["fc0"].weights), [*LAYERS["fc1"].weights, *LAYERS["head"].weights]]

    def change(step):
        return {(weight, "parameter_grad"): None for weight in mine[1 - step % 2]}

    made = training(10, change, held=lambda step: mine[step % 2])
    assert judged([NO_GRADIENT, NOT_UPDATED], made).verdicts == ()


def test_an_expert_that_never_ran_is_a_note_that_says_so():
    layers = {**LAYERS, "expert": linear("expert")}
    gone = [("expert", "output"), ("expert", "grad_output")]
    gone += [(weight, "parameter_grad") for weight in layers["expert"].weights]
    made = training(change=lambda step: dict.fromkeys(gone), layers=layers, held=[*WEIGHTS, "expert.weight"])
    found = findings(NO_GRADIENT, made, layers)
    assert places(found) == [("expert", "note")]
    assert "never ran" in found[0].evidence


def test_a_layer_that_never_ran_and_is_no_expert_was_forgotten():
    gone = dict.fromkeys([("extra", "output"), ("extra", "grad_output"), ("extra.weight", "parameter_grad")])
    layers = {**LAYERS, "extra": linear("extra")}

    def seen_for(count, layers=layers, name="extra"):
        held = [*WEIGHTS, f"{name}.weight"]
        return findings(NO_GRADIENT, training(count, lambda step: gone, layers=layers, held=held), layers)

    assert places(seen_for(4 * WINDOW)) == [("extra", "note")]
    assert places(seen_for(4 * WINDOW + 1)) == [("extra", "alarm")]


def changing(*weights: str):
    """Weights without a gradient at any look, which are others at every look."""
    found = {(w, "parameter"): of(w, "parameter", 0.1) for w in weights}
    return {**found, **dict.fromkeys((w, "parameter_grad") for w in weights)}


def test_a_layer_that_runs_and_is_trained_only_between_looks_is_no_alarm():
    layers = {**LAYERS, "extra": linear("extra")}
    gone = dict.fromkeys([("extra", "output"), ("extra", "grad_output")])
    held = [*WEIGHTS, "extra.weight"]

    def change(step):
        return {**gone, **changing("extra.weight")}

    made = training(4 * WINDOW + 1, change, layers=layers, held=held)
    assert places(findings(NO_GRADIENT, made, layers)) == [("extra", "note")]


def test_a_layer_whose_loss_is_added_only_between_looks_is_well():
    def change(step):
        return {**cut_behind("fc0"), **changing(*LAYERS["fc0"].weights)}

    assert findings(NO_GRADIENT, training(change=change)) == []


def test_a_weight_that_a_parametrization_computes_has_no_gradient_of_its_own():
    computed = {**LAYERS, "fc0": replace(LAYERS["fc0"], computed=LAYERS["fc0"].trainable)}
    assert findings(NO_GRADIENT, training(change=lambda step: cut_behind("fc0"), layers=computed), computed) == []


def test_one_of_several_experts_was_not_forgotten():
    layers = {**LAYERS, "experts.0": linear("experts.0"), "experts.1": linear("experts.1")}
    gone = dict.fromkeys(
        [("experts.1", "output"), ("experts.1", "grad_output"), ("experts.1.weight", "parameter_grad")]
    )
    held = [*WEIGHTS, "experts.0.weight", "experts.1.weight"]
    made = training(4 * WINDOW + 1, lambda step: gone, layers=layers, held=held)
    assert places(findings(NO_GRADIENT, made, layers)) == [("experts.1", "note")]


def test_a_layer_of_its_own_that_stopped_running_is_no_expert():
    sites = [("head", "output"), ("head", "grad_output"), *((w, "parameter_grad") for w in LAYERS["head"].weights)]
    made = training(80, lambda step: dict.fromkeys(sites) if step > 3 else {})
    found = [finding for finding in findings(NO_GRADIENT, made) if finding.module == "head"]
    assert found
    assert all("expert" not in finding.advice for finding in found)


def test_a_layer_that_is_used_without_being_called_is_well():
    change = {("fc1", "output"): None, ("fc1", "grad_output"): None}
    assert findings(NO_GRADIENT, training(change=lambda step: change)) == []


def test_one_weight_of_a_layer_without_a_gradient_is_a_note():
    made = training(change=lambda step: {("fc1.bias", "parameter_grad"): zeros("fc1.bias", "parameter_grad")})
    assert places(findings(NO_GRADIENT, made)) == [("fc1", "note")]


def test_no_gradient_anywhere_is_an_alarm_unless_there_was_one_before():
    cut = cut_behind("head", zeros)
    assert places(findings(NO_GRADIENT, training(change=lambda step: cut))) == [("head", "alarm")]
    done = training(50, lambda step: cut if step > 3 else {})
    assert [severity for _, severity in places(findings(NO_GRADIENT, done))] == ["note"]
    harmed = training(100, lambda step: cut, losses=stuck(100))
    assert places(findings(NO_GRADIENT, harmed)) == [("head", "alarm")]


def test_a_step_that_the_scaler_skipped_tells_nothing():
    made = training(change=lambda step: cut_behind("fc1"), edit=lambda look: replace(look, overflowed=True))
    assert findings(NO_GRADIENT, made) == []


def still(*weights: str):
    return {(weight, "parameter_update"): zeros(weight, "parameter_update") for weight in weights}


def test_a_layer_in_no_optimizer_is_named():
    held = [weight for weight in WEIGHTS if not weight.startswith("fc1")]
    found = findings(NOT_UPDATED, training(held=held))
    assert places(found) == [("fc1", "alarm")]
    assert "no optimizer" in found[0].evidence


def test_a_backbone_that_the_optimizer_was_not_given_is_a_note():
    assert places(findings(NOT_UPDATED, training(held=LAYERS["head"].weights))) == [("fc0", "note")]


def test_an_optimizer_of_a_copy_moves_nothing():
    found = findings(NOT_UPDATED, training(held=[]))
    assert places(found) == [("", "alarm")]
    assert "not of a copy" in found[0].advice


def test_a_layer_that_was_frozen_in_the_course_of_the_fit_is_well():
    weights = LAYERS["fc1"].weights
    change = {(weight, "parameter_grad"): None for weight in weights}
    held = [weight for weight in WEIGHTS if weight not in weights]
    made = training(change=lambda step: change, held=held, edit=lambda look: replace(look, frozen=set(weights)))
    assert findings(NOT_UPDATED, made) == []
    assert findings(NO_GRADIENT, made) == []


def test_a_layer_in_no_optimizer_is_found_by_the_gradient_of_its_output():
    weights = LAYERS["fc1"].weights
    change = {(weight, "parameter_grad"): None for weight in weights}
    held = [weight for weight in WEIGHTS if weight not in weights]
    assert places(findings(NOT_UPDATED, training(change=lambda step: change, held=held))) == [("fc1", "alarm")]


def test_weights_that_move_without_an_optimizer_are_well():
    change = {(w, "parameter"): of(w, "parameter", 0.1) for w in LAYERS["fc1"].weights}
    other = {(w, "parameter"): of(w, "parameter", 0.1) for w in LAYERS["fc1"].weights}
    held = [weight for weight in WEIGHTS if not weight.startswith("fc1")]
    made = training(7, lambda step: change if step % 2 else other, held=held)
    assert findings(NOT_UPDATED, made) == []


def test_a_layer_that_was_stepped_before_is_in_an_optimizer():
    made = training(held=lambda step: WEIGHTS if step == 0 else [w for w in WEIGHTS if not w.startswith("fc1")])
    assert findings(NOT_UPDATED, made) == []


def with_rate(rate_of):
    """Give weights rates of their own."""
    return lambda look: replace(
        look, stepped={name: replace(one, rate=rate_of(name, look.step)) for name, one in look.stepped.items()}
    )


def test_a_layer_with_rate_zero_is_named():
    edit = with_rate(lambda name, step: 0.0 if name.startswith("fc1") else 1e-3)
    made = training(change=lambda step: still("fc1.weight", "fc1.bias"), edit=edit)
    found = findings(NOT_UPDATED, made)
    assert places(found) == [("fc1", "alarm")]
    assert "learning rate is 0" in found[0].evidence
    assert found[0].is_root


def test_a_rate_that_has_come_down_to_zero_is_well():
    edit = with_rate(lambda name, step: 0.0 if name.startswith("fc1") and step > 1 else 1e-3)
    change = still("fc1.weight", "fc1.bias")
    assert findings(NOT_UPDATED, training(change=lambda step: change if step > 1 else {}, edit=edit)) == []


def test_a_warm_up_from_zero_is_well():
    assert findings(NOT_UPDATED, training(change=lambda step: still(*WEIGHTS), rate=0.0)) == []


def test_a_rate_that_stays_zero_is_the_fault_of_the_whole_model():
    made = training(100, lambda step: still(*WEIGHTS), rate=0.0, losses=stuck(100))
    assert places(findings(NOT_UPDATED, made)) == [("", "alarm")]


def test_updates_lost_in_rounding_name_the_type():
    def change(step):
        return {
            **still("fc1.weight", "fc1.bias"),
            ("fc1.weight", "parameter"): typed(of("fc1.weight", "parameter", 0.1), torch.bfloat16),
        }

    found = findings(NOT_UPDATED, training(change=change))
    assert places(found) == [("fc1", "alarm")]
    assert "bfloat16" in found[0].evidence


@pytest.mark.parametrize(("left", "fires"), [(1e-7, False), (1e-3, True)])
def test_a_layer_that_has_moved_and_has_hardly_any_gradient_left_is_done(left, fires):
    names = LAYERS["fc1"].weights
    little = {(name, "parameter_grad"): of(name, "parameter_grad", left) for name in names}
    made = training(12, lambda step: {**still(*names), **little} if step > 2 else {})
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
    made = training(60, lambda step: still("fc1.weight", "fc1.bias") if step >= 20 else {}, losses=losses)
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


def test_a_matrix_that_does_not_move_counts_and_a_bias_alone_does_not():
    assert places(findings(NOT_UPDATED, training(change=lambda step: still("fc1.weight")))) == [("fc1", "alarm")]
    assert findings(NOT_UPDATED, training(change=lambda step: still("fc1.bias"))) == []


def test_neighbours_that_do_not_move_are_said_once():
    found = findings(NOT_UPDATED, training(change=lambda step: still(*WEIGHTS[:4])))
    assert places(found) == [("fc0", "alarm")]
    assert "the weights of 2 layers, fc0 to fc1, and they do not change: at a learning rate" in found[0].evidence
    assert not found[0].is_root


def test_what_holds_for_all_layers_is_said_once():
    assert places(findings(NOT_UPDATED, training(change=lambda step: still(*WEIGHTS)))) == [("", "alarm")]


def test_weights_that_no_gradient_reaches_are_none_of_this_rule():
    change = {**still("fc1.weight", "fc1.bias"), **cut_behind("fc1")}
    assert findings(NOT_UPDATED, training(change=lambda step: change)) == []


def test_the_window_is_what_a_finding_must_last():
    def change(step):
        return cut_behind("fc1") if step < WINDOW - 1 else {}

    assert judged([NO_GRADIENT], training(change=change)).verdicts == ()
    made = training(WINDOW, lambda step: cut_behind("fc1"))
    assert [(v.module, v.since, v.until) for v in judged([NO_GRADIENT], made).verdicts] == [("fc1", 0, None)]


def test_a_layer_without_weights_in_the_optimizer_does_not_part_a_chain():
    extra = {
        "fc0": LAYERS["fc0"],
        "free": Layer("free", "Linear", "linear", ("free.weight",), frozenset()),
        "fc1": LAYERS["fc1"],
        "head": LAYERS["head"],
    }
    change = {(w, "parameter_grad"): None for name in ("fc0", "fc1") for w in LAYERS[name].weights}
    change |= {(name, "grad_output"): None for name in ("fc0", "free", "fc1")}
    made = training(change=lambda step: change, layers=looks.layers(*extra.values()))
    assert places(findings(NO_GRADIENT, made, extra)) == [("fc1", "alarm")]


def test_weights_that_are_nan_are_not_lost_in_rounding():
    still = looks.reading("fc1.weight", "parameter_update", [looks.row(90, 0.0, 0.0, zeros=90, nonfinite=10)])
    made = training(change=lambda step: {("fc1.weight", "parameter_update"): still})
    assert findings(NOT_UPDATED, made) == []


def deep(frozen, trained=("fc0", "fc1", "fc2", "fc3", "head")):
    """A chain of linear layers, those in `frozen` not trained; and what is seen of them in a training."""
    layers = {name: linear(name) for name in trained}
    return {name: replace(layer, trainable=frozenset()) if name in frozen else layer for name, layer in layers.items()}


def frozen_ones(frozen, **options):
    layers = deep(frozen)
    held = [weight for name, layer in layers.items() if name not in frozen for weight in layer.weights]
    return findings(NOT_UPDATED, training(held=held, layers=layers, **options), layers)


def test_a_frozen_layer_between_trained_ones_is_a_note():
    found = frozen_ones(["fc1"])
    assert places(found) == [("fc1", "note")]
    assert "4 layers before and after it are trained" in found[0].evidence


@pytest.mark.parametrize("frozen", [["fc0"], ["head"], ["fc1", "fc2"]], ids=["first", "last", "two of five"])
def test_a_frozen_end_or_a_large_frozen_part_is_no_matter(frozen):
    assert frozen_ones(frozen) == []


def skipped(*steps: int):
    """No gradient at fc1 at these steps: a branch that is left out."""
    slots = [("fc1", "grad_output"), *((weight, "parameter_grad") for weight in LAYERS["fc1"].weights)]
    return lambda step: dict.fromkeys(slots) if step in steps else {}


def test_a_branch_that_is_left_out_at_random_is_well():
    steps = np.flatnonzero(np.random.default_rng(0).random(60) < 0.5)
    made = training(60, skipped(*steps))
    assert judged([NO_GRADIENT], made).verdicts == ()
    run = looked(made)
    assert all(found == [] for found in run)


def looked(made):
    """What the rule sees at each look."""
    run = Run(LAYERS, WINDOW)
    for one in made:
        run.see(one)
        yield list(NO_GRADIENT.judge(run))


def test_a_layer_that_is_cut_for_good_is_an_alarm_since_the_cut_behind_two_windows():
    *before, last = looked(training(20 + 2 * WINDOW + 1, skipped(*range(20, 99))))
    assert not any(before)
    assert [(s.module, s.severity, s.since) for s in last] == [("fc1", "alarm", 20)]


def test_a_layer_that_was_without_a_gradient_before_must_be_so_for_more_than_twice_as_long():
    gap = [*range(5, 10)]  # five looks
    *before, last = looked(training(20 + 2 * 5 + 1, skipped(*gap, *range(20, 99))))
    assert not any(before)
    assert [(s.module, s.severity, s.since) for s in last] == [("fc1", "alarm", 20)]


def test_a_layer_that_no_gradient_ever_reached_is_cut_at_once():
    first, *_ = looked(training(1, skipped(0)))
    assert [(s.module, s.severity, s.since) for s in first] == [("fc1", "alarm", None)]


def test_a_cut_that_is_longer_ago_than_numbers_are_kept_still_has_its_step():
    made = training(120, skipped(*range(20, 120)))
    assert [(v.module, v.since, v.until) for v in judged([NO_GRADIENT], made).verdicts] == [("fc1", 20, None)]


def test_a_gradient_that_came_only_at_the_first_look_is_gone_since_the_second():
    *_, last = looked(training(2 * WINDOW + 2, skipped(*range(1, 99))))
    assert [(s.module, s.since) for s in last] == [("fc1", 1)]


@pytest.mark.parametrize(("losses", "severity"), [(None, "note"), ([2.3] * 60, "alarm")])
def test_a_layer_that_has_moved_and_no_longer_does_is_a_note_while_the_loss_is_lower_for_it(losses, severity):
    made = training(60, lambda step: still("fc1.weight", "fc1.bias") if step >= 50 else {}, losses=losses)
    assert places(findings(NOT_UPDATED, made)) == [("fc1", severity)]
