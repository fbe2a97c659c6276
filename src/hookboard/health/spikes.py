"""`Spike`: a loss far above its own history, and whether it stands alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hookboard.health.look import Loss
from hookboard.health.robust import median

SPIKE_DEVIATIONS = 10.0
"""A spike lies this many robust standard deviations above the median of the losses before it."""

SPIKE_FACTOR_ABOVE_LARGEST = 2.0
"""A spike also lies this many times as far above the median of the losses before it as the largest of them does."""

SPIKE_HISTORY_STEPS = 64
"""Number of earlier losses that a spike is compared with. A quarter of them must exist."""

SPIKE_DEVIATION_FLOOR = 0.05
"""Floor of the standard deviation that a spike is measured in, as a share of the median of the losses before it (a
choice): so a spike is at least half as high again."""

STEPS_AFTER_SPIKE = 4
"""Number of steps after a spike that tell whether it stands alone (a choice)."""

SPIKE_ALONE_SHARE = 0.25
"""A spike stands alone if the median of the steps after it lies less than this share of its height above the usual
loss. After a poisoned batch of the benchmark's tuning half the share is 0.001, or a thousand; if data or targets
change, 0.4 to 1."""

TINY_DEVIATION = 1e-12
"""Avoids division by zero."""


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
    usual, largest = median(before), float(before.max())
    deviation = max(1.4826 * median(np.abs(before - usual)), SPIKE_DEVIATION_FLOOR * abs(usual), TINY_DEVIATION)
    for loss in losses:
        above = loss.value - usual
        if math.isfinite(above) and above > max(
            SPIKE_DEVIATIONS * deviation, SPIKE_FACTOR_ABOVE_LARGEST * (largest - usual)
        ):
            return Spike(loss, usual, above / deviation)
    return None


def is_new_level(spike: Spike, after: np.ndarray) -> bool:
    """Return True if the losses after a spike are about as high: then data or targets have changed. False if unknown.

    >>> spike = Spike(Loss(80, 5, 10.0), usual=1.0, score=40.0)
    >>> is_new_level(spike, np.array([9.0, 7.0, 8.0, 6.0])), is_new_level(spike, np.array([1.2, 1.0, 3.0, 3.5]))
    (True, False)
    """
    share = (median(after[:STEPS_AFTER_SPIKE]) - spike.usual) / (spike.loss.value - spike.usual)
    return SPIKE_ALONE_SHARE <= share <= 1 / SPIKE_ALONE_SHARE
