"""AutoTrainer (Zhang et al., ICSE 2021; repository `shiningrain/AUTOTRAINER`), with its default parameters.

It looks every third epoch. Gradients that vanish (norm of the first weight's gradient over the last's below 1e-3, and
itself below 1e-4), explode (ratio above 70) or are 70 % zeros count only where accuracy is bad: below 0.7 or without a
gain of 0.01 in any epoch, judged after 30 % of the epochs. NaN counts at once. Else an accuracy that swings by 0.03 in
20 % of the epochs is an unstable training.
"""

import math
from itertools import pairwise

from benchmarks.health.alarms import Alarm
from benchmarks.health.published.seen import LOOKS_PER_EPOCH, alarm, has_nonfinite, l2, matrices, of_role
from benchmarks.health.trace import Trace

from hookboard.health.look import Look

VANISHING_RATIO, VANISHING_NORM, EXPLODING_RATIO = 1e-3, 1e-4, 70
ZEROS, GOOD, GAIN, SWING, SWINGS = 0.7, 0.7, 0.01, 0.03, 0.2


def autotrainer(trace: Trace) -> list[Alarm]:
    length = LOOKS_PER_EPOCH * trace.every
    epochs = len(trace.losses) // length
    counts = {"vanish": 0, "explode": 0, "relu": 0}
    for epoch in range(0, epochs, 3):
        end = (epoch + 1) * length
        look = next((look for look in trace.looks if look.step >= end - 1), trace.looks[-1])
        if _is_nan(trace, look, end):
            return [alarm("explode (NaN)", "", look.step, "nonfinite exploding_gradient")]
        for issue in _gradients(trace, look):
            counts[issue] += 1
        if not trace.accuracies:
            continue
        accuracies = [_mean(trace.accuracies[i * length : (i + 1) * length]) for i in range(epoch + 1)]
        held_out = [accuracy for step, _, accuracy in trace.held_out if step <= end] or accuracies
        if epoch + 1 < 0.3 * epochs:
            continue
        slow = _best_gain(accuracies) < GAIN and _best_gain(held_out) < GAIN
        if slow or max(accuracies) < GOOD or max(held_out) < GOOD:
            if counts["relu"]:
                return [alarm("dying ReLU", "", look.step, "dead_units")]
            if counts["explode"]:
                return [alarm("explode", "", look.step, "exploding_gradient")]
            if counts["vanish"]:
                return [alarm("vanish", "", look.step, "vanishing_gradient no_gradient")]
            if slow:
                return [alarm("slow convergence", "", look.step, "update_too_small not_learning not_updated")]
        elif _swings(accuracies):
            return [alarm("oscillating", "", look.step, "update_too_large spike")]
    return []


def _is_nan(trace: Trace, look: Look, end: int) -> bool:
    losses = [*trace.losses[:end], *(loss for step, loss, _ in trace.held_out if step <= end)]
    weights = any(has_nonfinite(r) for role in ("parameter_before", "parameter_grad") for _, r in of_role(look, role))
    return weights or any(not math.isfinite(loss) for loss in losses) or losses[-1] >= 1e5


def _gradients(trace: Trace, look: Look) -> list[str]:
    """The issues of the gradients of weights."""
    readings = [r for _, name in matrices(trace.layers) if (r := look.of(name, "parameter_grad")) is not None]
    if not readings:
        return []
    first, last = l2(readings[0]), l2(readings[-1])
    ratio = first / last if last else math.inf if first else math.nan
    zeros, count = (sum(getattr(r.moments, name) for r in readings) for name in ("zeros", "count"))
    issues = {
        "vanish": ratio < VANISHING_RATIO and first < VANISHING_NORM,
        "explode": ratio > EXPLODING_RATIO,
        "relu": count > 0 and zeros / count >= ZEROS,
    }
    return [name for name, there in issues.items() if there]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _best_gain(values: list[float]) -> float:
    return max((after - before for before, after in pairwise(values)), default=0.0)


def _swings(values: list[float]) -> bool:
    inner = list(zip(values, values[1:], values[2:], strict=False))
    highs = [b for a, b, c in inner if b >= a and b >= c]
    lows = [b for a, b, c in inner if b <= a and b <= c]
    count = sum(high - low >= SWING for high, low in zip(highs, lows, strict=False))
    return count >= SWINGS * len(values)
