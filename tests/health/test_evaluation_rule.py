"""`train_eval_gap`: what fires, and what looks alike and is well."""

from dataclasses import replace

import numpy as np
import pytest
from health.trainings import LAYERS, seen, training

from hookboard.health import Judge
from hookboard.health.rules import RULES
from hookboard.health.rules.evaluation import BEGINS, GAP
from hookboard.measure import FIELDS

GAP_RULE = RULES["train_eval_gap"]


def evaluation(like, shifts):
    """An evaluation loop like a look in training, but for layers whose outputs lie higher."""
    outputs = {site: one for site, one in like.readings.items() if site.role == "output"}
    outputs = {site: higher(one, shifts.get(site.name, 0.0)) for site, one in outputs.items()}
    return replace(like, readings=outputs, losses=(), stepped={})


def higher(one, by: float):
    rows = one.channels + by * (np.array(FIELDS) == "mean")
    return replace(one, moments=replace(one.moments, mean=one.moments.mean + by), channels=rows)


def judged(*evaluations, edit=lambda look: look):
    """The verdicts of a training with an evaluation every 20 steps, from step 39 on; channels have a deviation of 1."""
    judge = Judge([GAP_RULE], LAYERS, 3)
    made = training(40 + 20 * len(evaluations))
    for number, one in enumerate(edit(replace(one, readings=made[0].readings)) for one in made):
        judge.see(one)
        if number >= 39 and (number + 1) % 20 == 0 and (number - 39) // 20 < len(evaluations):
            judge.see_evaluation(evaluation(one, evaluations[(number - 39) // 20]))
    return judge.verdicts


EVERYWHERE = dict.fromkeys(["fc1", "act1", "head"], 5.0)


def test_validation_that_is_like_training_is_well():
    assert judged({}, {}, {}) == ()


def test_the_layer_where_the_gap_begins_is_named():
    verdicts = judged(EVERYWHERE, EVERYWHERE)
    assert [(v.severity, v.module, v.since) for v in verdicts] == [("alarm", "fc1", 40)]


def test_one_evaluation_is_a_note():
    assert [v.severity for v in judged(EVERYWHERE)] == ["note"]
    assert [v.severity for v in judged(EVERYWHERE, {})] == ["note"]


def test_a_gap_that_does_not_reach_the_end_is_a_note():
    assert [v.severity for v in judged({"fc1": 5.0}, {"fc1": 5.0})] == ["note"]


@pytest.mark.parametrize(("shift", "fires"), [(0.99, False), (1.01, True)])
def test_the_border_is_one_deviation(shift, fires):
    shifts = dict.fromkeys(["fc1", "act1", "head"], shift * GAP)
    assert bool(judged(shifts, shifts)) is fires


@pytest.mark.parametrize(("shift", "module"), [(0.9, "fc1"), (1.1, "act0")])
def test_a_gap_that_grows_layer_by_layer_begins_where_it_is_first_seen(shift, module):
    shifts = {**EVERYWHERE, "act0": shift * BEGINS}
    assert [v.module for v in judged(shifts, shifts)] == [module]


def test_outputs_that_differ_as_much_from_look_to_look_are_well():
    def edit(look):
        return replace(look, readings={site: higher(one, 3.0 * (look.step % 2)) for site, one in look.readings.items()})

    assert judged(EVERYWHERE, EVERYWHERE, edit=edit) == ()


def test_an_evaluation_before_training_tells_nothing():
    judge = Judge([GAP_RULE], LAYERS, 3)
    made = training(60)
    judge.see_evaluation(evaluation(made[0], EVERYWHERE))
    for one in made:
        judge.see(one)
    assert judge.verdicts == ()


def test_no_evaluation_tells_nothing():
    assert list(GAP_RULE.judge(seen(training(60)))) == []
