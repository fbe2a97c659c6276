"""The states of a finding: each row of the table in `judge.py`, as a run in which a finding goes there."""

import pytest
from health import looks
from health.trainings import LAYERS, WINDOW

from hookboard.health.judge import Judge
from hookboard.health.rule import Finding, Rule

pytestmark = pytest.mark.usefixtures("at_every_look")

EVERY = range(1000)
HARMED = [1.0] * 20 + [9.0] * 40
WELL = [*HARMED, *[0.1] * 60]
FALLING = [2.0 * 0.97**step for step in range(60)]


def sees(*steps, name="odd", severity="alarm", module="fc0", **options):
    """A rule that sees its finding at these steps."""

    def judge(run):
        if run.now.step in steps:
            yield Finding(module, "it is odd", "look", severity, **options)

    return Rule(name, judge)


def shown(rules, losses):
    """What is said of the last rule at the end of a run: severity, until when, from what it follows, and its past."""
    judge = Judge(rules, LAYERS, WINDOW)
    for step, loss in enumerate(losses):
        judge.see(looks.look(step, [looks.reading(name, "output", [looks.row()]) for name in LAYERS], [loss]))
    said = [one for one in judge.verdicts if one.rule == rules[-1].name]
    return [(one.severity, one.until, one.follows_from, "previously an alarm" in one.evidence) for one in said]


CAUSE = sees(*EVERY, name="dead_units", module="act0")
STATES = {
    "seen": ([sees(58, 59)], HARMED, []),
    "forgotten": ([sees(50, 51, 53, 54)], HARMED, []),
    "note": ([sees(57, 58, 59, severity="note")], HARMED, [("note", None, None, False)]),
    "alarm": ([sees(57, 58, 59)], HARMED, [("alarm", None, None, False)]),
    "note again": ([sees(*EVERY)], WELL, [("note", None, None, True)]),
    "over": ([sees(30, 31, 32, severity="note")], HARMED, [("note", 32, None, False)]),
    "waiting": (
        [sees(58, 59, name="dead_units"), sees(*range(56, 60), name="not_updated")],
        HARMED,
        [("note", None, None, False)],
    ),
    "effect": ([CAUSE, sees(*EVERY, name="no_gradient")], HARMED, [("note", None, ("dead_units", "act0"), False)]),
}


@pytest.mark.parametrize("state", STATES)
def test_a_finding_is_shown_as_the_table_of_states_says(state):
    rules, losses, wanted = STATES[state]
    assert shown(rules, losses) == wanted


def test_a_note_that_is_over_is_dropped_while_the_loss_falls():
    assert shown([sees(30, 31, 32, severity="note")], FALLING) == []


def test_what_is_hard_is_an_alarm_though_the_loss_falls_and_a_note_once_it_is_over():
    assert shown([sees(*EVERY, is_hard=True)], FALLING) == [("alarm", None, None, False)]
    assert shown([sees(*range(30), is_hard=True)], FALLING) == [("note", 29, None, True)]


def test_an_alarm_that_needs_no_loss_is_one_until_it_is_over():
    losses = [1.0] * 20
    assert shown([sees(*range(18))], losses) == [("alarm", 17, None, False)]
    assert shown([sees(*range(17))], losses) == [("note", 16, None, True)]
