"""What is over says so, and a verdict that lasts has the numbers of the latest look."""

import numpy as np
import pytest
from health.test_evaluation_rule import CHANGING, GAP_RULE, evaluation
from health.test_update_rules import TOO_LARGE, moved
from health.trainings import WINDOW, falling, judged, risen, training

from hookboard.health.judge import Judge
from hookboard.health.rules.updates import LAYER_UPDATE_FACTOR_LARGE

pytestmark = pytest.mark.usefixtures("at_every_look")

LEAPT = [2.3, 9.0, *falling(38)]
"""A loss that leaps after the first step."""


def said(made):
    """The only verdict of `update_too_large`: since when, until when, and its evidence."""
    (verdict,) = judged([TOO_LARGE], made).verdicts
    return verdict.since, verdict.until, verdict.evidence


def test_a_first_step_that_was_too_large_is_over_once_steps_are_usual():
    since, until, evidence = said(training(40, lambda step: moved(2.1 if step == 0 else 0.006), LEAPT))
    assert (since, until) == (0, 0)
    assert "the update-to-weight ratio was 2.1" in evidence
    assert "and 0.006 at step 39" in evidence


def test_steps_that_are_still_too_large_have_the_size_of_the_latest():
    since, until, evidence = said(training(40, lambda step: moved(2.1 - 0.05 * step), LEAPT))
    assert (since, until) == (0, None)
    assert "the update-to-weight ratio is 0.15" in evidence
    assert "2.1" not in evidence


def test_steps_that_were_too_large_for_a_while_are_over_though_the_harm_lasts():
    made = training(80, lambda step: moved(0.5 + step / 100 if 20 <= step < 30 else 0.01), losses=risen(80))
    since, until, evidence = said(made)
    assert (since, until) == (20, 29)
    assert "was 0.79 at step 29" in evidence
    assert "and 0.01 at step 79" in evidence


def test_what_was_over_when_a_long_run_forgets_its_columns_stays_over_at_the_same_step():
    made = training(600, lambda step: moved(2.1 if step <= 3 else 0.006), [*LEAPT, *falling(560)])
    assert said(made)[:2] == (0, 3)


def test_large_steps_of_one_layer_are_over_once_they_are_usual():
    far = 1.1 * LAYER_UPDATE_FACTOR_LARGE * 0.01
    made = training(80, lambda step: moved(0.01) | (moved(far, "fc1") if 20 <= step < 30 else {}), losses=risen(80))
    since, until, evidence = said(made)
    assert (since, until) == (20, 29)
    assert "and 0.01 at step 79" in evidence


@pytest.mark.parametrize(("end", "until"), [(50, 49), (99, None)])
def test_a_rate_that_jumped_is_over_once_it_is_back(end, until):
    def rate(step):
        return 0.05 if 40 <= step < end else 1e-3

    found = said(training(80, lambda step: moved(0.01), losses=risen(80), rate=rate))
    assert found[:2] == (40, until)
    assert f"and is {0.05 if until is None else 0.001} now" in found[2]


def test_a_gap_in_validation_has_the_numbers_of_the_latest_evaluation():
    judge = Judge([GAP_RULE], CHANGING, WINDOW)
    made = training(100)
    shifts = {39: 5.0, 59: 6.0, 79: 7.0}
    for number, look in enumerate(made):
        judge.see(look)
        if number in shifts:
            judge.see_evaluation(evaluation(look, dict.fromkeys(["fc1", "act1", "head"], shifts[number])))
    (verdict,) = judge.verdicts
    # The mean of its channels is 0.5 to begin with, and each deviates by about 1.
    now = made[79].of("fc1", "output").moments
    rms = np.hypot(now.mean + 7.0, now.deviation)
    assert f"an RMS of {rms:.2g} in validation and {now.rms:.2g} in training" in verdict.evidence
