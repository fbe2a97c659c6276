"""Whether a plant did harm: only then, or where it is a defect by itself, does it count."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.health.cases import Case
from benchmarks.health.trace import Head

MARGIN = 0.1
"""How much worse the loss must be, as a share of what the healthy base has learnt."""


def did_harm(planted: Sequence[Head], healthy: Sequence[Head]) -> bool:
    """Whether each seed of a plant ended above all healthy seeds of its base, by a clear margin.

    It may do so in training or in validation. The margin is a tenth of what the healthy base has learnt, from the
    median of its first losses to the median of its last.
    """
    start = statistics.median(head.start for head in healthy)
    for level in ("training", "held_out"):
        levels = [getattr(head, level) for head in healthy]
        bound = max(levels) + MARGIN * (start - statistics.median(levels))
        if all(getattr(head, level) > bound for head in planted):
            return True
    return False


def harmless(heads: Mapping[Case, Head]) -> set[tuple[str, str]]:
    """Name and base of the plants that did no harm and are no defect by themselves: they are controls."""
    pairs: dict[tuple[str, str], list[Head]] = {}
    for case, head in heads.items():
        if case.kind == "plant" and not head.by_itself:
            pairs.setdefault((case.name, case.base), []).append(head)
    healthy = {base: [h for c, h in heads.items() if c.kind == "base" and c.base == base] for _, base in pairs}
    return {pair for pair, planted in pairs.items() if healthy[pair[1]] and not did_harm(planted, healthy[pair[1]])}
