"""When rules are asked: at every look, or once in a few steps where looks come at every step."""

import itertools

import pytest
from health import looks
from health.trainings import LAYERS, WINDOW

from hookboard.health.judge import STEPS_BETWEEN_ASKING, WINDOWS_ALWAYS_ASKED, Judge
from hookboard.health.rule import Finding, Rule

EARLY = WINDOWS_ALWAYS_ASKED * WINDOW
FAR = max(STEPS_BETWEEN_ASKING)


def asked_at(steps, *, at_once=False):
    """The steps at which a rule is asked, of looks at these steps."""
    asked = []
    judge = Judge([Rule("odd", lambda run: asked.append(run.now.step) or (), at_once)], LAYERS, WINDOW)
    for step in steps:
        judge.see(looks.look(step, []))
    return asked


LATER = [step for step in asked_at(range(EARLY + 60)) if step >= EARLY]


def said(steps, when, *, severity="note"):
    """Since when and until when it is said, of a finding that is there at some of the steps."""

    def findings(run):
        if run.now.step in when:
            yield Finding("fc0", "odd", "look", severity)

    judge = Judge([Rule("odd", findings)], LAYERS, WINDOW)
    for step in steps:
        judge.see(looks.look(step, []))
    return [(verdict.since, verdict.until) for verdict in judge.verdicts]


def test_at_the_first_looks_rules_are_asked_each_time_and_later_after_a_few_steps():
    assert asked_at(range(EARLY)) == [*range(EARLY)]
    gaps = {after - before for before, after in itertools.pairwise([EARLY - 1, *LATER])}
    assert gaps == {*STEPS_BETWEEN_ASKING}


def test_looks_that_lie_apart_or_go_back_and_looks_for_a_rule_of_single_steps_are_all_judged():
    steps = range(0, 40 * FAR, FAR)
    assert asked_at(steps) == [*steps]
    assert asked_at([*range(EARLY + 8), 0])[-1] == 0
    assert asked_at(range(EARLY + 20), at_once=True) == [*range(EARLY + 20)]


def test_the_window_counts_the_looks_at_which_rules_are_asked():
    first, *_, third = LATER[:WINDOW]
    assert said(range(third), range(first, 100)) == []
    assert said(range(third + 1), range(first, 100)) == [(first, None)]


@pytest.mark.parametrize("period", [2, 3, 4, 5, 6, 8, 12])  # what comes in step with the looks, or nearly so
def test_what_comes_once_in_some_steps_does_not_seem_to_last(period):
    for phase in range(period):
        assert said(range(EARLY + 60), range(phase, 200, period)) == []
