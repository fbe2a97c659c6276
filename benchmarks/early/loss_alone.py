"""How early the loss of every step warns, without a look at any layer: `python -m benchmarks.early --loss`.

A smoothed loss has risen when the median of the last losses lies above the median of those before it by some standard
errors, and above each of their medians over as many steps.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from benchmarks.document import table

BEFORE = 64
"""Number of losses that the last ones are compared with."""

SMOOTHED = (4, 8, 16)
"""Numbers of last losses; each divides `BEFORE`."""

ERRORS = (4, 6, 8, 12)
"""By how many standard errors the median must have risen."""


def has_risen(losses: Sequence[float], smoothed: int, errors: float) -> bool:
    """Return True if the smoothed loss has risen at the last of these losses; False if there are too few.

    >>> has_risen([1.0, 1.1] * 32 + [1.0] * 4, 4, 6.0), has_risen([1.0, 1.1] * 32 + [2.0] * 4, 4, 6.0)
    (False, True)
    """
    values = np.array(losses[-BEFORE - smoothed :], dtype=np.float64)
    if len(values) < BEFORE + smoothed or not np.isfinite(values).all():
        return False
    before, last = values[:BEFORE], float(np.median(values[BEFORE:]))
    usual = float(np.median(before))
    # 1.4826 makes a standard deviation of the median deviation, 1.25 of a mean's error that of a median.
    error = 1.25 * 1.4826 * float(np.median(np.abs(before - usual))) / math.sqrt(smoothed)
    highest = float(np.median(before.reshape(-1, smoothed), axis=1).max())
    return last > max(usual + errors * error, highest)


def loss_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table: for each way to judge the loss, how many of the programs it warns of.

    Args:
        found: for each program its kind, the step at which its loss has doubled, and its losses.
    """
    rows = []
    for smoothed in SMOOTHED:
        for errors in ERRORS:
            in_time = noisy = 0
            for one in found:
                losses = one["losses"]
                first = next((at for at in range(len(losses)) if has_risen(losses[: at + 1], smoothed, errors)), None)
                noisy += one["kind"] == "healthy" and first is not None
                in_time += one["kind"] != "healthy" and first is not None and first < one["doubles"]
            rows.append([str(smoothed), str(errors), str(in_time), str(noisy)])
    yield from table("last losses | standard errors | in time | noisy ones", rows)
