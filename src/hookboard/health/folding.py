"""`cards_of`: which verdicts are shown as one: alike ones in several layers, with the verdicts that follow."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hookboard.health.rule import Verdict
from hookboard.model.patterns import folded

FOLDED_LAYERS_MIN = 3
"""Number of layers from which verdicts of one rule with the same advice are shown as one (a choice)."""


@dataclass(frozen=True)
class Card:
    """Verdicts that are shown as one, as indices into the list of all verdicts.

    Args:
        alike: verdicts that are alike, see `_alike`, worst first; the first stands for all of them.
        effects: the verdicts that follow from any of these: one tuple for each rule.
    """

    alike: tuple[int, ...]
    effects: tuple[tuple[int, ...], ...] = ()


def cards_of(verdicts: Sequence[Verdict]) -> list[Card]:
    """Return the cards of some verdicts, in the order of their first ones; each verdict is on one card.

    Verdicts that are alike (`_alike`) share a card if they are of FOLDED_LAYERS_MIN layers or more. A verdict that
    follows from another one is on the card of that one, which follows from nothing.

    >>> several = [Verdict("note", "odd", f"net.{i}", 0, None, f"It gave {i}.", "Look.") for i in range(4)]
    >>> effect = Verdict("note", "late", "head", 0, None, "It is late.", "Wait.", follows_from=("odd", "net.2"))
    >>> cards_of([*several, effect])
    [Card(alike=(0, 1, 2, 3), effects=((4,),))]
    """
    places: dict[tuple[str, str] | None, int] = {}
    for place, verdict in enumerate(verdicts):
        places.setdefault((verdict.rule, verdict.module), place)
    following: dict[int, list[int]] = {}
    for place, verdict in enumerate(verdicts):
        root = places.get(verdict.follows_from, place)
        following.setdefault(root, [])
        if root != place:
            following[root].append(place)
    groups: dict[object, list[int]] = {}
    for root in following:
        groups.setdefault(_alike(verdicts[root], root), []).append(root)
    cards = []
    for group in groups.values():
        layers = {verdicts[root].module for root in group}
        for alike in [group] if len(layers) >= FOLDED_LAYERS_MIN else [[root] for root in group]:
            effects: dict[str, list[int]] = {}
            for place in sorted(place for root in alike for place in following[root]):
                effects.setdefault(verdicts[place].rule, []).append(place)
            cards.append(Card(tuple(alike), tuple(map(tuple, effects.values()))))
    return sorted(cards, key=lambda card: card.alike)


def folded_verdicts(verdicts: Sequence[Verdict], layers: Iterable[str]) -> list[Verdict]:
    """Return one verdict for each card: its first one, with the layers of the others and the effects in its evidence.

    >>> several = [Verdict("note", "odd", f"net.{i}", 0, None, f"It gave {i}.", "Look.") for i in range(4)]
    >>> [(one.module, one.evidence) for one in folded_verdicts(several, [])]
    [('net.0', 'It gave 0. The same rule and advice apply to 4 layers: net.* (4).')]
    """
    among = list(layers)
    return [_told(card, verdicts, among) for card in cards_of(verdicts)]


def _alike(verdict: Verdict, place: int) -> object:
    """Return a key that is equal for verdicts that differ only in their layer and in the numbers of their advice."""
    if not verdict.module:
        return place
    advice = re.sub(rf"(?<!\w){re.escape(verdict.module)}(?!\w)|[\d.]+", "", verdict.advice)
    return verdict.severity, verdict.rule, verdict.until is None, verdict.batch_idx, advice


def _told(card: Card, verdicts: Sequence[Verdict], among: Sequence[str]) -> Verdict:
    first = verdicts[card.alike[0]]
    said = [first.evidence]
    if len(card.alike) > 1:
        names = _layers([verdicts[place] for place in card.alike], among)
        said.append(f"The same rule and advice apply to {len(names)} layers: {folded(names, among)}")
    if card.effects:
        groups = [[verdicts[place] for place in effects] for effects in card.effects]
        said.append(f"Downstream effects: {'; '.join(_in_layers(group, among) for group in groups)}")
    return first if len(said) == 1 else replace(first, evidence=". ".join(one.rstrip(".") for one in said) + ".")


def _in_layers(group: Sequence[Verdict], among: Sequence[str]) -> str:
    names = _layers(group, among)
    return f"{group[0].rule} in {folded(names, among)}" if names else group[0].rule


def _layers(group: Sequence[Verdict], among: Sequence[str]) -> list[str]:
    """Return the names of the layers of some verdicts, each once: those in `among` first, in its order."""
    names = dict.fromkeys(one.module for one in group if one.module)
    known = [name for name in among if name in names]
    return list(dict.fromkeys([*known, *names]))
