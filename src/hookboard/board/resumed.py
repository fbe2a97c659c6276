"""`joined`: the health records of a fit and of those that resumed it, as one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from hookboard.base.records import HealthRecord


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

    The verdicts of the later fit come first; what a verdict of the earlier one says was true of that fit. One that
    lasted until the later fit, and that it gives again, is one: it began when that of the earlier fit did.
    """
    begin = min(later.steps)
    steps = tuple(step for step in earlier.steps if step < begin)
    verdicts, places = list(later.verdicts), dict[int, int]()
    again = {(one["rule"], one["module"]): place for place, one in enumerate(verdicts)}
    for place, one in enumerate(earlier.verdicts):
        since, until = one["since"] or 0, one["until"]
        lasts = until is None or until >= begin
        here = again.get((one["rule"], one["module"]))
        if here is not None and lasts:
            verdicts[here] = {**verdicts[here], "since": since}
        elif since < begin:
            places[place] = len(verdicts)
            verdicts.append({**one, "until": max(since, steps[-1]) if lasts else until})
    cards, texts = list(later.cards), list(later.texts)
    for i, card in enumerate(earlier.cards):
        groups = [[places[place] for place in group if place in places] for group in (card["alike"], *card["effects"])]
        alike, *effects = [group for group in groups if group] or [[]]
        if alike:
            cards.append({"alike": alike, "effects": effects})
            texts += earlier.texts[i : i + 1]
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
        cards=tuple(cards),
        shows=later.shows or earlier.shows,
        texts=tuple(texts),
    )


def _values(record: HealthRecord, quantity: str, layers: Sequence[str], steps: Sequence[int]) -> np.ndarray:
    """Return the values of a quantity for these layers and steps of the record; NaN where it has none."""
    rows, columns = {name: row for row, name in enumerate(layers)}, np.isin(record.steps, steps)
    values = np.full((len(layers), len(steps)), np.nan, np.float32)
    if quantity in record.values:
        values[[rows[name] for name in record.layers]] = record.values[quantity][:, columns]
    return values
