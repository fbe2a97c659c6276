"""`Reporter`: has a run judged, and writes and says the verdicts. `StopOn`: ends the fit at an alarm."""

from collections.abc import Callable, Mapping, Sequence

from hookboard.base.messages import alert, inform, warn_switched_off
from hookboard.callbacks.report_at_end import ReportAtEnd
from hookboard.health import (
    Judge,
    Look,
    Loss,
    Nonfinite,
    Page,
    StepFacts,
    Verdict,
    before_nonfinite,
    closing,
    ended_by,
    news,
)
from hookboard.loops import Loop
from hookboard.model.layers import Layer
from hookboard.writers import Entry, Loggers

BEFORE = "health/before_nonfinite"
"""The tag of the readings before the first NaN or Inf."""


class Reporter:
    """Has a run judged, writes the verdicts to the loggers, and logs new alarms as warnings.

    Its methods return all verdicts, worst first; None once an error has ended the judging, with a warning.

    Args:
        judge: judges the run.
        loggers: the loggers to write to.
        every_n_steps: number of steps between two looks.
    """

    def __init__(self, judge: Judge, loggers: Loggers, every_n_steps: int) -> None:
        self.judge: Judge | None = judge
        """Judges the run; None after an error."""
        self._loggers = loggers
        self._page = Page(every_n_steps, judge.look_at)
        self.page_at_end: ReportAtEnd | None = None
        """Writes the page of the run in one file at the end; None if there is to be none."""
        self.alarms: set[tuple[str, str]] = set()
        """Rule and module of each alarm for which a warning was given."""
        self._is_closed = False

    def see(
        self, look: Look, facts: StepFacts, records: Callable[[Sequence[Layer]], Mapping[str, Sequence[bytes]]]
    ) -> tuple[Verdict, ...] | None:
        """Have a look judged; warn of new alarms, and give loggers the page with what `records` makes of the layers."""

        def judged(judge: Judge) -> tuple[Verdict, ...]:
            verdicts = judge.see(look, facts)
            self._say_new(verdicts)
            if self._loggers.loggers:
                entry = self._page.entry(judge.run, verdicts)
                entry.records.update(records(judge.run.layers))
                self._loggers.write(entry)
            return verdicts

        return self._judged(judged)

    def see_evaluation(self, look: Look) -> tuple[Verdict, ...] | None:
        """Have the look of an evaluation loop judged."""
        return self._judged(lambda judge: judge.see_evaluation(look))

    def end(self, losses: Sequence[Loss]) -> tuple[Verdict, ...] | None:
        """Have the whole training judged, with the losses since the last look."""
        return self._judged(lambda judge: judge.end(losses))

    def tell(self, events: Sequence[Nonfinite], *, is_searched: bool) -> tuple[Verdict, ...] | None:
        """Have NaN or Inf judged, whose batches may have been searched, warn of them, and log the last look before."""

        def judged(judge: Judge) -> tuple[Verdict, ...]:
            if not is_searched and any(v.rule == "nonfinite" and v.severity == "alarm" for v in judge.verdicts):
                return judge.verdicts  # an earlier look has shown where it began: the loss is what follows from it
            for event in events:
                judge.add("nonfinite", event.finding, event.step, event.is_located, is_searched)
            self._say_new(judge.verdicts)
            if judge.run.looks:
                self._loggers.write(Entry(events[0].step, texts={BEFORE: before_nonfinite(judge.run.looks[-1])}))
            return judge.verdicts

        return self._judged(judged)

    def _judged(self, see: Callable[[Judge], tuple[Verdict, ...]]) -> tuple[Verdict, ...] | None:
        if self.judge is None:
            return None
        try:
            return see(self.judge)
        except Exception as error:  # what is measured is still worth having, here and on other ranks
            self.judge = None
            warn_switched_off("HealthMonitor's judging", error)
            return None

    def close(self) -> None:
        """Write the page for the last time and log the worst verdicts; nothing before a look or in a second call.

        It does not raise.
        """
        if self.judge is None or self._is_closed or not self.judge.run.seen:
            return
        self._is_closed = True
        run, verdicts = self.judge.run, self.judge.verdicts
        try:
            self._say_new(verdicts)
            if self._loggers.loggers:
                self._loggers.write(self._page.last(run, verdicts))
            say = alert if any(verdict.severity == "alarm" for verdict in verdicts) else inform
            say("\n".join(closing(run, verdicts, self._loggers.places if self._loggers.are_given else None)))
        except Exception as error:  # this runs while the hooks are removed, perhaps after another error
            warn_switched_off("HealthMonitor's final report", error)

    def _say_new(self, verdicts: Sequence[Verdict]) -> None:
        """Warn of each alarm that is not in `alarms` yet, and add it to them."""
        for verdict in verdicts:
            key = verdict.rule, verdict.module
            if verdict.severity == "alarm" and key not in self.alarms:
                self.alarms.add(key)
                alert(news(verdict))


class StopOn:
    """Ends the fit when a rule gives an alarm.

    Args:
        asked: names of rules, or `alarm` for any; none never to end it.
    """

    def __init__(self, asked: str | Sequence[str] | None) -> None:
        self._asked = {asked} if isinstance(asked, str) else {*(asked or ())}
        self.earlier: frozenset[tuple[str, str]] = frozenset()
        """Rule and module of the alarms of a fit that this one continues; they do not end it."""
        self.is_ending = False
        """True once the fit has been ended."""
        self.is_asked_of_all = False
        """True if any rank asked at the last look to end the fit; only used with several ranks."""

    def guilty(self, verdicts: Sequence[Verdict]) -> Verdict | None:
        """Return the first verdict that is a new alarm of a rule that is asked for, or None."""
        alarms = (v for v in verdicts if v.severity == "alarm" and (v.rule, v.module) not in self.earlier)
        return next((v for v in alarms if {"alarm", v.rule} & self._asked), None)

    def end_if_asked(self, loop: Loop, verdicts: Sequence[Verdict], *, with_others: bool) -> None:
        """End the fit with this batch if there is such an alarm, on any rank if there are others."""
        guilty = self.guilty(verdicts)
        if self.is_asked_of_all if with_others else guilty is not None:
            loop.stop()
            self.is_ending = True
            if guilty is not None:
                alert(f"HealthMonitor {ended_by(guilty, loop.logged_step)}")
