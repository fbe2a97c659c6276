"""`joined`: the health records of a fit and of those that resumed it, as one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import itemgetter
from typing import Any

import numpy as np

from hookboard.base.records import HealthRecord

Verdict = Mapping[str, Any]

Card = tuple[list[list[Verdict]], str]
"""The verdicts of a card, first those that are alike, then the effects by rule; and its text."""


def joined(records: Iterable[object]) -> HealthRecord | None:
    """Join the health records among these, which are in the order in which they were written; None without one."""
    parts: list[HealthRecord] = []
    for record in records:
        if isinstance(record, HealthRecord):
            begin = min(record.steps, default=0)
            parts = [*(part for part in parts if min(part.steps, default=begin) < begin), record]
    return reduce(_joined, parts) if parts else None


def _joined(earlier: HealthRecord, later: HealthRecord) -> HealthRecord:
    """Join the record of a fit with that of the fit that resumed it, which alone counts from its first step on.

    A verdict that lasted until then and is given again is one, since the first time; one that is not given again ends.
    """
    begin = min(later.steps)
    steps = tuple(step for step in earlier.steps if step < begin)
    given = {(one["rule"], one["module"]) for one in later.verdicts}
    before, lasting = dict[int, Verdict](), dict[tuple[str, str], Verdict]()
    for place, one in enumerate(earlier.verdicts):
        key, since = (one["rule"], one["module"]), one["since"] or 0
        lasts = one["until"] is None or one["until"] >= begin
        if since < begin and lasts and key in given:
            lasting.setdefault(key, {name: one[name] for name in ("since", "batch_idx", "rows")})
        elif since < begin:
            before[place] = _changed(one, {"until": max(since, steps[-1])} if lasts else {})
    after = [_changed(one, lasting.pop((one["rule"], one["module"]), {})) for one in later.verdicts]
    cards = [*_cards(earlier, before), *_cards(later, dict(enumerate(after)))]
    cards.sort(key=lambda card: card[0][0][0]["severity"])  # an alarm before a note
    verdicts = sorted((one for groups, _ in cards for group in groups for one in group), key=itemgetter("severity"))
    places = {id(one): place for place, one in enumerate(verdicts)}
    indices = [[[places[id(one)] for one in group] for group in groups] for groups, _ in cards]
    layers = tuple(dict.fromkeys([*earlier.layers, *later.layers]))
    return replace(
        later,
        headline=f"{earlier.headline} {later.headline}",
        verdicts=tuple(verdicts),
        layers=layers,
        steps=steps + later.steps,
        values={
            name: np.hstack([_values(earlier, name, layers, steps), _values(later, name, layers, later.steps)])
            for name in {**earlier.values, **later.values}
        },
        cards=tuple({"alike": alike, "effects": effects} for alike, *effects in indices),
        shows=earlier.shows if verdicts and verdicts[0] is before.get(0) else later.shows,
        texts=tuple(text for _, text in cards),
    )


def _changed(verdict: Verdict, changes: Verdict) -> Verdict:
    changed = {**verdict, **changes}
    return {**changed, "evidence": _dated(verdict["evidence"], verdict, changed)}


def _dated(text: str, verdict: Verdict, changed: Verdict) -> str:
    """Replace when a verdict held, where a text says so, by when the changed one did."""
    return re.sub(rf"\b{_when(verdict)}\b", _when(changed), text)


def _when(verdict: Verdict) -> str:
    since, until = verdict["since"], verdict["until"]
    return f"since step {since}" if until is None else f"from step {since} to {until}"


def _cards(record: HealthRecord, shown: Mapping[int, Verdict]) -> Iterable[Card]:
    """Yield the cards of a record with what is shown of its verdicts, by their places; leave out those without any."""
    for card, text in zip(record.cards, [*record.texts, *[""] * len(record.cards)], strict=False):
        groups = [[shown[place] for place in group if place in shown] for group in (card["alike"], *card["effects"])]
        first = card["alike"][0]
        if found := [group for group in groups if group]:
            yield found, _dated(text, record.verdicts[first], shown.get(first, record.verdicts[first]))


def _values(record: HealthRecord, quantity: str, layers: Sequence[str], steps: Sequence[int]) -> np.ndarray:
    """Return the values of a quantity for these layers and steps of the record; NaN where it has none."""
    rows, columns = {name: row for row, name in enumerate(layers)}, np.isin(record.steps, steps)
    values = np.full((len(layers), len(steps)), np.nan, np.float32)
    if quantity in record.values:
        values[[rows[name] for name in record.layers]] = record.values[quantity][:, columns]
    return values
