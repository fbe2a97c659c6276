"""Names the smallest set of circumstances in which a fault still shows."""

import time
from collections.abc import Callable, Sequence

from combinations.circumstances import AXES

Judge = Callable[[Sequence[str]], list[str]]

smallest: list[tuple[frozenset[str], str]] = []
"""Sets that were found to fail in this process, with the kind of their fault."""


def kinds(found: Sequence[str]) -> set[str]:
    """The kinds of faults: what stands before the colon."""
    return {fault.partition(":")[0] for fault in found}


left_to_spend = [120.0]
"""Seconds that this process may still spend on it: where everything fails, the first sets say enough."""


def shrunk(names: Sequence[str], found: Sequence[str], judge: Judge) -> list[str]:
    """The circumstances without those that can be left out, one after another, while a fault of the same kind shows.

    One of our callbacks has to stay: without it there is no fault.
    """
    start = time.monotonic()
    until = start + min(30.0, left_to_spend[0])
    wanted, left = kinds(found), list(names)
    for known, kind in smallest:
        if known <= set(left) and kind in wanted:
            return sorted(known)
    for name in names:
        without = [other for other in left if other != name]
        is_ours = name in AXES["ours"]
        if not is_ours and time.monotonic() < until and wanted <= kinds(judge(without)):
            left = without
    left_to_spend[0] -= time.monotonic() - start
    smallest.extend((frozenset(left), kind) for kind in wanted)
    return left
