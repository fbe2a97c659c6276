"""`LossCurve`: whether the losses of a run show harm, or learning."""

import math

import numpy as np

from hookboard.health.chance import is_another, is_far_above, starts_high
from hookboard.health.loss_history import BLOCK, RECENT, LossHistory
from hookboard.health.spikes import median

KNOWN_AFTER = 32
"""Steps before which a finite loss tells nothing, neither harm nor learning."""

STUCK_AFTER = 96
"""Steps before which a loss that stays at its start is no harm: healthy deep nets without norm stay there for 60 (seen
on the tuning half of the benchmark)."""

LASTS = 32
"""A rise counts as harm when no block of this many last steps came back down."""

RISEN = 0.25
"""Harm: the loss has lost this share of what it had gained, from its start to its best."""

ABOVE_BEST = 2.5
"""And it lies this many deviations of the noise above its best: by chance the lowest of `LASTS` steps, smoothed, lies
0.7 above the lowest of all, and 2 in one case of a thousand."""

DIVERGED = 1.5
"""Harm: a loss that is above its start by this factor (or by `CLEAR` deviations of its noise, if that is more)."""

BOUNDLESS = 100.0
"""Harm: a loss that has fallen below 0 by more than this many times the size of its start: it has no lower bound."""

STEADY = 0.5
"""And in the second half of the last steps it falls by this share of what it falls in the first half, or by more (a
choice): what has a bound comes to rest."""

CLEAR = 4.0
"""How many deviations of the noise a change of level must have to be one."""

FALL = 0.02
"""A loss falls if over half of the run it falls by this share of its start, and clearly beyond the noise."""

STUCK = 0.05
"""A fall by less than this share of the start (or of chance) is none: every model learns its last bias."""

ALIKE = 0.3
"""A classifier answers all samples alike if its outputs differ between samples by less than this: then they tell less
than 0.05 of entropy (half of the square)."""

LITTLE = 0.5
"""A model that answers all samples alike, with a loss below this share of chance, has learnt that most samples are of
one class."""

SURE = 2.0
"""A level must be this many deviations of its noise away from chance to be told from it. With two samples in a batch
that takes hundreds of steps."""

UNCLEAR = 0.5
"""Where the noise is more than this share of the start, nobody can tell whether the loss stays there."""

TRAINED = 0.8
"""A classifier that starts below this share of chance was trained before."""


class LossCurve(LossHistory):
    """What the losses of a run say.

    Nothing is said of the first `KNOWN_AFTER` steps, unless the loss is not finite. Nothing but that is said either of
    a run with several losses for one batch, such as a GAN: they go up and down against each other.
    """

    def __init__(self) -> None:
        super().__init__()
        self._harm = 0, ""

    @property
    def is_known(self) -> bool:
        """Whether there were enough steps, each with one loss, to tell anything."""
        return self.steps >= KNOWN_AFTER and not self.is_mixed

    @property
    def is_finite(self) -> bool:
        """Whether the last loss is finite; True if there is none."""
        return not self.recent or math.isfinite(self.recent[-1].value)

    @property
    def is_falling(self) -> bool:
        """Whether the loss still falls: the last quarter of the last steps lies clearly below the first."""
        if not self.is_known:
            return False
        last = self.last(min(max(self.steps // 2, KNOWN_AFTER), RECENT))
        quarter = len(last) // 4
        if not np.isfinite(last).all():
            return False
        fall = median(last[:quarter]) - median(last[-quarter:])
        return bool(fall > max(FALL * abs(self.start), CLEAR * self.noise / math.sqrt(quarter)))

    @property
    def is_learning(self) -> bool:
        """Whether the loss lies clearly below its start, and does not rise."""
        if not self.is_known or not self.is_finite or self.has_risen:
            return False
        return self.start - self.level() > max(STUCK * abs(self.start), 2 * self.noise)

    @property
    def has_risen(self) -> bool:
        """Whether the loss has lost much of what it had gained, and did not come back for `LASTS` steps."""
        if not self.is_known or not math.isfinite(self.best):
            return False
        gained = self.start - self.best
        return self._low > self.best + max(RISEN * gained, ABOVE_BEST * self.noise)

    @property
    def has_diverged(self) -> bool:
        """Whether the loss is well above its start, and did not come back for `LASTS` steps; or has no lower bound."""
        if not self.is_known:
            return False
        if self.is_boundless:
            return True
        # The first step may have spoiled the losses after it: the very first one is that of the model as it was given.
        start = min(self.start, self.first[0].value)
        return self._low > start + max((DIVERGED - 1) * abs(start), CLEAR * self.noise)

    @property
    def is_far_above_chance(self) -> bool:
        """Whether the loss is far above that of chance, where it began, and did not come down for `LASTS` steps."""
        if not self.is_known or self.chance is None or self.reach is None:
            return False
        return is_far_above(self.chance, self.reach, self.first[0].value, self.start, self._low)

    @property
    def starts_high(self) -> bool:
        """Whether the first losses were far above that of chance, and it took long to come down to it."""
        return starts_high(self.chance, self.start) and (self.reached_chance or self.steps) > KNOWN_AFTER

    @property
    def is_boundless(self) -> bool:
        """Whether the loss fell far below 0 and falls no slower than before, so that it seems to have no lower bound.

        A likelihood may lie far below 0 too, but comes to rest there.
        """
        if not self.lowest < -BOUNDLESS * max(abs(self.start), 1.0):  # NaN without losses
            return False
        last = self.last(RECENT)
        last = last[np.isfinite(last)]
        if len(last) < 2 * BLOCK:
            return True
        begin, middle, end = (median(last[at : at + BLOCK]) for at in (0, (len(last) - BLOCK) // 2, len(last) - BLOCK))
        return middle - end >= STEADY * (begin - middle)

    @property
    def is_stuck(self) -> bool:
        """Whether the loss is still where it started, or at chance, and does not fall.

        Chance is that of equally frequent classes, or whatever a classifier reaches that answers all samples alike. One
        that starts far below chance, or not at step 0, was trained before: that its loss stays there is no harm.
        """
        was_resumed = bool(self.first) and self.first[0].step > 0
        if was_resumed or not self.is_known or self.steps < STUCK_AFTER or not self.is_finite or self.is_falling:
            return False
        if self.chance is None or is_another(self.chance, self.reach, self.first[0].value):
            if self.noise > UNCLEAR * abs(self.start):
                return False
            return bool(self.start - self.level() <= max(STUCK * abs(self.start), self.noise))
        if self.start < TRAINED * self.chance:
            return False
        is_alike = bool(self.spreads) and self.spreads[-1] < ALIKE and self.level() > LITTLE * self.chance
        return is_alike or self._clear_level(STUCK * self.chance) >= (1 - STUCK) * self.chance

    def after(self, step: int) -> np.ndarray:
        """The losses behind a step, of those that are kept, shape (n,), float64."""
        return np.array([loss.value for loss in self.recent if loss.step > step])

    def is_worse_since(self, step: int) -> bool:
        """Whether the loss was well right before a step and at no time since; False if that is too long ago."""
        if not self.is_harmed:
            return False
        before = [loss.value for loss in self.recent if loss.step < step][-BLOCK:]
        after = self.after(step)
        if len(before) < BLOCK or len(after) < LASTS // 2:
            return False
        well = median(before)
        limit = max(RISEN * (self.start - self.best), CLEAR * self.noise)
        levels = map(median, after[: len(after) // BLOCK * BLOCK].reshape(-1, BLOCK))
        return well < self.best + limit and not any(level <= well + limit / 2 for level in levels)

    @property
    def is_harmed(self) -> bool:
        """Whether the loss shows harm: not finite, risen, diverged, far above chance or stuck."""
        return bool(self.harm)

    @property
    def harm(self) -> str:
        """What harm the loss shows, as a clause for the evidence of a verdict; "" if none."""
        if self._harm[0] != self.steps:
            self._harm = self.steps, self._look_for_harm()
        return self._harm[1]

    def _look_for_harm(self) -> str:
        if not self.is_finite:
            return f"the loss is {self.recent[-1].value}"
        if self.has_diverged:
            return f"the loss is {self.level():.3g} after {min(self.start, self.first[0].value):.3g} at the start"
        if self.is_far_above_chance:
            return f"the loss is {self.level():.3g}, that of chance is {self.chance:.3g}"
        if self.has_risen:
            return f"the loss rose from {self.best:.3g} to {self.level():.3g}"
        if self.is_stuck:
            return f"the loss stays at {self.level():.3g}, after {self.start:.3g} at the start"
        return ""

    def _clear_level(self, least: float) -> float:
        """The median of so many last losses that chance moves it by less than `least`; NaN if there are too few.

        A median of n normal numbers has a deviation of 1.25 / sqrt(n) of theirs.
        """
        count = max(16, math.ceil((1.25 * SURE * self.noise / least) ** 2)) if self.noise < math.inf else 16
        return self.level(count) if count <= max(16, min(self.steps // 2, RECENT)) else math.nan

    @property
    def _low(self) -> float:
        """The lowest median of a block among the last `LASTS` steps; NaN if one is not finite."""
        last = self.last(LASTS)
        blocks = last[len(last) % BLOCK :].reshape(-1, BLOCK)
        levels = [median(block) for block in blocks]
        return math.nan if any(map(math.isnan, levels)) else min(levels)
