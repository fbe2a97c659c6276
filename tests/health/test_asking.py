"""When rules are asked: at every look, or once in a few steps where looks come at every step."""

import pytest
from health import looks
from health.trainings import LAYERS, WINDOW

from hookboard.health import Judge, Rule, Symptom
from hookboard.health.judge import ASK_EVERY, ASKED_AT_FIRST

EARLY = ASKED_AT_FIRST * WINDOW


def asked_at(steps, *, at_once=False):
    """The steps at which a rule is asked, of looks at these steps."""
    asked = []
    judge = Judge([Rule("odd", lambda run: asked.append(run.now.step) or (), at_once)], LAYERS, WINDOW)
    for step in steps:
        judge.see(looks.look(step, []))
    return asked


def spans(steps, when, *, severity="note"):
    """What is said of a symptom that is there at some of the steps."""

    def symptoms(run):
        if run.now.step in when:
            yield Symptom("fc0", "odd", "look", severity)

    judge = Judge([Rule("odd", symptoms)], LAYERS, WINDOW)
    for step in steps:
        judge.see(looks.look(step, []))
    return [(verdict.since, verdict.until) for verdict in judge.verdicts]


def test_at_the_first_looks_rules_are_asked_each_time():
    assert asked_at(range(EARLY)) == [*range(EARLY)]


def test_later_they_are_asked_once_in_a_few_steps():
    later = [step for step in asked_at(range(EARLY + 20)) if step >= EARLY]
    assert later == [*range(EARLY - 1 + ASK_EVERY, EARLY + 20, ASK_EVERY)]


def test_looks_that_lie_apart_are_all_judged():
    steps = range(0, 40 * ASK_EVERY, ASK_EVERY)
    assert asked_at(steps) == [*steps]


def test_a_rule_of_single_steps_is_asked_at_every_look():
    assert asked_at(range(EARLY + 20), at_once=True) == [*range(EARLY + 20)]


def test_a_step_that_goes_back_is_judged():
    assert asked_at([*range(EARLY + 8), 0])[-1] == 0


def test_a_symptom_seen_twice_has_lasted_for_the_looks_between():
    assert ASK_EVERY + 1 >= WINDOW
    since = EARLY - 1 + ASK_EVERY
    assert spans(range(since + ASK_EVERY), range(since, 100)) == []
    assert spans(range(since + ASK_EVERY + 1), range(since, 100)) == [(since, None)]


@pytest.mark.parametrize("severity", ["note", "alarm"])
def test_a_symptom_seen_once_is_not_said(severity):
    only = EARLY - 1 + ASK_EVERY
    assert spans(range(EARLY + 40), [only], severity=severity) == []


def test_a_verdict_ends_with_the_last_look_that_showed_its_symptom():
    first, last = EARLY - 1 + ASK_EVERY, EARLY - 1 + 3 * ASK_EVERY
    assert spans(range(last + 3 * ASK_EVERY), range(first, last + 1)) == [(first, last)]
