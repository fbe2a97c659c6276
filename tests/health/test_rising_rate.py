"""`update_too_large` where the learning rate rises and the loss no longer falls: what fires, and what is well."""

from dataclasses import replace

import numpy as np
import pytest
from health.test_update_rules import TOO_LARGE, moved
from health.trainings import WEIGHTS, WINDOW, falling, findings, judged, places, risen, stuck, training

from hookboard.health import Stepped
from hookboard.health.rules.updates import RATE_RISE_FACTOR, STEPS_WITHOUT_FALL

LOW, STEPS = 64, 104
"""The steps until the loss is lowest, and all."""

TURNED = [*np.linspace(2.0, 0.5, LOW), *np.linspace(0.62, 0.7, STEPS - LOW)]
"""A loss that falls, and no longer does, but shows no harm."""


def rising(step, to=2.0):
    """A rate that stays until the loss is lowest, and then grows."""
    return 1e-3 * (1 + max(step - LOW + 1, 0) / (STEPS - LOW) * (to - 1))


def found(losses=TURNED, rate=rising, **options):
    return findings(TOO_LARGE, training(len(losses), losses=losses, rate=rate, **options))


def test_a_rate_that_rises_while_the_loss_no_longer_falls_is_a_note():
    (said,) = found()
    assert (said.module, said.severity, said.since) == ("", "note", LOW - 8)
    assert "risen to 0.002; up to step 56, when" in said.evidence
    assert said.evidence.endswith(" was 0.001")


def test_a_rate_that_rises_by_less_than_the_factor_is_well():
    assert len(found(rate=lambda step: rising(step, 1.01 * RATE_RISE_FACTOR))) == 1
    assert found(rate=lambda step: rising(step, 0.99 * RATE_RISE_FACTOR)) == []


def test_a_loss_that_fell_a_few_steps_ago_is_well():
    high = lambda step: 1e-3 if step < LOW else 3e-3  # noqa: E731
    assert len(found(TURNED[: LOW + STEPS_WITHOUT_FALL], high)) == 1
    assert found(TURNED[: LOW + STEPS_WITHOUT_FALL - 1], high) == []


@pytest.mark.usefixtures("at_every_look")
def test_one_measurement_is_enough_while_the_rate_keeps_rising():
    shown = LOW + STEPS_WITHOUT_FALL
    grown = lambda step: 1e-3 * (1 + max(step - LOW, 0))  # noqa: E731
    (said,) = judged([TOO_LARGE], training(shown, losses=TURNED[:shown], rate=grown)).verdicts
    assert (said.severity, said.since, said.until) == ("note", LOW - 8, None)


@pytest.mark.usefixtures("at_every_look")
@pytest.mark.parametrize("measured", [WINDOW - 1, WINDOW])
def test_a_rate_that_rose_once_has_to_last_like_any_other_finding(measured):
    shown = LOW + STEPS_WITHOUT_FALL + measured - 1
    high = lambda step: 1e-3 if step < LOW else 3e-3  # noqa: E731
    said = judged([TOO_LARGE], training(shown, losses=TURNED[:shown], rate=high)).verdicts
    assert len(said) == (measured == WINDOW)


def test_a_loss_within_the_noise_of_its_lowest_is_well():
    noise = np.where(np.arange(STEPS) % 2, 0.1, -0.1)
    flat = [*np.linspace(2.0, 0.5, LOW), *[0.62] * (STEPS - LOW)]
    assert len(found(flat)) == 1
    assert found([loss + one for loss, one in zip(flat, noise, strict=True)]) == []


def test_a_restart_that_returns_to_the_earlier_peak_is_well():
    assert found(rate=lambda step: 3e-3 * (1 + np.cos(np.pi * (step % LOW) / LOW))) == []


def test_one_cycle_whose_loss_falls_during_the_rise_is_well():
    assert found(falling(STEPS), lambda step: 1e-4 * (1 + step)) == []


def test_a_warm_up_whose_loss_is_still_at_its_start_is_well():
    # Among noisy losses one is the lowest, early by chance.
    assert found([*stuck(8), *[2.2] * 8, *stuck(72)], lambda step: 1e-4 * (1 + step)) == []


@pytest.mark.usefixtures("at_every_look")
def test_the_note_ends_when_the_rate_falls_again():
    longer = [*TURNED, *[0.7] * 20]
    back = lambda step: rising(step) if step < STEPS else 1e-3  # noqa: E731
    (said,) = judged([TOO_LARGE], training(len(longer), losses=longer, rate=back)).verdicts
    assert (said.severity, said.since, said.until) == ("note", LOW - 8, STEPS - 1)


@pytest.mark.usefixtures("at_every_look")
def test_the_note_ends_when_the_loss_falls_below_its_lowest():
    longer = [*TURNED, *[0.3] * 20]
    (said,) = judged([TOO_LARGE], training(len(longer), losses=longer, rate=rising)).verdicts
    assert (said.severity, said.until) == ("note", STEPS + 6)


def test_the_note_stays_one_while_the_loss_shows_harm():
    (said,) = found(risen(2 * LOW), lambda step: 1e-3 * 1.02 ** max(step - LOW, 0))
    assert said.severity == "note"


def test_a_rate_that_jumps_to_harm_is_still_the_alarm():
    assert places(found(risen(2 * LOW), lambda step: 1e-3 if step < LOW else 1e-2)) == [("", "alarm")]


def test_a_single_layer_that_moves_too_far_does_not_hide_it():
    slowly = lambda step: 1e-3 * 1.02 ** max(step - LOW, 0)  # noqa: E731
    said = found(risen(2 * LOW), slowly, change=lambda step: moved(0.01) | moved(0.33, "fc1"))
    assert places(said) == [("fc1", "alarm"), ("", "note")]


def grouped(rates):
    """Looks at which each weight has a rate of its own, from the step to those by weight."""
    made = training(STEPS, losses=TURNED)
    return findings(
        TOO_LARGE,
        [replace(one, stepped={n: Stepped("SGD", rates(one.step, n), False) for n in WEIGHTS}) for one in made],
    )


def test_the_rate_of_several_groups_is_the_median_over_the_weights():
    share = dict(zip(WEIGHTS, (0.1, 0.1, 1.0, 1.0, 1.0, 10.0), strict=True))
    (said,) = grouped(lambda step, name: share[name] * rising(step))
    assert "risen to 0.002; " in said.evidence
    assert said.evidence.endswith(" was 0.001")


def test_a_group_that_rises_alone_beside_larger_ones_is_well():
    assert grouped(lambda step, name: rising(step) if name == WEIGHTS[0] else 1e-3) == []


def test_groups_whose_rate_was_0_when_the_loss_was_lowest_are_well():
    assert grouped(lambda step, name: rising(step) - 1e-3 if name.startswith("fc") else 1e-3) == []
    assert grouped(lambda step, name: rising(step) - 1e-3) == []


def test_several_losses_are_no_curve():
    twice = lambda one: replace(one, losses=[replace(loss, backwards=2) for loss in one.losses])  # noqa: E731
    assert found(edit=twice) == []


def test_without_a_loss_nothing_is_said():
    assert found(edit=lambda one: replace(one, losses=())) == []
