"""Whether a plant did harm: only then, or where it is a defect by itself, does it count."""

import math
import statistics
from collections.abc import Iterable, Sequence

from benchmarks.health.trace import Trace

MARGIN = 0.1
"""How much worse the loss must be, as a share of what the healthy base has learnt."""

LAST = 20
"""The level of the loss is the median of so many last steps."""


def training_level(trace: Trace) -> float:
    """The loss at the end; infinite if it is not finite or the training failed."""
    last = trace.losses[-LAST:]
    return _finite(statistics.median(last)) if last and not trace.failure else math.inf


def held_out_level(trace: Trace) -> float:
    """The loss of the last validation; infinite if it is not finite or there is none."""
    return _finite(trace.held_out[-1][1]) if trace.held_out else math.inf


def did_harm(planted: Iterable[Trace], healthy: Sequence[Trace]) -> bool:
    """Whether each seed of a plant ended above all healthy seeds of its base, by a clear margin.

    It may do so in training or in validation. The margin is a tenth of what the healthy base has learnt, from the
    median of its first losses to the median of its last.
    """
    planted = list(planted)
    start = statistics.median(trace.losses[0] for trace in healthy)
    for level in (training_level, held_out_level):
        levels = [level(trace) for trace in healthy]
        bound = max(levels) + MARGIN * (start - statistics.median(levels))
        if all(level(trace) > bound for trace in planted):
            return True
    return False


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
