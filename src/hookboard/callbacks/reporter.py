"""`Reporter`: has a run judged, and writes and says the verdicts. `write_report`: the page of a run in one file."""

import contextlib
from collections.abc import Sequence

from hookboard.base.messages import alert, inform, warn_switched_off
from hookboard.callbacks.measurement_state import Facts, MeasurementState
from hookboard.health.judge import Judge
from hookboard.health.look import Look
from hookboard.health.page import Page
from hookboard.health.report import alarm_text, closing
from hookboard.health.rule import Verdict
from hookboard.health.rules.numerics import Nonfinite, before_nonfinite
from hookboard.health.run import Run, StepFacts
from hookboard.writers.entry import Entry
from hookboard.writers.loggers import EventFiles, Loggers

BEFORE = "health/before_nonfinite"
"""The tag of the readings before the first NaN or Inf."""

REPORT = "report"


class Reporter:
    """Has a run judged, writes the verdicts to the loggers, and logs new alarms as warnings."""

    def __init__(self, judge: Judge, state: MeasurementState) -> None:
        self.judge, self._state, self._loggers = judge, state, state.loggers
        self._page = Page(state.every_n_steps, judge.look_at)
        self.said: list[Verdict] = []  # the alarms for which a warning was given in this fit

    def see(self, look: Look, facts: StepFacts, layers: Facts) -> None:
        """Judge a look, warn of new alarms, and write the page and the record of layers, see `LayerRecorder.record`."""
        verdicts = self.judge.see(look, facts)
        self._say_new(verdicts)
        if self._loggers.loggers:
            entry, state = self._page.entry(self.judge.run, verdicts), self._state
            entry.records.update(
                state.layer_record.record(look.readings.places, layers, state.table, state.every_n_steps)
            )
            self._loggers.write(entry)

    def tell(self, events: Sequence[Nonfinite], is_searched: bool) -> None:
        """Judge NaN or Inf, whose batches may have been searched, warn of them, and log the last look before."""
        judge = self.judge
        if not is_searched and any(v.rule == "nonfinite" and v.severity == "alarm" for v in judge.verdicts):
            return  # an earlier look has shown where it began: the loss is what follows from it
        for event in events:
            judge.add("nonfinite", event.finding, event.step, event.is_located, is_searched)
        self._say_new(judge.verdicts)
        if judge.run.looks:
            self._loggers.write(Entry(events[0].step, texts={BEFORE: before_nonfinite(judge.run.looks[-1])}))

    def close(self) -> None:
        """Write the page for the last time and log the worst verdicts; nothing before a look."""
        run, verdicts = self.judge.run, self.judge.verdicts
        if not run.seen:
            return
        self._say_new(verdicts)
        if self._loggers.loggers:
            self._loggers.write(self._page.entry(run, verdicts, is_over=True))
        say = alert if any(verdict.severity == "alarm" for verdict in verdicts) else inform
        say("\n".join(closing(run, verdicts, self._loggers.places if self._loggers.are_given else None)))

    def _say_new(self, verdicts: Sequence[Verdict]) -> None:
        known = {(verdict.rule, verdict.module) for verdict in self.said}
        for verdict in verdicts:
            if verdict.severity == "alarm" and (verdict.rule, verdict.module) not in known:
                self.said.append(verdict)
                alert(alarm_text(verdict))


def write_report(loggers: Loggers, files: EventFiles, run: Run) -> None:
    """Write the page of a run that was looked at to all loggers, at the end of a fit; `files` are closed."""
    from hookboard.board.one_file import page_in  # it imports TensorBoard's readers

    try:
        with contextlib.closing(files):
            folder = files.folder()
            page = Entry(run.now.step, pages={REPORT: page_in(folder)}) if folder is not None and run.seen else None
        if page is not None:
            loggers.write(page)
            if places := loggers.places_of_page(REPORT):
                inform(f"HealthMonitor wrote the report of this run: {'; '.join(places)}")
    except Exception as error:  # a file or a logger may fail; the fit itself is over
        warn_switched_off("HealthMonitor's report", error)
