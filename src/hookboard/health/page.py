"""`Page`: what is written about a run: a table, four heat maps, 16 scalars with charts, and records for the tab."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from hookboard.health.folding import cards_of
from hookboard.health.report import CHARTED, caveat, headline, in_sentences, layout, scalars, seen_in, table_of
from hookboard.health.rule import Verdict
from hookboard.health.run import Run
from hookboard.health.run_table import QUANTITIES
from hookboard.images import ColourScale, Mark, Picture, heat_map
from hookboard.messages import warn_switched_off
from hookboard.record import HEALTH, HealthRecord
from hookboard.writers import Entry

VERDICT = "health/verdict"
"""The tag of the table."""

PICTURE_GROWTH_FACTOR = 1.5
"""Pictures are drawn again when the number of looks has grown by this factor: each shows the whole run, so few are
enough, and their total cost per look stays the same in a long run."""

RECORD_GROWTH_FACTOR = 1.2
"""Records are written again when the number of looks has grown by this factor: somebody may follow the run in the tab,
and they cost less than pictures."""

_UNITS = {"activation_rms": "RMS", "gradient_rms": "RMS", "update_ratio": "ratio", "dead_fraction": "share"}


class Page:
    """Decides what is written after each look. It uses 22 tags whatever the number of layers; records show no card.

    Scalars are written at every look; table and pictures when there are half as many looks again, when there is
    something new to say, and at the end.

    Args:
        every_n_steps: how many steps lie between two looks, for the table.
        look_at: rule to the tag of what shows its symptoms.
    """

    def __init__(self, every_n_steps: int | None = None, look_at: Mapping[str, str] | None = None) -> None:
        self.every_n_steps = every_n_steps
        self._look_at = look_at
        self._has_layout = False
        self._drawn_at = 0
        self._told_at = 0
        self._told: object = None
        self._record = RunRecord(every_n_steps, RECORD_GROWTH_FACTOR, look_at)

    def entry(self, run: Run, verdicts: Sequence[Verdict]) -> Entry:
        """Return what to write after a look, and note it as written: call it once for each look."""
        is_new = _keys(verdicts) != self._told
        is_due = run.seen >= max(2, PICTURE_GROWTH_FACTOR * self._drawn_at)
        entry = Entry(run.now.step, scalars=scalars(run, verdicts), layout={} if self._has_layout else layout())
        self._has_layout = True
        if is_new or is_due:
            self._tell(entry, run, verdicts)
        # Many layers may fall ill one after the other; not each of them is worth pictures.
        if is_due or (is_new and verdicts and run.seen > self._drawn_at + run.window):
            self._draw(entry, run, verdicts)
        entry.records.update(self._record.after_look(run, verdicts))
        return entry

    def last(self, run: Run, verdicts: Sequence[Verdict]) -> Entry:
        """Return what is to be written at the end of the fit: table and pictures."""
        entry = Entry(run.now.step)
        if self._told_at < run.seen or _keys(verdicts) != self._told:
            self._tell(entry, run, verdicts)
        if self._drawn_at < run.seen:
            self._draw(entry, run, verdicts)
        entry.records.update(self._record.last(run, verdicts))
        return entry

    def _tell(self, entry: Entry, run: Run, verdicts: Sequence[Verdict]) -> None:
        self._told, self._told_at = _keys(verdicts), run.seen
        entry.tables[VERDICT] = table_of(run, verdicts, self.every_n_steps, self._look_at)

    def _draw(self, entry: Entry, run: Run, verdicts: Sequence[Verdict]) -> None:
        self._drawn_at = run.seen
        entry.pictures.update(pictures(run, verdicts))


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
    """Map each layer that an alarm, or a note that still lasts, names to the severity of its first such verdict.

    A container that is no layer itself stands for the layers inside it. Verdicts on the whole model mark nothing.
    """
    names = [layer.name for layer in run.layers]
    marks: dict[str, Mark] = {}
    for verdict in verdicts:
        if verdict.module and (verdict.severity == "alarm" or verdict.until is None):
            own = [name for name in names if name == verdict.module]
            inside = [name for name in names if name.startswith(f"{verdict.module}.")]
            for name in own or inside:
                marks.setdefault(name, verdict.severity)
    return marks


def _on_dead_rows(marks: Mapping[str, Mark], run: Run, values: np.ndarray) -> dict[str, Mark]:
    """Move the marks of layers that give no zeros themselves to the activation after them, which does.

    Args:
        marks: the sick layers.
        run: the run.
        values: the shares of dead units, shape (layers, columns).
    """
    shares = np.where(np.isfinite(values), values, 0.0).max(axis=1)
    moved: dict[str, Mark] = {}
    for name, mark in marks.items():
        place = run.place(name)
        following = next((i for i in range(place + 1, min(place + 3, len(shares))) if shares[i]), None)
        is_dead = shares[place] or np.isinf(values[place]).any()
        at = name if following is None or is_dead else run.layers[following].name
        moved[at] = "alarm" if "alarm" in (mark, moved.get(at)) else mark
    return moved


def _keys(verdicts: Sequence[Verdict]) -> list[tuple[str, str, str, bool]]:
    return [key_of(verdict) for verdict in verdicts]


PROMPT_RECORDS_MAX = 32
"""Maximum number of records written at once because of a new verdict; later ones wait for the next record that is due.
"""


class RunRecord:
    """Decides after which looks the record of a run for the tab is written. Its methods do not raise.

    Each record holds the whole run, and is large. So it is written at the first look, when there are some more looks
    again, at the end, and when a verdict begins or ends for the first time. In a large model that may be at any look:
    layers fall ill one after the other. So only the first such records are written.

    Args:
        every_n_steps: how many steps lie between two looks; None if it is not known.
        growth: how many times as many looks there must be for the next record.
        look_at: rule to the tag of what shows its symptoms.
    """

    def __init__(self, every_n_steps: int | None, growth: float, look_at: Mapping[str, str] | None = None) -> None:
        self._every_n_steps = every_n_steps
        self._look_at = look_at or {}
        self._growth = growth
        self._at = 0
        self._told: set[tuple[str, str, str, bool]] = set()
        self._news = 0
        self._last: Sequence[Verdict] = ()
        self._is_off = False

    def after_look(self, run: Run, verdicts: Sequence[Verdict]) -> dict[str, list[bytes]]:
        """Return the record by its tag if it is to be written after this look; otherwise nothing."""
        is_due = run.seen >= max(self._at + 1, self._growth * self._at)
        may_be_new = self._news < PROMPT_RECORDS_MAX and run.seen > self._at + run.window
        is_new = may_be_new and not self._told.issuperset(map(key_of, verdicts))
        self._news += is_new
        return self._record(run, verdicts) if is_due or is_new else {}

    def last(self, run: Run, verdicts: Sequence[Verdict]) -> dict[str, list[bytes]]:
        """Return the record by its tag at the end of the fit, unless it has been written as it is."""
        is_told = self._at == run.seen and tuple(self._last) == tuple(verdicts)
        return {} if is_told else self._record(run, verdicts)

    def _record(self, run: Run, verdicts: Sequence[Verdict]) -> dict[str, list[bytes]]:
        self._at, self._last = run.seen, verdicts
        self._told.update(map(key_of, verdicts))
        if self._is_off:
            return {}
        try:
            shows = seen_in(self._look_at.get(verdicts[0].rule, "")) if verdicts else ""
            return {HEALTH: _record_of(run, verdicts, self._every_n_steps or 1, shows).strings()}
        except Exception as error:
            self._is_off = True
            warn_switched_off("the record of the run's health for the tab in TensorBoard", error)
            return {}


def values_of(run: Run, quantity: str) -> np.ndarray:
    """Return a quantity over the run as heat maps show it, shape (layers, columns of `run.course_steps`), float64.

    NaN where nothing was measured, and where a ratio is undefined, as that of the first step of weights that are 0;
    infinity where what it is taken of was not finite.
    """
    values = run.course(quantity)
    return np.where(run.table.is_spoiled(quantity), np.inf, np.where(np.isinf(values), np.nan, values))


def _record_of(run: Run, verdicts: Sequence[Verdict], every_n_steps: int, shows: str) -> HealthRecord:
    values = {quantity: values_of(run, quantity) for quantity in QUANTITIES}
    return HealthRecord(
        every_n_steps,
        " ".join(filter(None, [headline(run, verdicts), caveat(run, verdicts)])),
        tuple(asdict(in_sentences(verdict)) for verdict in verdicts),
        tuple(layer.name for layer in run.layers),
        tuple(run.course_steps),
        {quantity: course for quantity, course in values.items() if not np.isnan(course).all()},
        tuple(asdict(card) for card in cards_of(verdicts)),
        shows,
    )


def key_of(verdict: Verdict) -> tuple[str, str, str, bool]:
    """Return what identifies a verdict: its numbers change at each look."""
    return verdict.severity, verdict.rule, verdict.module, verdict.until is None
