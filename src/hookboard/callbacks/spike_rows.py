"""`SpikeRows`: the rows of the batch with the largest loss, at a step that may be a spike."""

import math
from collections import deque
from typing import Any

from torch import Tensor

from hookboard.health import SPIKE_HISTORY_STEPS, WorstRows, median
from hookboard.tracing import row_counts_of, worst_rows_of


class SpikeRows:
    """Finds the rows of the batch with the largest loss while their graph is there; the rule judges it only later."""

    def __init__(self) -> None:
        self._batch: Any = None
        self._losses: deque[float] = deque(maxlen=SPIKE_HISTORY_STEPS)

    def begin_batch(self, batch: Any) -> None:
        """Keep the batch that comes next until `end_batch`: most are never looked at."""
        self._batch = batch

    def end_batch(self) -> None:
        """Drop the batch."""
        self._batch = None

    def see(self, loss: Tensor, value: float) -> WorstRows | None:
        """Return the rows if this may be a spike: none of the last losses was as high."""
        may_be = len(self._losses) >= SPIKE_HISTORY_STEPS // 4 and value > max(0.0, *self._losses)
        usual = median(self._losses) if may_be else 0.0
        self._losses.extend([value] if math.isfinite(value) else [])
        return worst_rows_of(loss, row_counts_of(self._batch), 1 - usual / value) if may_be else None
