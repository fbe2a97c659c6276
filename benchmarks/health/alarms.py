"""`Alarm`: what any judge says of a run, hookboard's or another tool's, in one form; and how good it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.health.cases import Truth


@dataclass(frozen=True)
class Alarm:
    """One alarm.

    Args:
        says: the judge's own name of it.
        module: the dotted name of the layer, "" for the whole model.
        since: the step.
        means: the names of hookboard's rules that say the same.
    """

    says: str
    module: str
    since: int
    means: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Score:
    """How right the first alarm of a run is.

    Args:
        found: whether there is an alarm at all.
        located: whether it names a right place, or one call beside it.
        onset: whether it says since when, to two windows.
        cause: whether it means a right rule.
    """

    found: bool
    located: bool = False
    onset: bool = False
    cause: bool = False


def score(alarms: Sequence[Alarm], truth: Truth, order: Sequence[str], slack: int) -> Score:
    """Score the first alarm.

    Args:
        alarms: what was said, the most important first.
        truth: what is true.
        order: the layers in the order in which they run.
        slack: how many steps the onset may be wrong.
    """
    if not alarms:
        return Score(False)
    first = alarms[0]
    begins, ends = truth.onset
    return Score(
        found=True,
        located=_is_near(first.module, truth.places, order),
        onset=begins - slack <= first.since <= ends + slack,
        cause=bool(first.means & truth.causes),
    )


def _is_near(module: str, places: frozenset[str], order: Sequence[str]) -> bool:
    """Whether a module is one of these places, or runs right before or behind one."""
    if module in places:
        return True
    if module not in order:
        return False
    place = order.index(module)
    return any(abs(order.index(other) - place) == 1 for other in places if other in order)
