"""`folded_verdicts`: what is said alike of several layers is said once, with the list of the others."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hookboard.health.rule import Verdict
from hookboard.patterns import folded

FOLDED_LAYERS_MIN = 3
"""Number of layers from which verdicts of one rule with the same advice are shown as one (a choice)."""


def folded_verdicts(verdicts: Sequence[Verdict], layers: Iterable[str]) -> list[Verdict]:
    """Show verdicts of one rule on several layers, with the same advice, as the first of them, which lists the others.

    Args:
        verdicts: worst first.
        layers: the names of all layers.

    >>> several = [Verdict("note", "odd", f"net.{i}", 0, None, f"It gave {i}.", "Look.") for i in range(4)]
    >>> [(one.module, one.evidence) for one in folded_verdicts(several, [])]
    [('net.0', 'It gave 0. The same rule and advice hold for 4 layers: net.* (4).')]
    """
    groups: dict[object, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(_alike(verdict), []).append(verdict)
    among, shown = list(layers), []
    for verdict in verdicts:
        group = groups[_alike(verdict)]
        names = {one.module for one in group}
        if len(names) < FOLDED_LAYERS_MIN:
            shown.append(verdict)
        elif verdict is group[0]:
            shown.append(_first_of(group, among))
    return shown


def _alike(verdict: Verdict) -> object:
    """Return what verdicts that are shown as one have in common: apart from numbers and the layer, all but evidence."""
    if not verdict.module:
        return verdict
    advice = re.sub(r"[\d.]+", "", verdict.advice.replace(verdict.module, ""))
    return verdict.severity, verdict.rule, verdict.until is None, verdict.batch_idx, advice


def _first_of(group: Sequence[Verdict], among: Sequence[str]) -> Verdict:
    names = list(dict.fromkeys(one.module for one in group))
    more = f"The same rule and advice hold for {len(names)} layers: {folded(names, among)}."
    return replace(group[0], evidence=f"{group[0].evidence.rstrip('.')}. {more}")
