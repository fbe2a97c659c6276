"""`LossCurve`: the loss of every step, in memory that does not grow with the run, and whether it shows harm."""

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from hookboard.health.look import Loss

FIRST = 32
"""How many of the first losses are kept."""

RECENT = 1024
"""How many of the last losses are kept."""


class LossCurve:
    """The losses of a run."""

    def __init__(self) -> None:
        self.first: list[Loss] = []
        self.recent: deque[Loss] = deque(maxlen=RECENT)
        self.steps = 0
        self.best = math.inf

    def extend(self, losses: Iterable[Loss]) -> None:
        """Add the losses of some more steps, in their order."""
        for loss in losses:
            if len(self.first) < FIRST:
                self.first.append(loss)
            self.recent.append(loss)
            self.steps += 1
            if self.steps % 8 == 0:
                self.best = min(self.best, self.level(8))

    def last(self, count: int) -> np.ndarray:
        """The values of the last steps, at most `count`, float64."""
        kept = list(self.recent)[-count:] if count else []
        return np.array([loss.value for loss in kept], dtype=np.float64)

    def level(self, count: int = 16) -> float:
        """The median of the last losses; NaN if there is none."""
        last = self.last(count)
        return float(np.median(last)) if len(last) else math.nan

    @property
    def start(self) -> float:
        """The median of the first few losses; NaN if there is none."""
        return float(np.median([loss.value for loss in self.first[:4]])) if self.first else math.nan
