"""`Case`: the findings of one rule at one module, from the first to the latest; its states are told in `judge.py`."""

from dataclasses import dataclass
from typing import Literal

from hookboard.health.rule import Finding, Severity

State = Literal["seen", "note", "alarm"]
"""The state of a case, see the table in `judge.py`; the others follow from its looks, the loss and other cases."""

Origin = Literal["looks", "step", "event"]
"""What shows a case: looks, of which it takes several; a single step, or its code; `Judge.add`, at its very step."""

Place = Literal["known", "open", "lost"]
"""Whether the module of an event is known; if not, whether its batch was searched for it in vain."""


@dataclass(eq=False)
class Case:
    """The findings of one rule at one module.

    Args:
        since: the step of the first finding.
        last: the last step at which it was present: a rule may report what is over.
        seen: number of consecutive looks that showed it, of those at which its rule was asked.
        missed: number of consecutive looks since then that did not show it.
        streak: number of latest findings in a row that had the severity `of_streak`.
        is_hard: True if one of its alarms did not depend on the loss: a hard one (`Finding.is_hard`), one found outside
            of the looks, or one while the loss showed no harm or was not finite.
        severity: what it is now, as the loss is, see `weigh`.
    """

    rule: str
    module: str
    since: int
    finding: Finding
    origin: Origin = "looks"
    place: Place = "known"
    state: State = "seen"
    last: int = 0
    seen: int = 0
    missed: int = 0
    of_streak: Severity = "note"
    streak: int = 0
    is_hard: bool = False
    size: float = 0.0
    severity: Severity = "note"

    def add(self, finding: Finding, step: int, window: int, is_kept: bool = False) -> None:
        """Add the finding of the latest look; if `is_kept`, an alarm stays one although the finding is a note."""
        if finding.since is not None:
            self.since = finding.since
        self.finding, self.missed = finding, 0
        self.last = step if finding.until is None else max(self.last, finding.until)
        self.seen += 1
        self.size = max(self.size, finding.size)
        severity = "alarm" if is_kept and self.state == "alarm" else finding.severity
        self.streak = self.streak + 1 if severity == self.of_streak else 1
        self.of_streak = severity
        enough = window if self.origin == "looks" and not finding.is_lasting else 1
        if self.streak >= enough:
            self.state = severity
        elif self.state == "seen" and self.seen >= enough:
            self.state = "note"

    @property
    def is_said(self) -> bool:
        """Whether it has lasted long enough for a verdict."""
        return self.state != "seen"

    def weigh(self, window: int, is_harmed: bool, is_well: bool) -> None:
        """Set `severity`: an alarm that is not hard needs harm.

        What is over needs harm too; and so does, while the loss falls (`is_well`), all but a proven fault that is still
        there.
        """
        is_proof = (self.finding.is_hard and not self.missed) or self.origin == "event"
        is_open = self.is_hard and not is_well and (self.origin != "looks" or self.missed < window)
        is_alarm = self.state == "alarm" and (is_harmed or is_proof or is_open)
        self.severity = "alarm" if is_alarm else "note"

    def until(self, window: int) -> int | None:
        """Return the last step at which it was present; None while it lasts."""
        lasts = self.missed == 0 and (self.seen >= window or self.origin == "looks")
        return None if lasts and self.finding.until is None else self.last

    def __str__(self) -> str:
        return f"{self.rule} in {self.module}" if self.module else self.rule
