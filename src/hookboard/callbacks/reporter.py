"""`Reporter`: tells a person what a judge says: the page in the loggers, and lines in the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hookboard.health import Judge, Look, Page, Verdict, before_nonfinite, closing, news
from hookboard.loops import alert, inform
from hookboard.writers import Entry, Loggers

BEFORE = "health/before_nonfinite"
"""The tag of the readings before the first NaN or Inf."""


class Reporter:
    """Tells what a judge says.

    Args:
        judge: judges the run.
        loggers: the loggers to write to.
        every_n_steps: how many steps lie between two looks.
    """

    def __init__(self, judge: Judge, loggers: Loggers, every_n_steps: int) -> None:
        self._judge = judge
        self._loggers = loggers
        self._page = Page(every_n_steps)
        self.alarms: set[tuple[str, str]] = set()
        """Rule and module of the alarms that were said."""
        self._is_closed = False

    def after_look(
        self, verdicts: tuple[Verdict, ...], records: Mapping[str, Sequence[bytes]], scalars: Mapping[str, float]
    ) -> None:
        """Write what is due after a look, and say what is new.

        Args:
            verdicts: worst first.
            records: tag to the strings of further records.
            scalars: tag to value of further scalars.
        """
        self._say_new(verdicts)
        entry = self._page.entry(self._judge.run, verdicts)
        entry.records.update(records)
        self._loggers.write(replace(entry, scalars={**entry.scalars, **scalars}))

    def at_event(self, verdicts: tuple[Verdict, ...], step: int, before: Look | None) -> None:
        """Write the readings before the first NaN or Inf, and say it.

        Args:
            verdicts: worst first.
            step: the optimizer step of the event.
            before: the last look before it; None if there was none.
        """
        self._say_new(verdicts)
        if before is not None:
            self._loggers.write(Entry(step, texts={BEFORE: before_nonfinite(before)}))

    def close(self, verdicts: tuple[Verdict, ...]) -> None:
        """Write the last page, and say the verdict; once."""
        run = self._judge.run
        if self._is_closed or not run.seen:
            return
        self._is_closed = True
        self._loggers.write(self._page.last(run, verdicts))
        say = alert if any(verdict.severity == "alarm" for verdict in verdicts) else inform
        say("\n".join(closing(run, verdicts, self._loggers.places)))

    def _say_new(self, verdicts: tuple[Verdict, ...]) -> None:
        """A line for each new alarm that no other explains."""
        for verdict in verdicts:
            key = verdict.rule, verdict.module
            if verdict.severity == "alarm" and key not in self.alarms:
                self.alarms.add(key)
                alert(news(verdict))
