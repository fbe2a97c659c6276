"""`LossCurve`: the loss of every step, in bounded memory, and whether it shows harm or learning."""

import math
import operator
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hookboard.health.look import Loss
from hookboard.health.robust import median

FAR_ABOVE_CHANCE_FACTOR = 10.0
"""A loss that is this many times chance level is far above it (a choice)."""

FAR_ABOVE_CHANCE_SHARE_LEFT = 0.25
"""A loss far above chance is harm if this share of the first losses is left, or above `ENORMOUS_CHANCE_FACTOR`."""

STEPS_BEFORE_WORSE_THAN_CHANCE = 128
"""Number of steps after which a loss far above chance is harm, however far it has come down (a choice): until then the
model could have learnt to answer all samples alike, which gives chance."""

ENORMOUS_CHANCE_FACTOR = 1e6
"""A loss this many times chance level is harm, however far it has come down (a choice)."""

FIRST_LOSS_TOLERANCE_FACTOR = 1.02
"""A first loss above this many times chance level, plus the outputs' range, is no mean cross entropy (a choice)."""

FIRST_LOSSES = 32  # number of first losses that are kept

START_LOSSES = 4
"""Number of first losses whose median is the start (a choice)."""

RECENT_LOSSES = 1024  # number of latest losses that are kept
SPREAD_LOOKS = 8  # number of looks for which the spread of the last layer's outputs is kept

BLOCK_STEPS = 8
"""The loss is smoothed by medians over this many steps: one or two wild batches do not change them."""

NOISE_BLOCKS = 256  # number of blocks whose noise is kept; beyond that, every second one is dropped
SPIKES_KEPT = 16  # number of latest spikes that are kept

SIGN_CHANGES_OF_NO_ERROR = 4
"""Number of sign changes among the first losses from which a loss measures no error: a likelihood that falls through 0
has one, and noise may add two (a choice)."""

NO_ERROR_AT_FIRST, NO_ERROR_SHARE = 1e-6, 1e-2
"""A first loss smaller than this, and than this share of the largest among the first, measures no error: what is left
of it is rounding (choices). That of a policy is 0 until the policy has moved away from the one that sampled, and then
has to grow, with its distance from a reference. The errors of tiny targets are all tiny."""

AT_ZERO_SHARE = 1e-3
"""Share of the first losses below which the loss is at 0 (a choice)."""


def _measures_no_error(first: Sequence[Loss]) -> bool:
    are_below = [loss.value < 0 for loss in first]
    changes = sum(map(operator.ne, are_below, are_below[1:]))
    limit = min(NO_ERROR_AT_FIRST, NO_ERROR_SHARE * max(abs(loss.value) for loss in first))
    return abs(first[0].value) <= limit or changes >= SIGN_CHANGES_OF_NO_ERROR


FIRST_STEP_LEAP = 30.0
"""Where the first steps lead to this many times the first loss, or more, that is their doing, no noise (a choice)."""


def _start_of(first: Sequence[float]) -> float:
    """Return the median of the first losses, or the very first one if the loss has leapt after it.

    >>> _start_of([2.0, 3.0, 1.0, 2.5]), _start_of([2.0, 4000.0, 3000.0, 900.0])
    (2.25, 2.0)
    """
    usual = median(first)
    return first[0] if usual > FIRST_STEP_LEAP * first[0] > 0 else usual


_SAVED = """
steps largest lowest best chance reach first_spread is_mixed _noise _every _paired
""".split()  # noqa: SIM905  # a list of 13 lines
"""The attributes of a `LossCurve` that a checkpoint has besides its losses."""

_numbers_of = operator.attrgetter("step", "batch_idx", "value", "backwards")

STEPS_BEFORE_JUDGING = 32
"""Number of steps before which a finite loss tells nothing, neither harm nor learning."""

STEPS_BEFORE_STUCK = 96
"""Number of steps before which a loss that stays at its start is not harm: healthy deep nets without norms stay there
for 60 (seen on the tuning half of the benchmark)."""

HARM_STEPS = 32
"""A rise of the loss counts as harm when no block among this many last steps came back down."""

RISE_SHARE_OF_GAIN = 0.25
"""The loss has risen if it has lost this share of what it had gained, from its start to its best."""

RISE_NOISE_DEVIATIONS = 2.5
"""A loss that has risen also lies this many standard deviations of its noise above its best: by chance the lowest of
`HARM_STEPS` steps, smoothed, lies 0.7 above the lowest of all, and 2 in one case of a thousand."""

DIVERGED_FACTOR = 1.5
"""A loss this factor above its start has diverged, or `CLEAR_NOISE_DEVIATIONS` above it, if that is more."""

BOUNDLESS_FACTOR = 100.0
"""A loss that has fallen below 0 by more than this many times the size of its start may have no lower bound."""

BOUNDLESS_PACE_SHARE = 0.5
"""A loss has no bound if its last steps' second half falls by this share of the first half (a choice): others rest."""

CLEAR_NOISE_DEVIATIONS = 4.0
"""Number of standard deviations of its noise by which the loss must change for the change to be clear."""

FALLING_SHARE = 0.02
"""A loss falls if over half of the run it falls by this share of its start, and clearly beyond the noise."""

STUCK_SHARE = 0.05
"""A fall by less than this share of the start (or of chance) does not count: every model learns its last bias."""

RECOVERED_SHARE = 2 * STUCK_SHARE
"""Share by which a recovered loss lies below start and chance: twice, not to go to and fro at `STUCK_SHARE`."""

ALIKE_ANSWERS_SPREAD = 0.3
"""Outputs that differ less between samples are nearly alike: they carry less than 0.05 of entropy (half the square)."""

ALIKE_ANSWERS_CHANCE_SHARE = 0.5
"""A model that answers nearly alike, below this share of chance, has learnt that most samples are of one class."""

LEVEL_NOISE_DEVIATIONS = 2.0
"""Deviations of its noise by which a level must differ from chance; with two samples per batch, hundreds of steps."""

UNCLEAR_NOISE_SHARE = 0.5
"""Where the noise is more than this share of the start, nobody can tell whether the loss stays there."""

PRETRAINED_CHANCE_SHARE = 0.8
"""A classifier that starts below this share of chance was trained before."""

SPIKE_DEVIATIONS = 10.0
"""A spike lies this many robust standard deviations above the median of the losses before it."""

SPIKE_FACTOR_ABOVE_LARGEST = 2.0
"""A spike also lies this many times as far above the median of the losses before it as the largest of them does."""

SPIKE_HISTORY_STEPS = 64
"""Number of earlier losses that a spike is compared with. A quarter of them must exist."""

SPIKE_DEVIATION_FLOOR = 0.05
"""Floor of a spike's deviation, as a share of the median before it (a choice): it is at least half as high again."""

STEPS_AFTER_SPIKE = 4
"""Number of steps after a spike that tell whether it stands alone (a choice)."""

SPIKE_ALONE_SHARE = 0.25
"""A spike stands alone if the median of the steps after it exceeds the usual loss by less than this share of its
height. After a poisoned batch (tuning half) the share is 0.001, or a thousand; if data or targets change, 0.4 to 1."""

TINY_DEVIATION = 1e-12  # avoids division by zero


@dataclass(frozen=True)
class Spike:
    """A loss that lies `score` robust standard deviations above `usual`, the median of the losses before it."""

    loss: Loss
    usual: float
    score: float


def first_spike(losses: Sequence[Loss], before: np.ndarray) -> Spike | None:
    """Return the first of some new losses that is finite and far above the losses before all of them, or None."""
    before = before[np.isfinite(before)]
    if len(before) < SPIKE_HISTORY_STEPS // 4:
        return None
    usual = median(before)
    deviation = max(1.4826 * median(np.abs(before - usual)), SPIKE_DEVIATION_FLOOR * abs(usual), TINY_DEVIATION)
    least = max(SPIKE_DEVIATIONS * deviation, SPIKE_FACTOR_ABOVE_LARGEST * (float(before.max()) - usual))
    far = (loss for loss in losses if math.isfinite(loss.value) and loss.value - usual > least)
    return next((Spike(loss, usual, (loss.value - usual) / deviation) for loss in far), None)


def is_new_level(spike: Spike, after: np.ndarray) -> bool:
    """Return True if the losses after a spike are about as high: then data or targets have changed. False if unknown.

    >>> spike = Spike(Loss(80, 5, 10.0), usual=1.0, score=40.0)
    >>> is_new_level(spike, np.array([9.0, 7.0, 8.0, 6.0])), is_new_level(spike, np.array([1.2, 1.0, 3.0, 3.5]))
    (True, False)
    """
    share = (median(after[:STEPS_AFTER_SPIKE]) - spike.usual) / (spike.loss.value - spike.usual)
    return SPIKE_ALONE_SHARE <= share <= 1 / SPIKE_ALONE_SHARE


class LossCurve:
    """The losses of a run in bounded memory (the first, the latest, what is needed of the others); what they show."""

    def __init__(self) -> None:
        self.first: list[Loss] = []
        self.recent: list[Loss] = []  # the latest, at most `RECENT_LOSSES`
        self.steps = 0
        self.largest = -math.inf  # of the finite losses
        self.lowest = math.inf  # of the finite losses
        self.best = math.inf  # the lowest median of `BLOCK_STEPS` losses; inf before there is one
        self.chance: float | None = None  # of a classifier that knows nothing: log(outputs); None if unknown
        self.spreads: deque[float] = deque(maxlen=SPREAD_LOOKS)  # deviation of the last outputs over samples
        self.first_spread = math.nan  # at the first look; NaN if there was none then
        self.reach: float | None = None  # the model's largest output at the first look less its smallest
        self.first_nonfinite: Loss | None = None
        # True for several losses, of one batch or of optimizers in turn: they move against each other, as a GAN's. Also
        # where the model computes its targets, or the loss measures no error, as a policy's (`_measures_no_error`).
        self.is_mixed = False
        self.spikes: deque[Spike] = deque(maxlen=SPIKES_KEPT)  # of all that one `extend` adds only the first
        self._paired = False
        self._noise: list[float] = []  # the standard deviation from step to step, of each block
        self._every = 1
        self.is_resumed = False  # from a checkpoint: the first look is then not that of the first losses

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has of the losses, as plain numbers."""
        losses = {"first": self.first, "recent": self.recent}
        kept = {name: [[*_numbers_of(loss)] for loss in each] for name, each in losses.items()}
        return kept | {name: getattr(self, name) for name in _SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the losses of a checkpoint."""
        self.first, self.recent = ([Loss(*numbers) for numbers in state[name]] for name in ("first", "recent"))
        vars(self).update({name: state[name] for name in _SAVED})
        self.is_resumed = True

    def extend(self, losses: Iterable[Loss]) -> None:
        """Add the losses of further steps, in their order."""
        losses = list(losses)
        spike = first_spike(losses, self.last(SPIKE_HISTORY_STEPS))
        if spike is not None:
            self.spikes.append(spike)
        is_early = self.steps < FIRST_LOSSES
        for loss in losses:
            self._add(loss)
        if is_early and self.first:
            self.is_mixed = self.is_mixed or _measures_no_error(self.first)
        for name in CONCLUSIONS:
            vars(self).pop(name, None)

    def _add(self, loss: Loss) -> None:
        if self.recent:  # two losses in a row came from one batch, and this one comes from another batch
            is_same = self.recent[-1].batch_idx == loss.batch_idx
            self.is_mixed = self.is_mixed or (self._paired and not is_same)
            self._paired = is_same
        self.is_mixed = self.is_mixed or loss.backwards > 1
        if len(self.first) < FIRST_LOSSES:
            self.first.append(loss)
        self.recent.append(loss)
        del self.recent[:-RECENT_LOSSES]
        self.steps += 1
        if math.isfinite(loss.value):
            self.largest = max(self.largest, loss.value)
            self.lowest = min(self.lowest, loss.value)
            if loss.value < 0:  # then it is no mean cross entropy
                self.chance = None
        elif self.first_nonfinite is None:
            self.first_nonfinite = loss
        if self.steps % BLOCK_STEPS == 0:
            self._close_block()

    def last(self, count: int) -> np.ndarray:
        """Return the values of the last steps, at most `count`, float64."""
        return np.array([loss.value for loss in self.recent[-count:]], dtype=np.float64)

    @property
    def best_step(self) -> int:
        """The optimizer step with which the block of `best` began; -1 if it is too long ago, or there is none."""
        first = -(self.steps - len(self.recent)) % BLOCK_STEPS
        for at in range(first, len(self.recent) - BLOCK_STEPS + 1, BLOCK_STEPS):
            if median([self.recent[at + i].value for i in range(BLOCK_STEPS)]) == self.best:
                return self.recent[at].step
        return -1

    def level(self, count: int = 16) -> float:
        """Return the median of the last `count` losses; NaN if there are none, or one is NaN."""
        return median(self.last(count))

    def _close_block(self) -> None:
        last = self.last(BLOCK_STEPS)
        if not np.isfinite(last).all():
            return
        self.best = min(self.best, median(last))
        if self.steps // BLOCK_STEPS % self._every == 0:
            self._noise.append(float(np.std(np.diff(last)) / math.sqrt(2)))
        if len(self._noise) > NOISE_BLOCKS:
            self._noise, self._every = self._noise[::2], 2 * self._every

    @cached_property
    def start(self) -> float:
        """The median of the first few losses, or the first one if it has leapt (`_start_of`); NaN if there are none."""
        return _start_of([loss.value for loss in self.first[:START_LOSSES]]) if self.first else math.nan

    @cached_property
    def very_first(self) -> float:
        """The very first loss, that of the model as it was given; NaN if there is none."""
        return self.first[0].value if self.first else math.nan

    @cached_property
    def noise(self) -> float:
        """The standard deviation from step to step, the median over blocks; NaN if there were too few steps."""
        return median(self._noise)

    @cached_property
    def is_known(self) -> bool:
        """True if there were at least `STEPS_BEFORE_JUDGING` steps, and their losses are one curve, see `is_mixed`."""
        return self.steps >= STEPS_BEFORE_JUDGING and not self.is_mixed

    @cached_property
    def is_finite(self) -> bool:
        """True if the last loss is finite, or there is none."""
        return not self.recent or math.isfinite(self.recent[-1].value)

    @cached_property
    def is_falling(self) -> bool:
        """True if the loss still falls: of the last half of the run, the last quarter is clearly below the first."""
        fall, noise = self._fall
        return fall > max(FALLING_SHARE * abs(self.start), CLEAR_NOISE_DEVIATIONS * noise)

    @cached_property
    def has_come_to_rest(self) -> bool:
        """True if the loss clearly no longer falls: even with its noise added, the fall is too small to count."""
        fall, noise = self._fall
        return fall + LEVEL_NOISE_DEVIATIONS * noise < FALLING_SHARE * abs(self.start)

    @cached_property
    def _fall(self) -> tuple[float, float]:
        """Return by how much the loss fell over the last half of the run, and the standard error; NaN if unknown."""
        if not self.is_known:
            return math.nan, math.nan
        last = self.last(min(max(self.steps // 2, STEPS_BEFORE_JUDGING), RECENT_LOSSES))
        quarter = len(last) // 4
        if not np.isfinite(last).all():
            return math.nan, math.nan
        return median(last[:quarter]) - median(last[-quarter:]), self.noise / math.sqrt(quarter)

    @cached_property
    def is_learning(self) -> bool:
        """True if the loss is clearly below its start and not `has_risen`; False if unknown."""
        if not self.is_known or not self.is_finite or self.has_risen:
            return False
        return self.start - self.level() > max(STUCK_SHARE * abs(self.start), 2 * self.noise)

    @cached_property
    def is_well(self) -> bool:
        """True if the loss has learnt, shows no harm, and is below the very first, that of the model as it was."""
        return self.is_learning and not self.is_harmed and self.level() < self.very_first

    def is_within_reach(self, goal: float) -> bool:
        """Return True if the loss falls, and gets to a goal in no more steps than so far if it goes on like this."""
        fall, _ = self._fall  # from the middle of one eighth of the steps to that of another
        return self.is_falling and self.level() - goal <= fall * 8 / 3

    @cached_property
    def has_risen(self) -> bool:
        """True if for `HARM_STEPS` steps `RISE_SHARE_OF_GAIN` of the fall from start to best has clearly been lost."""
        lost = RISE_SHARE_OF_GAIN * (self.start - self.best)
        return self._low > self.best + max(lost, RISE_NOISE_DEVIATIONS * self.noise)

    @cached_property
    def has_diverged(self) -> bool:
        """True if the loss was well above its start for the last `HARM_STEPS` steps, or has no lower bound."""
        # The first step may have spoiled the losses after it: the very first one is that of the model as it was given.
        start = min(self.start, self.very_first)
        noise = min(CLEAR_NOISE_DEVIATIONS * self.noise, FIRST_STEP_LEAP * abs(start))
        is_above = self._low > start + max((DIVERGED_FACTOR - 1) * abs(start), noise)
        return self.is_known and (self.is_boundless or is_above)

    @cached_property
    def is_at_zero(self) -> bool:
        """True if hardly anything of the first losses is left, so that there is nothing more to learn."""
        return self.is_known and 0 <= self.level() < AT_ZERO_SHARE * self.start

    @cached_property
    def is_far_above_chance(self) -> bool:
        """True if the last `HARM_STEPS` losses were far above chance (and in the first 128 steps hardly came down)."""
        if self.chance is None or self.reach is None or not self.is_of_classifier:
            return False
        left = 0.0 if self.steps >= STEPS_BEFORE_WORSE_THAN_CHANCE else FAR_ABOVE_CHANCE_SHARE_LEFT * self.start
        is_far = self._low > FAR_ABOVE_CHANCE_FACTOR * self.chance
        return is_far and (self._low > left or self._low > ENORMOUS_CHANCE_FACTOR * self.chance)

    @cached_property
    def is_boundless(self) -> bool:
        """True if the loss fell far below 0, as a likelihood may, but hardly slows down: it seems to have no bound."""
        # Several losses in a step, and one that begins at 0, may fall without a bound by a wrong sign too.
        if not self.lowest < -BOUNDLESS_FACTOR * max(abs(self.start), 1.0):  # NaN without losses
            return False
        last = self.last(RECENT_LOSSES)
        last = last[np.isfinite(last)]
        if len(last) < 2 * BLOCK_STEPS:
            return True
        begin, middle, end = (
            median(last[at : at + BLOCK_STEPS]) for at in (0, (len(last) - BLOCK_STEPS) // 2, len(last) - BLOCK_STEPS)
        )
        return middle - end >= BOUNDLESS_PACE_SHARE * (begin - middle)

    @cached_property
    def is_stuck(self) -> bool:
        """True if the loss is still where it started, or at chance, and does not fall."""
        # What starts far below chance, or not at step 0, was trained before: no harm if its loss stays there.
        was_resumed = bool(self.first) and self.first[0].step > 0
        if was_resumed or not self.is_known or self.steps < STEPS_BEFORE_STUCK or not self.is_finite or self.is_falling:
            return False
        if self.chance is None or not self.is_of_classifier:
            if self.noise > UNCLEAR_NOISE_SHARE * abs(self.start):
                return False
            return bool(self.start - self.level() <= max(STUCK_SHARE * abs(self.start), self.noise))
        if self.start < PRETRAINED_CHANCE_SHARE * self.chance:
            return False
        is_alike = (
            bool(self.spreads)
            and self.spreads[-1] < ALIKE_ANSWERS_SPREAD
            and self.level() > ALIKE_ANSWERS_CHANCE_SHARE * self.chance
            # What has learnt how frequent the classes are may go on from there.
            and (self.has_come_to_rest or not self.has_come_down)
        )
        return is_alike or self._clear_level(STUCK_SHARE * self.chance) >= (1 - STUCK_SHARE) * self.chance

    @cached_property
    def is_only_stuck(self) -> bool:
        """True if the loss is stuck and shows no other harm."""
        others = self.is_far_above_chance or self.has_diverged or self.has_risen
        return self.is_finite and self.is_stuck and not others

    @cached_property
    def is_of_classifier(self) -> bool:
        """True if the loss seems to be a classifier's mean cross entropy: the first one is not far above chance."""
        if self.chance is None or self.reach is None:
            return self.chance is not None
        return self.very_first <= FIRST_LOSS_TOLERANCE_FACTOR * self.chance + self.reach  # False for NaN

    def after(self, step: int) -> np.ndarray:
        """Return the values of the kept losses of all steps after this one, shape (n,), float64."""
        return np.array([loss.value for loss in self.recent if loss.step > step])

    def is_worse_since(self, step: int) -> bool:
        """Return True if the loss shows harm, was near its best just before a step, and well above that ever since."""
        if not self.is_harmed:
            return False
        before = [loss.value for loss in self.recent if loss.step < step][-BLOCK_STEPS:]
        after = self.after(step)
        if len(before) < BLOCK_STEPS or len(after) < HARM_STEPS // 2:
            return False
        well = median(before)
        limit = max(RISE_SHARE_OF_GAIN * (self.start - self.best), CLEAR_NOISE_DEVIATIONS * self.noise)
        levels = map(median, after[: len(after) // BLOCK_STEPS * BLOCK_STEPS].reshape(-1, BLOCK_STEPS))
        return well < self.best + limit and not any(level <= well + limit / 2 for level in levels)

    @cached_property
    def has_recovered(self) -> bool:
        """True if the loss shows no harm and lies clearly below its start; a classifier's must lie below chance too."""
        if self.is_harmed:
            return False
        if not self.is_known:
            return True  # nothing can be told of it
        # The mean too: a loss that is 0 in most steps and huge in the others has not recovered.
        level = max(self.level(), float(np.mean(self.last(16))))
        is_below = not self.is_of_classifier or level < (1 - RECOVERED_SHARE) * (self.chance or 0.0)
        return is_below and self.start - level > max(RECOVERED_SHARE * abs(self.start), 2 * self.noise)

    @cached_property
    def is_harmed(self) -> bool:
        """True if the loss shows harm: not finite, stuck, far above chance, or it has risen or diverged."""
        return bool(self.harm)

    @cached_property
    def harm(self) -> str:
        """The harm that the loss shows, as a clause for the evidence of a verdict; "" if none."""
        if not self.is_finite:
            return f"the loss is {self.recent[-1].value}"
        if not self.is_known:
            return ""
        if self.is_boundless:
            return f"the loss fell from {self.very_first:.3g} to {self.level():.3g}, and seems to have no lower bound"
        if self.has_diverged:
            return f"the loss is {self.level():.3g}, up from {self.very_first:.3g} at the first step"
        if self.is_far_above_chance:
            return f"the loss is {self.level():.3g}, and chance level is {self.chance:.3g}"
        if self.has_risen:
            return f"the loss rose from {self.best:.3g} to {self.level():.3g}"
        if self.is_stuck:
            is_below = self.has_come_down and self.level() < self.very_first
            where = "has stopped falling" if is_below else "is stuck"
            where = "rose, and is stuck" if self.level() > self.very_first + self.noise else where
            return f"the loss was {self.very_first:.3g} at the first step and {where} at {self.level():.3g}"
        return ""

    @cached_property
    def has_come_down(self) -> bool:
        """True if the loss lies clearly below its start, even if it is stuck there."""
        return self.start - self.level() > max(STUCK_SHARE * abs(self.start), self.noise)

    def _clear_level(self, least: float) -> float:
        """Return the median of enough last losses that its noise is below about `least`; NaN if there are too few."""
        noise = self.noise if self.noise < math.inf else 0.0
        count = max(16, math.ceil((1.25 * LEVEL_NOISE_DEVIATIONS * noise / least) ** 2))
        return self.level(count) if count <= max(16, min(self.steps // 2, RECENT_LOSSES)) else math.nan

    @cached_property
    def _low(self) -> float:
        """The lowest median of `BLOCK_STEPS` losses among the last `HARM_STEPS`; NaN if one is NaN, or unknown."""
        if not self.is_known:
            return math.nan
        last = self.last(HARM_STEPS)
        blocks = last[len(last) % BLOCK_STEPS :].reshape(-1, BLOCK_STEPS)
        levels = [median(block) for block in blocks]
        return math.nan if any(map(math.isnan, levels)) else min(levels)


CONCLUSIONS = [name for name, member in vars(LossCurve).items() if isinstance(member, cached_property)]
"""What a `LossCurve` works out anew once there are more losses."""
