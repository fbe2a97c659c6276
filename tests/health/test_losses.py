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


def curve(
    values: Iterable[float], chance: float | None = None, first: int = 0, reach: float | None = None, **given: object
) -> LossCurve:
    """The curve of a run whose first step has this number; `batch_idx` may be a function of the step."""
    losses = LossCurve()
    losses.chance = chance
    losses.reach = losses.reach if reach is None else reach
    batch_of = given.pop("batch_idx", lambda step: step)
    losses.extend(Loss(first + i, batch_of(i), float(value), **given) for i, value in enumerate(values))
    return losses


def falling(steps: int, start: float = 2.3, end: float = 0.1, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, noise, steps)
    return end + (start - end) * np.exp(-np.arange(steps) / (steps / 5)) + noise


def level(steps: int, value: float, noise: float, seed: int = 1) -> np.ndarray:
    """Losses around a level, none of them below 0."""
    return abs(np.random.default_rng(seed).normal(value, noise, steps))


def from_to(start: float, end: float, noise: float = 0.03, steps: int = 160) -> list[float]:
    """Losses that come down to a level, and stay there."""
    return [*np.linspace(start, end, 40), *level(steps, end, noise)]


@pytest.mark.parametrize("seed", range(2))
def test_a_loss_that_has_fallen_and_stays_there_is_not_harmed_nor_by_one_wild_batch(seed):
    values = [*falling(100, seed=seed), *level(400, 0.1, 0.05, seed + 100)]
    values[450] = 1e6
    losses = curve(values)
    assert losses.is_learning
    assert losses.harm == ""


HARMED = {
    "a rise that comes back in time": (curve([*falling(100), *[2.3] * 20, *level(10, 0.1, 0.01)]), False),
    "a loss that is finite again": (curve([*falling(100), math.inf, *level(40, 0.1, 0.05)]), False),
    "too few steps": (curve([*[2.3] * 2, *[9.0] * (STEPS_BEFORE_JUDGING - 3)]), False),
    "enough steps": (curve([*[2.3] * 4, *[9.0] * STEPS_BEFORE_JUDGING]), True),
    "a loss that has stayed for a short time": (curve([2.3] * (STEPS_BEFORE_STUCK - 1)), False),
    "a loss that has stayed for long": (curve([2.3] * STEPS_BEFORE_STUCK), True),
    "batches sorted by class": (curve([*falling(10), *np.tile(8 * np.exp(-np.arange(6.0)), 40)]), False),
    "losses added up over backward passes": (curve([*[1.0] * 50, *[9.0] * 50], backwards=2), False),
    "one batch in each epoch": (curve(level(100, 2.3, 0.05), batch_idx=lambda step: 0), True),
    # As the distance of a policy from its reference, which begins at 0.
    "a loss that grows from 0": (curve([0.0, *np.linspace(1e-4, 0.5, 100)]), False),
    "a loss that grows from 0 but for rounding": (curve([-3e-8, *np.linspace(1e-4, 0.5, 100)]), False),
    "a loss that grows": (curve([0.01, *np.linspace(1e-4, 0.5, 100)]), True),
    "the error of tiny targets that grows": (curve([1e-8 * 1.1**step for step in range(200)]), True),
}


@pytest.mark.parametrize(("losses", "is_harmed"), HARMED.values(), ids=HARMED)
def test_harm_is_shown_by(losses, is_harmed):
    assert losses.is_harmed is is_harmed


def test_a_rise_by_less_than_a_quarter_of_what_was_gained_is_no_harm():
    gained = [*np.linspace(2.0, 0.0, 80), *[0.0] * 16]
    assert not curve([*gained, *[0.45] * 40]).has_risen
    assert curve([*gained, *[0.55] * 40]).has_risen


def test_a_loss_that_is_not_finite_is_harm_from_its_first_step():
    losses = curve([2.3, math.nan])
    assert losses.is_harmed
    assert losses.first_nonfinite == Loss(1, 1, losses.first_nonfinite.value)


def slowing(times: float) -> list[float]:
    """Losses that fall in the second half by so many times `BOUNDLESS_PACE_SHARE` of what they fell in the first."""
    return [*-np.linspace(1, 4000, 100), *(-4000 - np.linspace(0, 4000 * times * BOUNDLESS_PACE_SHARE, 100))]


DIVERGED = {
    "a loss above its start": (curve([*level(20, 2.3, 0.1), *level(60, 9.0, 0.1)]), True),
    "a loss a little above its start": (curve([*level(20, 2.3, 0.1), *level(60, 3.0, 0.1)]), False),
    "a loss that falls without bound": (curve(-np.logspace(0, 4, 100)), True),
    "a loss that falls below 0": (curve(-np.linspace(1, 90, 100)), False),
    "a fall that slows down": (curve(slowing(0.9)), False),
    "a fall that goes on": (curve(slowing(1.1)), True),
    "an overflow before it is known how a loss falls": (
        curve([*[-2.3] * 4, *-np.logspace(1, 20, 8), -math.inf, math.nan]),
        True,
    ),
    "accumulated losses without bound": (curve(np.linspace(-1.0, -4e4, 999), backwards=2), True),
    "a loss without bound that begins at 0": (curve(np.linspace(0.0, -4e4, 999)), True),
}


@pytest.mark.parametrize(("losses", "fires"), DIVERGED.values(), ids=DIVERGED)
def test_a_loss_has_diverged_or_falls_without_bound(losses, fires):
    assert (losses.has_diverged or losses.is_boundless) is fires


TEN, FOUR, THREE = math.log(10), math.log(4), math.log(3)
STUCK = {
    "comes down to chance": (curve(from_to(5, 2.3), TEN), True),
    "comes down below chance": (curve(from_to(5, 2.0), TEN), False),
    "is at chance with little noise": (curve(level(300, 1.386, 0.1), FOUR), True),
    # With two samples in a batch the last few losses tell nothing.
    "is at chance with much noise": (curve(level(300, 1.386, 0.8), FOUR), False),
    "is at chance with much noise for long": (curve(level(3000, 1.386, 0.8), FOUR), True),
    "is a little below chance with noise": (curve(level(200, 1.2, 0.6, seed=200), FOUR), False),
    "is a little below chance with noise for long": (curve(level(800, 1.2, 0.6, seed=800), FOUR), False),
    "falls above chance": (curve(np.linspace(9, 4, 200) + level(200, 0, 0.02), TEN), False),
    "stays above chance": (curve(level(200, 4, 0.02), TEN), True),
    "no cross entropy can begin with": (curve(from_to(20, 5), THREE, reach=1.0), False),
    "a cross entropy may begin with": (curve(from_to(20, 5), THREE, reach=30.0), True),
    "stays": (curve(level(300, 0.7, 0.01)), True),
    "stays where it was when the training was resumed": (curve(level(300, 0.7, 0.01), first=5000), False),
}


@pytest.mark.parametrize(("losses", "is_stuck"), STUCK.values(), ids=STUCK)
def test_a_loss_is_stuck_that(losses, is_stuck):
    assert losses.is_stuck is is_stuck


@pytest.mark.parametrize(("noise", "rests"), [(0.01, True), (0.5, False)])
def test_that_a_loss_no_longer_falls_is_said_only_where_noise_cannot_hide_it(noise, rests):
    losses = curve(from_to(4.5, 3.4, noise, steps=110), chance=4.5)
    losses.spreads.append(0.1)
    assert losses.is_stuck is rests


def test_a_loss_that_came_down_to_chance_is_not_said_to_stay_where_it_began():
    fell = curve(from_to(4.54, 2.95, 0.001), chance=math.log(20))
    assert fell.harm == "the loss was 4.54 at the first step and has stopped falling at 2.95"
    within_its_noise = curve([*[0.69] * 4, *level(200, 0.65, 0.1)])
    assert within_its_noise.harm == "the loss was 0.69 at the first step and is stuck at 0.656"
    stays = curve(level(200, 2.95, 0.001), chance=math.log(20))
    assert stays.harm.endswith(" at the first step and is stuck at 2.95")


def test_two_losses_for_each_batch_tell_nothing():
    values = np.stack([level(100, 1.4, 0.1), level(100, 0.7, 0.1)], axis=1).ravel()
    losses = curve(values, batch_idx=lambda step: step // 2)
    assert losses.is_mixed
    assert not losses.is_harmed


@pytest.mark.parametrize(("values", "is_mixed"), [([1.0, -1.0] * 50, True), ([*[1.0] * 20, *[-1.0] * 80], False)])
def test_a_loss_that_goes_to_and_fro_across_0_measures_no_error(values, is_mixed):
    assert curve([*values, *[99.0] * 100]).is_harmed is not is_mixed
    assert curve(values).is_mixed is is_mixed


@pytest.mark.parametrize(
    ("values", "reach", "fires"),
    [
        ([400.0] * 64, 1000.0, True),
        # A sum over a batch of 64: the answers of the model do not differ by so much.
        ([150.0] * 64, 2.0, False),
        # An enormous loss is harm, however far it has come down.
        (np.geomspace(1e14, 1e12, 64), 1e15, True),
        ([20.0] * 64, 1000.0, False),
        # In the end any loss far above chance is harm.
        ([*(3000 / (1 + np.arange(30))), *[40.0] * 170], 1e5, True),
    ],
)
def test_a_loss_that_began_far_above_chance_and_stays_there_is_harm(values, reach, fires):
    losses = curve(values, 2.3, reach=reach)
    assert losses.is_far_above_chance is fires
    assert ("and chance level is 2.3" in losses.harm) is fires


def test_a_loss_below_0_is_no_cross_entropy():
    assert curve([*level(50, 0.7, 0.01), -0.1, *level(100, 0.7, 0.01)], chance=math.log(2)).chance is None


@pytest.mark.parametrize(("times", "is_at_zero"), [(0.9, True), (1.1, False)])
def test_a_loss_of_which_hardly_anything_is_left_is_at_0(times, is_at_zero):
    assert curve([*[2.0] * 20, *[times * AT_ZERO_SHARE * 2.0] * 40]).is_at_zero is is_at_zero


@pytest.mark.parametrize(("before", "best"), [(3, 0), (1100, 1104), (50, 48)])
def test_the_step_of_the_best_losses_is_known_while_they_are_kept(before, best):
    losses = curve([*[2.0] * before, *[1.0] * 13, *[3.0] * 100])
    assert losses.best_step == best
    losses.extend(Loss(9999, 0, 3.0) for _ in range(2000))
    assert losses.best_step == -1


def test_a_loss_that_the_first_steps_raised_thousandfold_is_compared_with_its_first_value():
    losses = curve([2.0, *(4000.0 * np.random.default_rng(0).exponential(size=63))])
    assert losses.start == 2.0
    assert losses.has_diverged
    assert losses.harm.endswith("up from 2 at the first step")
