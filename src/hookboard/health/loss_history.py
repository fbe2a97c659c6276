"""`LossHistory`: the loss of every step, in memory that does not grow with the run."""

import itertools
import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from hookboard.health.look import Loss
from hookboard.health.spikes import SPIKE_HISTORY, Spike, first_spike, median

FIRST = 32
"""How many of the first losses are kept."""

STARTS = 4
"""The median of this many of them is the start (a choice)."""

RECENT = 1024
"""How many of the last losses are kept."""

SPREADS = 8
"""For how many looks the spread of the last layer's outputs is kept."""

BLOCK = 8
"""The loss is smoothed by medians of this many steps: one or two wild batches do not move them."""

BLOCKS = 256
"""For how many blocks the noise is kept. When they are full, every second one is dropped."""

SPIKES = 16
"""How many of the last spikes are kept."""


class LossHistory:
    """The losses of a run, as they came."""

    def __init__(self) -> None:
        self.first: list[Loss] = []
        self.recent: deque[Loss] = deque(maxlen=RECENT)
        self.steps = 0
        self.largest = -math.inf
        """The largest finite loss."""
        self.lowest = math.inf
        """The smallest finite loss."""
        self.best = math.inf
        """The lowest median of `BLOCK` losses; inf before there is one."""
        self.chance: float | None = None
        """The loss of a classifier that knows nothing: the logarithm of the number of its outputs. None: not known."""
        self.spreads: deque[float] = deque(maxlen=SPREADS)
        """How much the last layer's outputs differed between samples at the latest looks (RMS over channels)."""
        self.first_spread = math.nan
        """The same at the first look; NaN if not known."""
        self.reach: float | None = None
        """How far apart the model's first answers lie: its largest output less its smallest. None: not known."""
        self.first_nonfinite: Loss | None = None
        """The first loss that was NaN or infinite."""
        self.is_mixed = False
        """Whether there are several losses: for one batch, or of optimizers that step in turns."""
        self.spikes: deque[Spike] = deque(maxlen=SPIKES)
        """The last spikes; of neighbouring steps only the first."""
        self.reached_chance: int | None = None
        """After how many steps the last `BLOCK` losses lay at or below chance; None: not yet, or not known."""
        self.start = math.nan
        """The median of the first few losses; NaN if there is none."""
        self.noise = math.nan
        """The deviation from step to step, the median over blocks; NaN if there were too few steps."""
        self._paired = False
        self._noise: list[float] = []
        self._every = 1

    def extend(self, losses: Iterable[Loss]) -> None:
        """Add the losses of some more steps, in their order."""
        losses = list(losses)
        spike = first_spike(losses, self.last(SPIKE_HISTORY))
        if spike is not None:
            self.spikes.append(spike)
        for loss in losses:
            self.is_mixed = self.is_mixed or loss.backwards > 1
            self._note_pairs(loss)
            if len(self.first) < FIRST:
                self.first.append(loss)
                self.start = median([loss.value for loss in self.first[:STARTS]])
            self.recent.append(loss)
            self.steps += 1
            if math.isfinite(loss.value):
                self.largest = max(self.largest, loss.value)
                self.lowest = min(self.lowest, loss.value)
            if self.first_nonfinite is None and not math.isfinite(loss.value):
                self.first_nonfinite = loss
            if self.reached_chance is None and self.chance is not None and self.level(BLOCK) <= self.chance:
                self.reached_chance = self.steps
            if self.steps % BLOCK == 0:
                self._close_block()

    def last(self, count: int) -> np.ndarray:
        """The values of the last steps, at most `count`, float64."""
        newest = [loss.value for loss in itertools.islice(reversed(self.recent), count)]
        return np.array(newest[::-1], dtype=np.float64)

    def level(self, count: int = 16) -> float:
        """The median of the last losses; NaN if there is none."""
        return median(self.last(count))

    def _note_pairs(self, loss: Loss) -> None:
        """Several losses of one batch, and then another batch: not the same as one batch in each epoch."""
        if self.recent:
            is_same = self.recent[-1].batch_idx == loss.batch_idx
            self.is_mixed = self.is_mixed or (self._paired and not is_same)
            self._paired = is_same

    def _close_block(self) -> None:
        last = self.last(BLOCK)
        if not np.isfinite(last).all():
            return
        self.best = min(self.best, median(last))
        if self.steps // BLOCK % self._every == 0:
            self._noise.append(float(np.std(np.diff(last)) / math.sqrt(2)))
        if len(self._noise) > BLOCKS:
            self._noise, self._every = self._noise[::2], 2 * self._every
        self.noise = median(self._noise)
