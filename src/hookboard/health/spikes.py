"""`Spike`: one loss far outside of its own history."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hookboard.health.look import Loss

SPIKE = 10.0
"""A spike lies this many deviations (from the median absolute deviation) above the median of the losses before it."""

BEYOND = 2.0
"""And this many times as far above it as the largest of them."""

SPIKE_HISTORY = 64
"""How many losses before it a spike is compared with. A quarter of them must be there."""

LEAST = 1e-3
"""The least deviation that is assumed, as a share of the median."""

LEVEL = 4
"""The steps after a spike that tell whether it stands alone (a choice)."""

ALONE = 0.25
"""It stands alone if the median of these steps lies less than this share of its height above what was usual. After a
poisoned batch of the benchmark's tuning half it is 0.001, or a thousand; if data or targets change, 0.4 to 1."""

TINY = 1e-12
"""Avoids division by zero."""


@dataclass(frozen=True)
class Spike:
    """A loss far outside of its own history.

    Args:
        loss: the loss.
        usual: the median of the losses before it.
        score: how many robust deviations it lies above that.
    """

    loss: Loss
    usual: float
    score: float


def first_spike(losses: Sequence[Loss], before: np.ndarray) -> Spike | None:
    """The first of some losses that is finite and lies far above those before them; None if there is none.

    Args:
        losses: new losses, in their order.
        before: the values of those before, shape (n,).
    """
    before = before[np.isfinite(before)]
    if len(before) < SPIKE_HISTORY // 4:
        return None
    usual, largest = median(before), float(before.max())
    deviation = max(1.4826 * median(np.abs(before - usual)), LEAST * abs(usual), TINY)
    for loss in losses:
        above = loss.value - usual
        if math.isfinite(above) and above > max(SPIKE * deviation, BEYOND * (largest - usual)):
            return Spike(loss, usual, above / deviation)
    return None


def is_new_level(spike: Spike, after: np.ndarray) -> bool:
    """Whether the losses behind a spike are about as high: then it is no single step, data or targets are others.

    Args:
        spike: the spike.
        after: the losses behind it, shape (n,).

    >>> spike = Spike(Loss(80, 5, 10.0), usual=1.0, score=40.0)
    >>> is_new_level(spike, np.array([9.0, 7.0, 8.0, 6.0])), is_new_level(spike, np.array([1.2, 1.0, 3.0, 3.5]))
    (True, False)
    """
    share = (median(after[:LEVEL]) - spike.usual) / (spike.loss.value - spike.usual)
    return ALONE <= share <= 1 / ALONE


def median(values: Sequence[float] | np.ndarray) -> float:
    """The median; NaN if there is none, or one is NaN. For a few values faster than NumPy's."""
    ordered: list[float] = sorted(values.tolist() if isinstance(values, np.ndarray) else values)
    if not ordered or any(map(math.isnan, ordered)):
        return math.nan
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def medians(values: np.ndarray) -> np.ndarray:
    """The median of each row, shape (rows,); NaN where one is NaN. For a few columns faster than NumPy's.

    >>> medians(np.array([[3.0, 1.0, 2.0], [3.0, math.nan, 2.0]])).tolist()
    [2.0, nan]
    """
    ordered = np.sort(values, axis=1)  # NaN comes last
    middle = ordered.shape[1] // 2
    found = ordered[:, middle] if ordered.shape[1] % 2 else (ordered[:, middle - 1] + ordered[:, middle]) / 2
    return np.where(np.isnan(ordered[:, -1]), np.nan, found)
