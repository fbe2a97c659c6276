"""`RunRecord`: what has been seen of a run as data, for the tab in TensorBoard."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from hookboard.health.report import headline
from hookboard.health.run import Run
from hookboard.health.table import QUANTITIES
from hookboard.health.verdict import Verdict
from hookboard.messages import warn_switched_off
from hookboard.record import HEALTH, HealthRecord

AT_ONCE = 32
"""So many records are written as soon as there is a new verdict; later ones are in the next that is due anyway."""


class RunRecord:
    """Decides after which looks the record of a run is written. Its methods do not raise.

    Each record holds the whole run, and is large. So it is written at the first look, when there are some more looks
    again, at the end, and when a verdict begins or ends for the first time. In a large model that may be at any look:
    layers fall ill one after the other. So only the first such records are written.

    Args:
        every_n_steps: how many steps lie between two looks; None if it is not known.
        growth: how many times as many looks there must be for the next record.
    """

    def __init__(self, every_n_steps: int | None, growth: float) -> None:
        self._every_n_steps = every_n_steps
        self._growth = growth
        self._at = 0
        self._told: set[tuple[str, str, str, bool]] = set()
        self._news = 0
        self._last: Sequence[Verdict] = ()
        self._is_off = False

    def after_look(self, run: Run, verdicts: Sequence[Verdict]) -> dict[str, list[bytes]]:
        """The record by its tag if it is to be written after this look; otherwise nothing."""
        is_due = run.seen >= max(self._at + 1, self._growth * self._at)
        may_be_new = self._news < AT_ONCE and run.seen > self._at + run.window
        is_new = may_be_new and not self._told.issuperset(map(key_of, verdicts))
        self._news += is_new
        return self._record(run, verdicts) if is_due or is_new else {}

    def last(self, run: Run, verdicts: Sequence[Verdict]) -> dict[str, list[bytes]]:
        """The record by its tag at the end of the fit, unless it has been written as it is."""
        is_told = self._at == run.seen and tuple(self._last) == tuple(verdicts)
        return {} if is_told else self._record(run, verdicts)

    def _record(self, run: Run, verdicts: Sequence[Verdict]) -> dict[str, list[bytes]]:
        self._at, self._last = run.seen, verdicts
        self._told.update(map(key_of, verdicts))
        if self._is_off:
            return {}
        try:
            return {HEALTH: _record_of(run, verdicts, self._every_n_steps or 1).strings()}
        except Exception as error:
            self._is_off = True
            warn_switched_off("the record of the run's health for the tab in TensorBoard", error)
            return {}


def values_of(run: Run, quantity: str) -> np.ndarray:
    """A quantity over the run as heat maps show it, shape (layers, columns of `run.course_steps`), float64.

    NaN where nothing was measured, infinity where what it is taken of was not finite.
    """
    return np.where(run.table.is_spoiled(quantity), np.inf, run.course(quantity))


def _record_of(run: Run, verdicts: Sequence[Verdict], every_n_steps: int) -> HealthRecord:
    values = {quantity: values_of(run, quantity) for quantity in QUANTITIES}
    return HealthRecord(
        every_n_steps,
        headline(run, verdicts),
        tuple(asdict(verdict) for verdict in verdicts),
        tuple(layer.name for layer in run.layers),
        tuple(run.course_steps),
        {quantity: course for quantity, course in values.items() if not np.isnan(course).all()},
    )


def key_of(verdict: Verdict) -> tuple[str, str, str, bool]:
    """What makes a verdict another one: its numbers change at each look."""
    return verdict.severity, verdict.rule, verdict.module, verdict.until is None
