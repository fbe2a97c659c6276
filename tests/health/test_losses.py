"""Whether a curve of losses shows harm: planted curves, and healthy ones that look alike."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from hookboard.health.look import Loss
from hookboard.health.losses import (
    AT_ZERO_SHARE,
    BOUNDLESS_PACE_SHARE,
    STEPS_BEFORE_JUDGING,
    STEPS_BEFORE_STUCK,
    LossCurve,
)


def curve(values: Iterable[float], chance: float | None = None, batch: object = None) -> LossCurve:
    losses = LossCurve()
    losses.chance = chance
    losses.extend(Loss(i, i if batch is None else batch(i), float(value)) for i, value in enumerate(values))
    return losses


def falling(steps: int, start: float = 2.3, end: float = 0.1, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, noise, steps)
    return end + (start - end) * np.exp(-np.arange(steps) / (steps / 5)) + noise


def level(steps: int, value: float, noise: float, seed: int = 1) -> np.ndarray:
    """Losses around a level, none of them below 0."""
    return abs(np.random.default_rng(seed).normal(value, noise, steps))


@pytest.mark.parametrize("seed", range(2))
def test_a_loss_that_has_fallen_and_stays_there_is_not_harmed_nor_by_one_wild_batch(seed):
    values = [*falling(100, seed=seed), *level(400, 0.1, 0.05, seed + 100)]
    values[450] = 1e6
    losses = curve(values)
    assert losses.is_learning
    assert losses.harm == ""


def test_a_rise_by_less_than_a_quarter_of_what_was_gained_is_no_harm():
    gained = [*np.linspace(2.0, 0.0, 80), *[0.0] * 16]
    assert not curve([*gained, *[0.45] * 40]).has_risen
    assert curve([*gained, *[0.55] * 40]).has_risen


def test_a_rise_that_comes_back_in_time_is_no_harm():
    assert not curve([*falling(100), *[2.3] * 20, *level(10, 0.1, 0.01)]).is_harmed


def test_a_loss_above_its_start_has_diverged():
    assert curve([*level(20, 2.3, 0.1), *level(60, 9.0, 0.1)]).has_diverged
    assert not curve([*level(20, 2.3, 0.1), *level(60, 3.0, 0.1)]).has_diverged


def test_a_loss_that_is_not_finite_is_harm_from_its_first_step_until_it_is_finite_again():
    losses = curve([2.3, math.nan])
    assert losses.is_harmed
    assert losses.first_nonfinite == Loss(1, 1, losses.first_nonfinite.value)
    assert not curve([*falling(100), math.inf, *level(40, 0.1, 0.05)]).is_harmed


@pytest.mark.parametrize(
    ("values", "is_harmed"),
    [
        ([*[2.3] * 2, *[9.0] * (STEPS_BEFORE_JUDGING - 3)], False),
        ([*[2.3] * 4, *[9.0] * STEPS_BEFORE_JUDGING], True),
        ([2.3] * (STEPS_BEFORE_STUCK - 1), False),
        ([2.3] * STEPS_BEFORE_STUCK, True),
    ],
)
def test_few_steps_tell_nothing_and_a_loss_at_its_start_has_some_time(values, is_harmed):
    assert curve(values).is_harmed is is_harmed


def test_a_loss_that_falls_without_bound_has_diverged():
    assert curve(-np.logspace(0, 4, 100)).has_diverged
    assert not curve(-np.linspace(1, 90, 100)).has_diverged


def test_a_loss_that_overflows_below_0_has_no_bound_before_it_is_known_how_it_falls():
    assert curve([-2.3] * 4 + list(-np.logspace(1, 20, 8)) + [-math.inf, math.nan]).is_boundless


@pytest.mark.parametrize(("times", "fires"), [(0.9, False), (1.1, True)])
def test_a_loss_without_a_bound_falls_no_slower_than_before(times, fires):
    """By so many times `BOUNDLESS_PACE_SHARE` of what it fell in the first half."""
    values = [*-np.linspace(1, 4000, 100), *(-4000 - np.linspace(0, 4000 * times * BOUNDLESS_PACE_SHARE, 100))]
    assert curve(values).is_boundless is curve(values).has_diverged is fires


@pytest.mark.parametrize(("first", "backwards"), [(-1.0, 2), (0.0, 1)])
def test_accumulated_losses_and_one_that_begins_at_0_may_have_no_bound(first, backwards):
    losses = LossCurve()
    losses.extend(Loss(i, i, float(v), backwards=backwards) for i, v in enumerate(np.linspace(first, -4e4, 999)))
    assert losses.is_boundless


def test_a_classifier_that_only_comes_down_to_chance_is_stuck():
    losses = curve([*np.linspace(5, 2.31, 40), *level(160, 2.3, 0.03)], chance=math.log(10))
    assert losses.is_stuck
    assert not curve([*np.linspace(5, 2.0, 40), *level(160, 2.0, 0.03)], chance=math.log(10)).is_stuck


@pytest.mark.parametrize(("noise", "steps", "fires"), [(0.1, 300, True), (0.8, 300, False), (0.8, 3000, True)])
def test_noise_may_hide_for_long_whether_a_loss_is_at_chance(noise, steps, fires):
    """With two samples in a batch the last few losses tell nothing."""
    assert curve(level(steps, 1.386, noise), chance=math.log(4)).is_stuck is fires


@pytest.mark.parametrize("steps", [200, 800])
def test_a_noisy_loss_a_little_below_chance_is_never_taken_for_stuck(steps):
    assert not curve(level(steps, 1.2, 0.6, seed=steps), chance=math.log(4)).is_stuck


def test_a_loss_above_chance_is_stuck_only_if_it_no_longer_falls():
    assert not curve(np.linspace(9, 4, 200) + level(200, 0, 0.02), chance=math.log(10)).is_stuck
    assert curve(level(200, 4, 0.02), chance=math.log(10)).is_stuck


def test_a_loss_that_came_down_to_chance_is_not_said_to_stay_where_it_began():
    fell = curve([*np.linspace(4.54, 2.95, 40), *level(160, 2.95, 0.001)], chance=math.log(20))
    assert fell.harm == "the loss was 4.54 at the first step and has stopped falling at 2.95"
    within_its_noise = curve([*[0.69] * 4, *level(200, 0.65, 0.1)])
    assert within_its_noise.harm == "the loss was 0.69 at the first step and is stuck at 0.656"
    stays = curve(level(200, 2.95, 0.001), chance=math.log(20))
    assert stays.harm.endswith(" at the first step and is stuck at 2.95")


def test_batches_sorted_by_class_are_no_harm():
    assert not curve([*falling(10), *np.tile(8 * np.exp(-np.arange(6.0)), 40)]).is_harmed


def test_two_losses_for_each_batch_tell_nothing():
    values = np.stack([level(100, 1.4, 0.1), level(100, 0.7, 0.1)], axis=1).ravel()
    losses = curve(values, batch=lambda i: i // 2)
    assert losses.is_mixed
    assert not losses.is_harmed


def test_losses_that_are_added_up_over_several_backward_passes_tell_nothing():
    losses = LossCurve()
    losses.extend(Loss(i, i, 1.0 if i < 50 else 9.0, backwards=2) for i in range(100))
    assert not losses.is_harmed


def test_one_batch_in_each_epoch_is_not_taken_for_two_losses():
    losses = curve(level(100, 2.3, 0.05), batch=lambda i: 0)
    assert not losses.is_mixed
    assert losses.is_harmed


def test_a_peak_of_a_one_cycle_schedule_is_no_harm():
    values = falling(300, noise=0.03) + 0.35 * np.exp(-(((np.arange(300) - 120) / 30) ** 2))
    losses = LossCurve()
    for i, value in enumerate(values):
        losses.extend([Loss(i, i, float(value))])
        assert not losses.has_risen


@pytest.mark.parametrize(
    ("values", "reach", "fires"),
    [
        ([400.0] * 64, 1000.0, True),
        # A sum over a batch of 64: the answers of the model do not differ by so much.
        ([150.0] * 64, 2.0, False),
        # An enormous loss is harm, however far it has come down.
        (np.geomspace(1e14, 1e12, 64), 1e15, True),
        ([20.0] * 64, 1000.0, False),
    ],
)
def test_a_loss_that_began_far_above_chance_and_stays_there_is_harm(values, reach, fires):
    losses = LossCurve()
    losses.chance, losses.reach = 2.3, reach
    losses.extend(Loss(i, i, float(value)) for i, value in enumerate(values))
    assert losses.is_far_above_chance is fires
    assert ("and chance level is 2.3" in losses.harm) is fires


@pytest.mark.parametrize(("reach", "fires"), [(1.0, False), (30.0, True)])
def test_a_loss_that_no_cross_entropy_can_begin_with_is_not_held_against_chance(reach, fires):
    losses = LossCurve()
    losses.chance, losses.reach = math.log(3), reach
    losses.extend(Loss(i, i, value) for i, value in enumerate([*np.linspace(20, 5, 40), *level(160, 5, 0.03)]))
    assert losses.is_stuck is fires


@pytest.mark.parametrize(("first", "fires"), [(0, True), (5000, False)])
def test_a_loss_that_stays_where_it_was_when_the_training_was_resumed_is_not_stuck(first, fires):
    losses = LossCurve()
    losses.extend(Loss(first + i, i, value) for i, value in enumerate(level(300, 0.7, 0.01)))
    assert losses.is_stuck is fires


def test_a_loss_below_0_is_no_cross_entropy():
    losses = curve([*level(50, 0.7, 0.01), -0.1, *level(100, 0.7, 0.01)], chance=math.log(2))
    assert losses.chance is None


@pytest.mark.parametrize(("values", "is_mixed"), [([1.0, -1.0] * 50, True), ([*[1.0] * 20, *[-1.0] * 80], False)])
def test_a_loss_that_goes_to_and_fro_across_0_measures_no_error(values, is_mixed):
    assert curve([*values, *[99.0] * 100]).is_harmed is not is_mixed
    assert curve(values).is_mixed is is_mixed


@pytest.mark.parametrize(("noise", "rests"), [(0.01, True), (0.5, False)])
def test_that_a_loss_no_longer_falls_is_said_only_where_noise_cannot_hide_it(noise, rests):
    values = [*np.linspace(4.5, 3.4, 40), *level(110, 3.4, noise)]
    losses = curve(values, chance=4.5)
    losses.spreads.append(0.1)
    assert losses.is_stuck is rests


@pytest.mark.parametrize(("times", "is_at_zero"), [(0.9, True), (1.1, False)])
def test_a_loss_of_which_hardly_anything_is_left_is_at_0(times, is_at_zero):
    assert curve([*[2.0] * 20, *[times * AT_ZERO_SHARE * 2.0] * 40]).is_at_zero is is_at_zero


@pytest.mark.parametrize(("before", "best"), [(3, 0), (1100, 1104), (50, 48)])
def test_the_step_of_the_best_losses_is_known_while_they_are_kept(before, best):
    losses = curve([*[2.0] * before, *[1.0] * 13, *[3.0] * 100])
    assert losses.best_step == best
    losses.extend(Loss(9999, 0, 3.0) for _ in range(2000))
    assert losses.best_step == -1


@pytest.mark.parametrize(("first", "is_harmed"), [(0.0, False), (-3e-8, False), (0.01, True)])
def test_the_distance_of_a_policy_from_its_reference_begins_at_0_and_has_to_grow(first, is_harmed):
    assert curve([first, *np.linspace(1e-4, 0.5, 100)]).is_harmed is is_harmed


def test_the_error_of_tiny_targets_is_judged():
    assert curve([1e-8 * 1.1**step for step in range(200)]).is_harmed


def test_a_loss_that_the_first_steps_raised_thousandfold_is_compared_with_its_first_value():
    rng = np.random.default_rng(0)
    curve = LossCurve()
    curve.extend(Loss(step, step, 2.0 if step == 0 else 4000.0 * rng.exponential()) for step in range(64))
    assert curve.start == 2.0
    assert curve.has_diverged
    assert curve.harm.endswith("up from 2 at the first step")
