"""Which symptom follows from which: a verdict that another one explains is no alarm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hookboard.health.run import Run
from hookboard.health.verdict import Verdict

Where = Literal["anywhere", "same", "before", "behind"]


@dataclass(frozen=True)
class Cause:
    """A rule whose fault brings the symptoms of others.

    Args:
        rule: the rule that names the cause.
        effects: the rules whose symptoms it explains.
        where: in which layers: in the `same` one, in those that run `before` it or `behind` it (both include the
            same one), or `anywhere`.
    """

    rule: str
    effects: tuple[str, ...]
    where: Where


CAUSES: tuple[Cause, ...] = ()
"""From what explains most to what explains least."""


def explained(verdicts: Sequence[Verdict], run: Run) -> dict[Verdict, Verdict]:
    """For each verdict that another one explains: that other one.

    A cause is not later than its effect, apart from what a window leaves open.
    """
    found: dict[Verdict, Verdict] = {}
    for cause in CAUSES:
        for one in [verdict for verdict in verdicts if verdict.rule == cause.rule and verdict not in found]:
            for other in [verdict for verdict in verdicts if verdict.rule in cause.effects and verdict not in found]:
                if other is not one and _is_there(run, one, other, cause.where):
                    found[other] = one
    return found


def _is_there(run: Run, one: Verdict, other: Verdict, where: Where) -> bool:
    if where == "anywhere" or not one.module:
        return True
    at, place = run.place(one.module), run.place(other.module)
    return {"same": place == at, "before": place <= at, "behind": place >= at}[where]
