"""The benchmark of the rules: how it scores, what counts as harm, and which half a training belongs to."""

import pytest

pytest.importorskip("sklearn")

from benchmarks.health.alarms import Alarm, score
from benchmarks.health.cases import OF_OTHER_TOOLS, Case, Truth, all_cases
from benchmarks.health.halves import half_of
from benchmarks.health.harm import did_harm
from benchmarks.health.plants import PLANTS
from benchmarks.health.runner import train
from benchmarks.health.trace import Head

from hookboard.tracing.questions import RULES, STEP

ORDER = ["net.a", "net.b", "net.c", "net.d"]
TRUTH = Truth(frozenset({"dead_units"}), frozenset({"net.b"}), (50, 50))


def alarm(module="net.b", since=50, rule="dead_units"):
    return Alarm(rule, module, since, frozenset({rule}))


def head(training, held_out=1.0, start=3.0):
    return Head("", start, training, held_out, by_itself=False)


@pytest.mark.parametrize(("module", "located"), [("net.a", True), ("net.c", True), ("net.d", False), ("", False)])
def test_a_layer_is_located_up_to_one_call_beside_it(module, located):
    assert score([alarm(module)], TRUTH, ORDER, slack=10).located is located


@pytest.mark.parametrize(("since", "right"), [(40, True), (60, True), (39, False), (61, False)])
def test_an_onset_is_right_up_to_the_slack(since, right):
    assert score([alarm(since=since)], TRUTH, ORDER, slack=10).onset is right


def test_only_the_first_alarm_counts():
    assert not score([alarm(rule="spike"), alarm()], TRUTH, ORDER, slack=10).cause


def test_harm_needs_every_seed_above_all_healthy_ones_by_a_tenth_of_what_they_learn():
    healthy = [head(1.0), head(1.1)]  # learn about 1.95; the bound is 1.1 + 0.195
    assert did_harm([head(1.3), head(9.0)], healthy)
    assert not did_harm([head(1.29), head(9.0)], healthy)


def test_harm_in_validation_alone_is_harm():
    assert did_harm([head(1.0, held_out=2.0)], [head(1.0), head(1.0)])


def test_every_healthy_training_that_is_reported_has_three_reported_seeds():
    seeds = {}
    for case in all_cases():
        if case.kind != "plant" and case.half == "reported":
            seeds.setdefault((case.name, case.base), []).append(case.seed)
    assert {len(three) for three in seeds.values()} == {3}
    assert len(seeds) >= 25


def test_a_shared_architecture_is_split_by_seed():
    assert half_of("cnn", 0) != half_of("cnn", 1)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_the_causes_of_a_plant_are_rules_or_what_other_tools_say(plant):
    assert plant.causes <= RULES.keys() | OF_OTHER_TOOLS


def test_hookboard_has_no_rule_of_a_name_that_only_other_tools_give():
    assert not OF_OTHER_TOOLS & RULES.keys()


def test_every_rule_about_numbers_has_a_plant_that_it_names():
    without = RULES.keys() - STEP - {cause for plant in PLANTS.values() for cause in plant.causes}
    assert without == {"overfitting", "ranks_differ"}


@pytest.mark.trains
def test_a_trace_has_what_the_judge_of_its_training_was_told():
    trace = train(Case("base", "mlp", "mlp", 0))
    assert trace.failure == ""
    assert len(trace.looks) == 41  # at the first of 200 steps, and at every fifth
    told = [name for name, _, _ in trace.entries if name != "see"]
    assert told == [*len(trace.held_out) * ["see_evaluation"], "end"]
