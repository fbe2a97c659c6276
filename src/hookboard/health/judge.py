"""`Judge`: asks the rules after each look, and turns findings that last into verdicts.

The findings of one rule at one module are a `Case`, which goes through these states. Looks are those at which the rule
was asked; `window` is how many looks something must last; "at once" are rules of single steps and of the code, findings
that are `is_lasting`, and what is found outside of the looks (`Judge.add`).

| state | is shown as | begins when |
|---|---|---|
| seen | nothing | a look shows the finding |
| forgotten | nothing | it was seen for less than a window, and a look does not show it |
| note | a note | it was there at `window` looks in a row; at once: at one |
| alarm | an alarm | as many of its latest findings in a row were alarms, and there is harm or proof |
| note again | a note, "previously an alarm" | there is neither harm nor proof any longer |
| over | its end, `until` | it was missing at `window` looks; while the loss falls a note that is over is dropped |
| effect | a note that names its cause | another case explains it, see `causes.py` |

There is harm while the loss shows it (`LossCurve.is_harmed`), and until the loss has been well for a window. A finding
is proof if it is hard (`Finding.is_hard`) and still there, or if it was made at its very step; unless the loss falls,
it is also proof if one of its earlier alarms did not depend on the loss (`Case.is_hard`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hookboard.base.messages import quoted, warn_switched_off
from hookboard.health.causes import OF_THE_WHOLE, ORDER, explained
from hookboard.health.look import Look, Loss
from hookboard.health.rule import Finding, Rule, Severity, Verdict
from hookboard.health.rules import LOOK_RULES
from hookboard.health.rules.numerics import NONFINITE
from hookboard.health.rules.shared import to_stable_rate
from hookboard.health.run import Run, StepFacts
from hookboard.model.layers import Layer

Key = tuple[str, str]
"""The name of a rule, and of a module."""

STEPS_BETWEEN_ASKING = (3, 4, 5)
"""After the first looks (`WINDOWS_ALWAYS_ASKED`), all rules are asked again once 3, 4, 5, 3, 4 ... steps have passed:
where every step is measured, whatever lasts is seen as well, at a quarter of the cost (a choice). The number varies, or
something periodic would seem to last. Rules that judge single steps are asked at each look."""

WINDOWS_ALWAYS_ASKED = 4
"""Number of windows at the beginning of a run in which all rules are asked at every look: most faults show up there,
and quickly (a choice)."""


State = Literal["seen", "note", "alarm"]
"""The state of a case, see the table above; the others in it follow from its looks, the loss and other cases."""

Origin = Literal["looks", "step", "event"]
"""What shows a case: looks, of which it takes several; a single step, or its code; `Judge.add`, at its very step."""

Place = Literal["known", "open", "lost"]
"""Whether the module of an event is known; if not, whether its batch was searched for it in vain."""


@dataclass
class Case:
    """The findings of one rule at one module, from the first to the latest.

    Args:
        last: the last step at which it was present: a rule may report what is over.
        seen: number of consecutive looks that showed it, of those at which its rule was asked.
        missed: number of consecutive looks since then that did not show it.
        streak: number of latest findings in a row that had the severity `of_streak`.
        is_hard: True if one of its alarms did not depend on the loss: a hard one (`Finding.is_hard`), one found outside
            of the looks, or one while the loss showed no harm or was not finite.
    """

    first: int
    last: int
    finding: Finding
    origin: Origin = "looks"
    place: Place = "known"
    state: State = "seen"
    seen: int = 0
    missed: int = 0
    of_streak: Severity = "note"
    streak: int = 0
    is_hard: bool = False
    size: float = 0.0

    def add(self, finding: Finding, step: int, window: int, is_kept: bool = False) -> None:
        """Add the finding of the latest look; if `is_kept`, an alarm stays one although the finding is a note."""
        if finding.since is not None:
            self.first = finding.since
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

    @property
    def is_of_one_step(self) -> bool:
        """Whether it happened in a single step."""
        return self.origin == "event" or self.finding.batch_idx is not None

    def verdict(self, rule: str, module: str, window: int, is_harmed: bool, is_well: bool = False) -> Verdict:
        """Return the verdict of this case; an alarm that is not hard becomes a note unless the loss `is_harmed`.

        So does what is over; and, while the loss falls (`is_well`), all but a proven fault that is still there.
        """
        takes_looks = self.origin == "looks"
        is_proof = (self.finding.is_hard and not self.missed) or self.origin == "event"
        is_open = self.is_hard and not is_well and (not takes_looks or self.missed < window)
        is_alarm = self.state == "alarm" and (is_harmed or is_proof or is_open)
        lasts = self.missed == 0 and (self.seen >= window or takes_looks)
        return Verdict(
            "alarm" if is_alarm else "note",
            rule,
            module,
            self.first,
            None if lasts and self.finding.until is None else self.last,
            self.finding.evidence,
            self.finding.advice,
            self.finding.batch_idx,
            rows=self.finding.rows,
        )


class Judge:
    """Asks the rules after each look, and makes verdicts of the findings that last.

    Args:
        window: number of looks for which a finding must last to become a verdict, and an alarm to become one. A case
            ends when its finding has been missing for as many looks. Only looks at which its rule was asked count.
    """

    def __init__(self, rules: Sequence[Rule], layers: Mapping[str, Layer], window: int) -> None:
        self.run = Run(layers, window)
        # What is found in the code of the step is there at once.
        self._rules = [replace(rule, at_once=True) if rule.of == "step" else rule for rule in rules]
        self._names = [rule.name for rule in rules]
        self._open: dict[Key, Case] = {}
        self._closed: dict[Key, Case] = {}
        self._verdicts: tuple[Verdict, ...] | None = None
        self._alarmed: set[Key] = set()  # what has been an alarm
        self._well = 0  # looks at which the loss was well since it showed harm
        self._asked: int | None = None  # the step of the look at which all rules were asked last
        self._asks = 0  # how often that was

    def see(self, look: Look, facts: StepFacts | None = None) -> tuple[Verdict, ...]:
        """Add a measured step, ask the rules (see `STEPS_BETWEEN_ASKING`), and return the verdicts, worst first."""
        self.run.facts = self.run.facts if facts is None else facts
        self.run.see(look)
        self._verdicts = None
        if self.run.losses.is_harmed:
            self._well = 0
        elif self.run.losses.has_recovered:
            self._well += 1
        is_early = self.run.seen <= WINDOWS_ALWAYS_ASKED * self.run.window
        gap = STEPS_BETWEEN_ASKING[self._asks % len(STEPS_BETWEEN_ASKING)]
        if self._asked is None or is_early or not 0 <= look.step - self._asked < gap:
            self._asked = look.step
            self._asks += 1
            self._ask(look.step, [rule for rule in self._rules if rule.of != "end"])
        else:
            self._ask(look.step, [rule for rule in self._rules if rule.at_once and rule.of != "end"])
        return self.verdicts

    def see_evaluation(self, look: Look) -> tuple[Verdict, ...]:
        """Add an evaluation loop, ask the rules that judge evaluations, and return the verdicts, worst first.

        Before the first measured step no rule is asked.
        """
        self.run.see_evaluation(look)
        if self.run.looks:
            self._verdicts = None
            self._ask(self.run.now.step, [rule for rule in self._rules if rule.of == "evaluation"])
        return self.verdicts

    def end(self, losses: Sequence[Loss]) -> tuple[Verdict, ...]:
        """Ask the rules that judge the whole training, and return the verdicts, worst first.

        What the looks have made an alarm already is not judged again.
        """
        self.run.losses.extend(losses)
        said = {key[0] for key, case in self._open.items() if case.state == "alarm"}
        asked = [rule for rule in dict.fromkeys([*self._rules, *LOOK_RULES]) if rule.of == "end"]
        last = self.run.losses.recent[-1].step if self.run.losses.recent else self.run.now.step
        for rule in asked if self.run.seen else ():
            if rule.name in self._names and rule.name not in said:
                for finding in self._findings_of(rule):
                    key = rule.name, finding.module
                    self._open.pop(key, None)  # of the fit that this one continues
                    self._closed.pop(key, None)
                    self.add(rule.name, finding, last)
        self._verdicts = None
        return self.verdicts

    def add(self, rule: str, finding: Finding, step: int, is_located: bool = True, is_searched: bool = False) -> None:
        """Add a finding made outside of the looks, such as the module that gave the first NaN.

        It replaces what looks have shown of the same rule so far, unless that has ended. While it lasts, findings of
        the rule at later looks count as this event, whatever layer they name; and so does the same event again, in a
        later step: what is told is where it began.

        Unless `is_located`, the next look that shows the finding sets the module. If its batch `is_searched` without
        success, only the look of that very step may: later ones show what spoiled weights have done.
        """
        self._verdicts = None
        for key in [key for key, case in self._open.items() if key[0] == rule and case.origin != "event"]:
            del self._open[key]
        earlier = self._closed.pop((rule, finding.module), None)
        earlier = self._open.get((rule, finding.module), earlier)
        if earlier is not None and earlier.origin == "event":
            earlier.last, earlier.missed, earlier.seen = step, 0, earlier.seen + 1
            self._open[rule, finding.module] = earlier
            return
        place: Place = "known" if is_located else "lost" if is_searched else "open"
        case = Case(step, step, finding, "event", place, is_hard=True)
        case.add(finding, step, self.run.window)
        self._open[rule, finding.module] = case

    @property
    def look_at(self) -> dict[str, str]:
        """Name of each rule -> the tag of the chart or text that shows its findings; "" if there is none."""
        return {rule.name: rule.look_at for rule in self._rules}

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on the run so far, worst first."""
        if self._verdicts is None:
            self._verdicts = self._sorted()
        return self._verdicts

    def _sorted(self) -> tuple[Verdict, ...]:
        is_harmed = self._well < self.run.window and self.run.seen > 0
        is_well = self.run.losses.is_well and not is_harmed
        # While the loss falls, a note that is over is dropped, unless it tells of an event.
        kept = (
            (key, case)
            for key, case in self._closed.items()
            if not is_well or case.state == "alarm" or case.is_of_one_step
        )
        said = dict(kept) | {key: case for key, case in self._open.items() if case.is_said}
        if not said:
            return ()
        cases = {case.verdict(*key, self.run.window, is_harmed, is_well): case for key, case in said.items()}
        whole = {self._waits(verdict, case): verdict for verdict, case in cases.items()}
        cases = {verdict: cases[whole[verdict]] for verdict in whole}
        hard = {verdict for verdict, case in cases.items() if case.is_hard}
        roots = {verdict for verdict, case in cases.items() if case.finding.is_root}
        causes = explained(list(cases), self.run, hard, roots)
        # What does no harm by itself does, where an alarm follows from it.
        worse = {cause for effect, cause in causes.items() if effect.severity == "alarm" and cause.severity == "note"}

        def rank(verdict: Verdict) -> tuple[object, ...]:
            case = cases[verdict]
            return (
                (verdict.severity == "note" and verdict not in worse) or verdict in causes,
                verdict in causes,
                verdict.severity == "note" and verdict.rule not in OF_THE_WHOLE,
                verdict in worse,
                not case.finding.is_root,
                case.missed > 0 and case.origin == "looks",
                self._place(verdict.rule),
                -case.size,
                self.run.place(verdict.module),
            )

        # An effect keeps its own numbers, and says what it follows from.
        ranked = sorted(cases, key=rank)
        shown = [
            _as_effect(whole[verdict], causes[verdict])
            if verdict in causes
            else self._with_its_past(replace(verdict, severity="alarm") if verdict in worse else verdict)
            for verdict in ranked
        ]
        others = [each for each in shown if each.severity == "alarm" and each.rule not in OF_THE_WHOLE]
        return tuple(
            replace(each, advice="fix the other alarms first") if others and each.rule in OF_THE_WHOLE else each
            for each in shown
        )

    def _with_its_past(self, verdict: Verdict) -> Verdict:
        """Return the verdict, which may say that it was an alarm, or advise a rate that would have been stable."""
        key = verdict.rule, verdict.module
        if verdict.severity == "alarm":
            self._alarmed.add(key)
            # Of what is told between two looks, the losses are not yet known.
            if verdict.rule == NONFINITE.name and self.run.looks and verdict.since <= self.run.now.step:
                lower = "ower the learning rate"  # at the start of a sentence or not
                advice = verdict.advice.replace(lower, f"{lower}{to_stable_rate(self.run)}")
                return replace(verdict, advice=advice)
        elif key in self._alarmed:
            level = self.run.losses.level()
            why = f"; the loss has fallen to {level:.3g} since" if self._well >= self.run.window else ""
            return _and_says(verdict, f"previously an alarm{why}")
        return verdict

    def _waits(self, verdict: Verdict, case: Case) -> Verdict:
        """Return the verdict; for one window at most as a note, if its cause may be a finding that is too recent."""
        has_waited = case.streak >= 2 * self.run.window
        if case.origin != "looks" or case.finding.is_root or has_waited or case.missed:
            return verdict
        early = {
            replace(open_.verdict(*key, self.run.window, True), severity=open_.finding.severity): open_
            for key, open_ in self._open.items()
            if not open_.is_said and not open_.missed
        }
        hard = {one for one, open_ in early.items() if open_.is_hard} | ({verdict} if case.is_hard else set())
        cause = explained([verdict, *early], self.run, hard).get(verdict)
        if cause is None:
            return verdict
        what, seen = f"{cause.rule}{_in(cause)}", cause.evidence.split(";")[0].rstrip(".")
        hinting = _and_says(verdict, f"{what} may be the cause, but is not confirmed yet; {seen}")
        if verdict.severity == "note":
            return hinting
        return replace(hinting, severity="note", advice=f"If {what} is confirmed, fix that first.")

    def _place(self, rule: str) -> int:
        if rule in ORDER:
            return ORDER.index(rule)
        return len(ORDER) + self._names.index(rule) if rule in self._names else -1

    def _ask(self, step: int, rules: Sequence[Rule]) -> None:
        seen: set[Key] = set()
        of_step: dict[str, list[Finding]] = {}
        for finding in self.run.facts.findings:
            of_step.setdefault(finding.rule, []).append(finding.as_certain())
        for rule in rules:
            findings = of_step.get(rule.name, []) if rule.of == "step" else self._findings_of(rule)
            if findings and (exact := self._of_event(rule.name, findings[0], step)) is not None:
                seen.add(exact)
                case = self._open[exact]
                case.last, case.missed, case.seen = step, 0, case.seen + 1
                continue
            for finding in findings:
                key = (rule.name, finding.module)
                if key not in seen:
                    seen.add(key)
                    self._note(rule, finding, step)
        names = {rule.name for rule in rules}
        for key in [key for key in self._open if key not in seen and key[0] in names]:
            self._miss(key)

    def _findings_of(self, rule: Rule) -> list[Finding]:
        """Return what a rule finds now; nothing if it raises, which switches it off with a warning."""
        try:
            assert rule.judge is not None
            found = rule.judge(self.run)
            if not isinstance(found, Iterable):
                raise TypeError(
                    f"the rule returned {quoted(found)} instead of an iterable of hookboard.Finding objects"
                )
            found = list(found)
            for one in found:
                if not isinstance(one, Finding):
                    raise TypeError(
                        f"the rule yielded {quoted(one)}, which is a {type(one).__name__}, not a hookboard.Finding"
                    )
            return found
        except Exception as error:  # the rule may be the user's; the others are still asked
            self._rules = [other for other in self._rules if other is not rule]
            warn_switched_off(f"HealthMonitor's rule {rule.name!r}", error)
            return []

    def _of_event(self, rule: str, finding: Finding, step: int) -> Key | None:
        """Return the key of the open case of `add` to which a finding belongs; None if none.

        If its module was not known, the case gets that of the finding, unless `is_searched` forbids that.
        """
        key = next((key for key, case in self._open.items() if key[0] == rule and case.origin == "event"), None)
        if key is None or self._open[key].place == "known":
            return key
        if step == self._open[key].first or self._open[key].place == "open":
            case = self._open.pop(key)
            evidence, advice = finding.evidence, finding.advice
            if step != case.first:  # otherwise it shows the event itself
                evidence = f"{case.finding.evidence.rstrip('.')}; the next measurement, at step {step}: {evidence}"
                advice = case.finding.advice
            case.finding = replace(case.finding, module=finding.module, evidence=evidence, advice=advice)
            case.place, key = "known", (rule, finding.module)
            self._open[key] = case
        return key

    def _note(self, rule: Rule, finding: Finding, step: int) -> None:
        key = (rule.name, finding.module)
        case = self._open.get(key)
        if case is None:
            last = step if finding.until is None else finding.until
            case = self._open[key] = Case(step, last, finding, "step" if rule.at_once else "looks")
        was_said, losses = case.is_said, self.run.losses
        # A loss that is stuck crosses the border of harm now and then.
        is_kept = not (case.is_hard or losses.is_harmed) and self._well < self.run.window
        case.add(finding, step, self.run.window, is_kept)
        needs_no_loss = finding.is_hard or not (losses.is_harmed and losses.is_finite)
        case.is_hard |= finding.severity == "alarm" and needs_no_loss
        if case.is_said and not was_said:
            earlier = self._closed.pop(key, None)
            if earlier is not None and finding.since is None:  # it has come back
                case.first = earlier.first

    def _miss(self, key: Key) -> None:
        case = self._open[key]
        case.missed, case.seen = case.missed + 1, 0
        if not case.is_said:
            del self._open[key]
        elif case.missed >= self.run.window:
            self._closed[key] = self._open.pop(key)


def _as_effect(verdict: Verdict, cause: Verdict) -> Verdict:
    effect = _and_says(verdict, f"it follows from {cause.rule}{_in(cause)}")
    advice = f"Fix {cause.rule}{_in(cause)} first."
    return replace(effect, severity="note", advice=advice, follows_from=(cause.rule, cause.module))


def _and_says(verdict: Verdict, more: str) -> Verdict:
    return replace(verdict, evidence=f"{verdict.evidence.rstrip('.')} ({more})")


def _in(verdict: Verdict) -> str:
    return f" in {verdict.module}" if verdict.module else ""
