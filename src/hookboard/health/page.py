"""What is shown of a run: `Page` makes a table, four heat maps, 17 scalars, and the record for the tab."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from hookboard.base.messages import warn_switched_off
from hookboard.base.records import HEALTH, LOSS, HealthRecord
from hookboard.health.arrays import QUANTITIES, SPOILED
from hookboard.health.report import cards_of, caveat, coverage, folded_verdicts, headline, left_out
from hookboard.health.robust import median, percentiles
from hookboard.health.rule import Severity, Verdict
from hookboard.health.run import Run
from hookboard.images.heat_map import Mark, heat_map
from hookboard.images.picture import ColourScale, Picture
from hookboard.writers.entry import Entry, TextTable, escaped, markdown

VERDICT = "health/verdict"  # the tag of the table

PICTURE_GROWTH_FACTOR = 1.5
"""Pictures, each of the whole run, are drawn again at this many times the looks: their cost per look stays the same."""

RECORD_GROWTH_FACTOR = 1.2
"""Records are written at this many times the looks: they cost less, and somebody may follow the run in the tab."""

PROMPT_RECORDS_MAX = 32
"""Most records written at once for a new verdict, as each holds the whole run; later ones wait until one is due."""

VerdictKey = tuple[str, str, str, bool]  # what `key_of` returns

_UNITS = {"activation_rms": "RMS", "gradient_rms": "RMS", "update_ratio": "ratio", "dead_fraction": "share"}

CHARTED = {
    "activation_rms": "RMS of activations",
    "gradient_rms": "RMS of gradients",
    "update_ratio": "update-to-weight ratio",
    "dead_fraction": "fraction of dead units",
}
"""Quantity -> its name in charts and heat maps."""

PERCENTILES = {"p10": 10, "median": 50, "p90": 90}


class Page:
    """Makes the `Entry` to write after each look, with 22 tags and one of records whatever the number of layers."""

    def __init__(self, every_n_steps: int | None = None, look_at: Mapping[str, str] | None = None) -> None:
        self.every_n_steps = every_n_steps
        self._look_at = look_at or {}
        # After how many looks each was written last, and of which verdicts.
        self._told_at = self._drawn_at = self._recorded_at = 0
        self._told: list[VerdictKey] | None = None
        self._recorded: set[VerdictKey] = set()
        self._news = 0  # how many records were written because of a verdict
        self._is_recording = True

    def entry(self, run: Run, verdicts: Sequence[Verdict], is_over: bool = False) -> Entry:
        """Return what is due after a look, or when the fit is over. Call it once for each."""
        entry = Entry(run.now.step, scalars={} if is_over else scalars(run, verdicts))
        seen, keys = run.seen, list(map(key_of, verdicts))
        is_new = keys != self._told
        has_grown = seen >= max(2, PICTURE_GROWTH_FACTOR * self._drawn_at)
        if is_new or has_grown or (is_over and self._told_at < seen):
            self._told, self._told_at = keys, seen
            entry.tables[VERDICT] = table_of(run, verdicts, self.every_n_steps, self._look_at)
        # Many layers may fall ill one after the other; not each of them is worth pictures.
        is_news = is_new and verdicts and seen > self._drawn_at + run.window
        if has_grown or is_news or (is_over and self._drawn_at < seen):
            self._drawn_at = seen
            entry.pictures.update(pictures(run, verdicts))
        is_news = seen > self._recorded_at + run.window and not self._recorded.issuperset(keys)
        is_news = is_news and self._news < PROMPT_RECORDS_MAX
        self._news += is_news
        if is_over or is_news or seen >= max(self._recorded_at + 1, RECORD_GROWTH_FACTOR * self._recorded_at):
            self._record(entry, run, verdicts, is_over)
        return entry

    def _record(self, entry: Entry, run: Run, verdicts: Sequence[Verdict], is_over: bool) -> None:
        self._recorded_at = run.seen
        self._recorded.update(map(key_of, verdicts))
        if not self._is_recording:
            return
        try:
            values = {quantity: values_of(run, quantity) for quantity in QUANTITIES}
            record = HealthRecord(
                self.every_n_steps or 1,
                " ".join(filter(None, [headline(run, verdicts), caveat(verdicts)])),
                tuple(asdict(verdict.in_sentences()) for verdict in verdicts),
                run.arrays.names,
                tuple(run.course_steps),
                {quantity: course for quantity, course in values.items() if not np.isnan(course).all()},
                tuple(asdict(card) for card in cards_of(verdicts)),
                seen_in(self._look_at.get(verdicts[0].rule, "")) if verdicts else "",
                tuple(map(str, folded_verdicts(verdicts, run.arrays.names))),
                is_over,
            )
            # The record of a resumed fit does not replace the one of the steps before.
            first = run.first.step if run.first else 0
            entry.records[f"{HEALTH}/{first}" if first else HEALTH] = record.strings()
        except Exception as error:  # only the tab lacks it; the page is still written
            self._is_recording = False
            warn_switched_off("the health record for the TensorBoard tab", error)


def scalars(run: Run, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the loss, and for each charted quantity percentiles over the layers, and the worst, at the latest look."""
    found = dict[str, float]((LOSS, loss.value) for loss in run.now.losses if loss.step == run.now.step)
    for quantity in CHARTED:
        layer = worst(quantity, run, verdicts)
        if layer is not None:
            values = run.recent(quantity)[:, -1]
            shown = percentiles(sorted(values[np.isfinite(values)].tolist()), PERCENTILES.values())
            found |= {f"health/{quantity}/{name}": value for name, value in zip(PERCENTILES, shown, strict=True)}
            found[f"health/{quantity}/worst"] = layer[1]
    return found


def worst(quantity: str, run: Run, verdicts: Sequence[Verdict]) -> tuple[str, float] | None:
    """Return name and value of the worst layer in a quantity at the latest look; None if none has a finite value."""
    values = run.recent(quantity)[:, -1]
    places = np.flatnonzero(np.isfinite(values))
    if not len(places):
        return None
    sizes = values[places]
    if quantity != "dead_fraction":
        # The layer of the first lasting verdict, of any rule; without one, the farthest from the median.
        for verdict in verdicts:
            place = run.place(verdict.module)
            if verdict.until is None and place in places:
                return verdict.module, float(values[place])
        logs = np.log10(np.maximum(sizes, np.finfo(np.float64).tiny))
        sizes = np.abs(logs - median(logs))
    place = int(places[np.argmax(sizes)])
    return run.layers[place].name, float(values[place])


def pictures(run: Run, verdicts: Sequence[Verdict]) -> dict[str, Picture]:
    """Return a heat map for each quantity that any layer has, by tag."""
    marks = marks_of(run, verdicts)
    drawn = {}
    for quantity, words in CHARTED.items():
        values = values_of(run, quantity)
        has_value = ~np.isnan(values).all(axis=1)
        marked = _on_dead_rows(marks, run, values) if quantity == "dead_fraction" else marks
        # A sick layer without a value, such as one that no gradient reaches, is what is to be seen.
        rows = [row for row, layer in enumerate(run.layers) if has_value[row] or layer.name in marked]
        if has_value.any():
            drawn[f"health/{quantity}"] = heat_map(
                values[rows],
                [run.layers[row].name for row in rows],
                run.course_steps,
                title=words[0].upper() + words[1:],
                unit=_UNITS[quantity],
                marks=marked,
                of=len(run.layers),
                scale=ColourScale(0.0, 1.0, is_log=False) if quantity == "dead_fraction" else None,
            )
    return drawn


def marks_of(run: Run, verdicts: Sequence[Verdict]) -> dict[str, Mark]:
    """Return the layers to mark in pictures, with the severity of their first verdict that counts."""
    marks: dict[str, Mark] = {}
    for verdict in verdicts:
        # Notes that are over do not count; a verdict on a container counts for the layers inside it.
        if verdict.module and (verdict.severity == "alarm" or verdict.until is None):
            inside = [name for name in run.arrays.names if name.startswith(f"{verdict.module}.")]
            for name in [verdict.module] if verdict.module in run.arrays.places else inside:
                marks.setdefault(name, verdict.severity)
    return marks


def _on_dead_rows(marks: Mapping[str, Mark], run: Run, values: np.ndarray) -> dict[str, Mark]:
    """Move the marks of layers without dead units to the first of the next two layers that has some: its activation."""
    shares = np.where(np.isfinite(values), values, 0.0).max(axis=1)
    moved: dict[str, Mark] = {}
    for name, mark in marks.items():
        place = run.place(name)
        following = next((i for i in range(place + 1, min(place + 3, len(shares))) if shares[i]), None)
        is_dead = shares[place] or np.isinf(values[place]).any()
        at = name if following is None or is_dead else run.layers[following].name
        moved[at] = "alarm" if "alarm" in (mark, moved.get(at)) else mark
    return moved


TABLE_ROWS_MAX = 50  # maximum number of verdicts in the table

SYMBOLS: dict[Severity, str] = {"alarm": "▲", "note": "△"}
"""Symbols that every browser shows: many servers lack coloured ones, and TensorBoard shows colours in no other way."""

CELL_WIDTH = 56
"""Most characters in a line of a cell: TensorBoard widens the column of the longest text, and breaks other words."""

NAME_WIDTH = 28  # maximum number of characters in a line of a layer's name

TABLE_COLUMNS = ("severity", "rule", "layer", "since", "until", "evidence", "advice", "look at")


def seen_in(look_at: str) -> str:
    """Return the quantity whose heat map belongs to a tag; "" if none does.

    >>> seen_in("health/dead_fraction"), seen_in("health/before_nonfinite")
    ('activation_rms', '')
    """
    # A layer is dead by the activation after it, which is another row; its own outputs show it better.
    quantity = look_at.removeprefix("health/").replace("dead_fraction", "activation_rms")
    return quantity if quantity in CHARTED else ""


def table_of(
    run: Run, verdicts: Sequence[Verdict], every_n_steps: int | None = None, look_at: Mapping[str, str] | None = None
) -> TextTable:
    """Return the table of verdicts, at most 50 rows, with headline, caveats and coverage as text around it."""
    shown_by = look_at or {}
    shown = folded_verdicts(verdicts, run.arrays.names)
    rest = len(shown) - TABLE_ROWS_MAX
    more = f"{rest} more verdicts are not shown. " if rest > 0 else ""
    rows = tuple(_row(verdict, shown_by.get(verdict.rule, "")) for verdict in verdicts[:TABLE_ROWS_MAX])
    if not verdicts:
        rows = ((headline(run, verdicts), *[""] * (len(TABLE_COLUMNS) - 1)),)  # for loggers that take rows alone
    cells = [_cells(verdict, shown_by.get(verdict.rule, "")) for verdict in shown[:TABLE_ROWS_MAX]]
    in_markdown = markdown(["verdict", "layer", "steps", "evidence, and what to try"], cells) if cells else ""
    seen = f"{more}{coverage(run, every_n_steps)}{_worst_layers(run, verdicts)}"
    last = " ".join(filter(None, [seen, escaped(left_out(run))]))
    text = "\n\n".join(filter(None, [headline(run, verdicts), caveat(verdicts), in_markdown, last]))
    return TextTable(TABLE_COLUMNS, rows, text)


def _cells(verdict: Verdict, tag: str) -> tuple[str, ...]:
    """Return a verdict's row of the table, four cells in Markdown (few, because TensorBoard's cards are narrow)."""
    verdict = verdict.in_sentences()
    symbol = f"{SYMBOLS[verdict.severity]} {verdict.severity}"
    strong = f"**{symbol}**" if verdict.severity == "alarm" else symbol
    steps = [f"{verdict.since} to", "now" if verdict.until is None else str(verdict.until)]
    if verdict.until == verdict.since:
        steps = [str(verdict.since)]
    if verdict.batch_idx is not None:
        steps.append(f"batch {verdict.batch_idx}")
    said = [_broken(verdict.evidence), f"**Try:** {_broken(verdict.advice)}", f"**See:** {tag}" if tag else ""]
    return (
        f"{strong}<br>{escaped(verdict.rule)}",
        "<br>".join(map(escaped, _name_in_lines(verdict.module or "the whole model"))),
        "<br>".join(steps),
        "<br>".join(filter(None, said)),
    )


def _broken(text: str) -> str:
    return "<br>".join(map(escaped, textwrap.wrap(text, CELL_WIDTH, break_on_hyphens=False)))


def _name_in_lines(name: str) -> list[str]:
    lines = [""]
    for word in re.findall(r"[^.]*\.?", name):
        if lines[-1] and len(lines[-1]) + len(word) > NAME_WIDTH:
            lines.append("")
        lines[-1] += word
    return lines


def _row(verdict: Verdict, tag: str) -> tuple[str, ...]:
    verdict = verdict.in_sentences()
    batch = "" if verdict.batch_idx is None else f", batch {verdict.batch_idx}"
    return (
        verdict.severity,
        verdict.rule,
        verdict.module or "the whole model",
        f"{verdict.since}{batch}",
        "now" if verdict.until is None else str(verdict.until),
        verdict.evidence,
        verdict.advice,
        tag,
    )


def _worst_layers(run: Run, verdicts: Sequence[Verdict]) -> str:
    named: dict[str, list[str]] = {}
    for quantity, words in CHARTED.items():
        layer = worst(quantity, run, verdicts)
        if layer is not None and not (quantity == "dead_fraction" and layer[1] == 0):
            named.setdefault(layer[0], []).append(words)
    parts = [f"{escaped(name)} ({', '.join(charts)})" for name, charts in named.items()]
    which = "worst" if verdicts else "most unusual"
    return f" The {which} layer in each chart at the last measurement: {'; '.join(parts)}." if parts else ""


def values_of(run: Run, quantity: str) -> np.ndarray:
    """Return a quantity as heat maps show it, shape (layers, columns of the course); infinity where it is `SPOILED`."""
    values = run.course(quantity)
    shown = np.where(np.isinf(values), np.nan, values)  # a ratio to weights that were 0
    return np.where(run.course(SPOILED[quantity]) == 1, np.inf, shown) if quantity in SPOILED else shown


def key_of(verdict: Verdict) -> VerdictKey:
    """Return (severity, rule, module, whether it lasts), which stays the same while the verdict's numbers change."""
    return verdict.severity, verdict.rule, verdict.module, verdict.until is None
