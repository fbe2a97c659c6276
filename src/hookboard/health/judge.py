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
| note again | a note, "previously an alarm" | neither harm nor proof is left, or as many findings in a row were notes |
| missing | its last step, `until` | a look does not show what was a note or an alarm |
| over | the same | it was missing at `window` looks; while the loss is well, a note that is over is dropped |
| waiting | a note that names a case | that case would explain it, but has not lasted yet; for a window at most |
| effect | a note that names its cause | another case explains it, see `causes.py` |

What is stored of a case is whether it is seen, a note or an alarm (`Case.state`); the other states follow from its
looks, from the loss, and from other cases.

There is harm while the loss shows it (`LossCurve.is_harmed`), and until it has recovered for a window: at the first
looks nothing is known of it, and what is an alarm at once need not wait. A finding is proof if it is hard
(`Finding.is_hard`) and still there, or was added by `Judge.add`; and, unless the loss is well (`LossCurve.is_well`), if
one of its earlier alarms did not depend on the loss (`Case.is_proven`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hookboard.base.messages import quoted, warn_switched_off
from hookboard.health.causes import OF_THE_WHOLE, ORDER, explained
from hookboard.health.look import Look, Loss
from hookboard.health.rule import Case, Finding, Rule, Verdict, Whereabouts
from hookboard.health.rules import LOOK_RULES
from hookboard.health.rules.numerics import NONFINITE
from hookboard.health.rules.shared import to_stable_rate
from hookboard.health.run import Run, StepFacts
from hookboard.model.layers import Layer

Key = tuple[str, str]  # the name of a rule, and of a module

STEPS_BETWEEN_ASKING = (3, 4, 5)
"""After the first looks all rules are asked again once 3, 4, 5, 3 ... steps have passed: where every step is measured,
what lasts is seen as well, at a quarter of the cost (a choice). It varies, or something periodic would seem to last."""

WINDOWS_ALWAYS_ASKED = 4
"""Windows at the start of a run in which all rules are asked at every look: most faults show up there (a choice)."""


class Judge:
    """Asks the rules after each look, and makes verdicts of the findings that last for `window` looks."""

    def __init__(self, rules: Sequence[Rule], layers: Mapping[str, Layer], window: int) -> None:
        self.run = Run(layers, window)
        # What is found in the code of the step is there at once.
        self._rules = [replace(rule, at_once=True) if rule.of == "step" else rule for rule in rules]
        self._names = [rule.name for rule in rules]
        self._order = {name: place for place, name in enumerate(dict.fromkeys([*ORDER, *self._names]))}
        self._open: dict[Key, Case] = {}
        self._closed: dict[Key, Case] = {}
        self.verdicts: tuple[Verdict, ...] = ()  # worst first
        self._alarmed: set[Key] = set()  # what has been an alarm
        self._looks_recovered = 0  # looks at which the loss had recovered, since it last showed harm
        self._last_full: int | None = None  # the step of the look at which all rules were asked last
        self._asks = 0  # how often that was

    def see(self, look: Look, facts: StepFacts | None = None) -> tuple[Verdict, ...]:
        """Add a measured step, ask the rules (see `STEPS_BETWEEN_ASKING`), and return the verdicts, worst first."""
        self.run.facts = self.run.facts if facts is None else facts
        self.run.see(look)
        if self.run.losses.is_harmed:
            self._looks_recovered = 0
        elif self.run.losses.has_recovered:
            self._looks_recovered += 1
        is_early = self.run.seen <= WINDOWS_ALWAYS_ASKED * self.run.window
        gap = STEPS_BETWEEN_ASKING[self._asks % len(STEPS_BETWEEN_ASKING)]
        is_due = self._last_full is None or is_early or not 0 <= look.step - self._last_full < gap
        if is_due:
            self._last_full = look.step
            self._asks += 1
        return self._ask([rule for rule in self._rules if rule.of != "end" and (is_due or rule.at_once)])

    def see_evaluation(self, look: Look) -> tuple[Verdict, ...]:
        """Add an evaluation loop, ask the rules that judge evaluations, and return the verdicts, worst first."""
        self.run.see_evaluation(look)
        return self._ask([rule for rule in self._rules if rule.of == "evaluation"]) if self.run.looks else self.verdicts

    def end(self, losses: Sequence[Loss]) -> tuple[Verdict, ...]:
        """Ask the rules that judge the whole training, but for what is an alarm already, and return the verdicts."""
        self.run.losses.extend(losses)
        said = {case.rule for case in self._open.values() if case.state == "alarm"}
        for rule in dict.fromkeys([*self._rules, *LOOK_RULES]) if self.run.seen else ():
            if rule.of == "end" and rule.name in self._names and rule.name not in said:
                step = self.run.losses.recent[-1].step if self.run.losses.recent else self.run.now.step
                for finding in self._findings_of(rule):
                    key = rule.name, finding.module
                    self._open.pop(key, None)  # of the fit that this one continues
                    self._closed.pop(key, None)
                    self.add(rule.name, finding, step)
        self.verdicts = self._verdicts_now()
        return self.verdicts

    def add(self, rule: str, finding: Finding, step: int, is_located: bool = True, is_searched: bool = False) -> None:
        """Add a finding made outside of the looks, such as the module that gave the first NaN; its case is an event."""
        # It replaces what looks have shown of the same rule.
        for key in [key for key, case in self._open.items() if key[0] == rule and case.origin != "event"]:
            del self._open[key]
        earlier = self._closed.pop((rule, finding.module), None)
        case = self._open.get((rule, finding.module), earlier)
        if case is not None and case.origin == "event":
            # The same event again, in a later step: what is told is where it began.
            case.last, case.missed, case.in_a_row = step, 0, case.in_a_row + 1
        else:
            whereabouts: Whereabouts = "known"
            if not is_located:
                whereabouts = "lost" if is_searched else "open"
            case = Case(rule, finding.module, step, finding, "event", whereabouts, is_proven=True)
            case.add(finding, step, self.run.window)
        self._open[rule, finding.module] = case
        self.verdicts = self._verdicts_now()

    @property
    def look_at(self) -> dict[str, str]:
        """Name of each rule -> the tag of the chart or text that shows its findings; "" if there is none."""
        return {rule.name: rule.look_at for rule in self._rules}

    def _verdicts_now(self) -> tuple[Verdict, ...]:
        """Return the verdicts on the cases as they are now, worst first."""
        may_be_harmed = self._looks_recovered < self.run.window and self.run.seen > 0
        is_well = self.run.losses.is_well and not may_be_harmed
        # While the loss is well, a note that is over is dropped, unless it happened in a single step.
        cases = [
            case
            for case in self._closed.values()
            if not is_well or case.state == "alarm" or case.origin == "event" or case.finding.batch_idx is not None
        ]
        cases += [case for case in self._open.values() if case.is_said]
        early = [case for case in self._open.values() if not (case.is_said or case.missed)]
        for case in (*cases, *early):
            case.weigh(self.run.window, may_be_harmed, is_well)
        texts = {case: self._wait(case, early) for case in cases}
        causes = explained(cases, self.run)
        # A note that causes an alarm is shown as an alarm.
        worse = {cause for case, cause in causes.items() if case.severity == "alarm" and cause.severity == "note"}

        def rank(case: Case) -> tuple[object, ...]:
            return (
                (case.severity == "note" and case not in worse) or case in causes,
                case in causes,
                case.severity == "note" and case.rule not in OF_THE_WHOLE,
                case in worse,
                not case.finding.is_root,
                case.missed > 0 and case.origin == "looks",
                self._order.get(case.rule, -1),
                -case.size,
                self.run.place(case.module),
            )

        cases.sort(key=rank)
        for case in worse:
            case.severity = "alarm"
        shown = [self._verdict(case, causes.get(case), *texts[case]) for case in cases]
        first = next((case for case in cases if case.severity == "alarm" and case.rule not in OF_THE_WHOLE), None)
        if first is not None and first not in causes:
            advice = f"fix {first} first"
            shown = [replace(each, advice=advice) if each.rule in OF_THE_WHOLE else each for each in shown]
        return tuple(shown)

    def _wait(self, case: Case, early: Sequence[Case]) -> tuple[str, str]:
        """Return evidence and advice; for one window at most it is a note, if its cause may be too recent a finding."""
        evidence, advice = case.finding.evidence, case.finding.advice
        has_waited = case.streak >= 2 * self.run.window
        if not early or case.origin != "looks" or case.finding.is_root or has_waited or case.missed:
            return evidence, advice
        cause = explained([case, *early], self.run).get(case)
        if cause is None:
            return evidence, advice
        seen = cause.finding.evidence.split(";")[0].rstrip(".")
        if case.severity == "alarm":
            case.severity, advice = "note", f"If {cause} is confirmed, fix that first."
        return _and_says(evidence, f"{cause} may be the cause, but is not confirmed yet; {seen}"), advice

    def _verdict(self, case: Case, cause: Case | None, evidence: str, advice: str) -> Verdict:
        """Return the verdict on a case: of an effect, what it follows from; it may say that it was an alarm."""
        severity, key, finding = case.severity, (case.rule, case.module), case.finding
        if cause is not None:  # it keeps its own numbers
            evidence, advice = _and_says(finding.evidence, f"it follows from {cause}"), f"Fix {cause} first."
            severity = "note"
        elif severity == "alarm":
            self._alarmed.add(key)
            # Between two looks, the latest losses are not yet known.
            if case.rule == NONFINITE.name and self.run.looks and case.since <= self.run.now.step:
                lower = "ower the learning rate"  # at the start of a sentence or not
                advice = advice.replace(lower, f"{lower}{to_stable_rate(self.run)}")
        elif key in self._alarmed:
            level = self.run.losses.level()
            why = f"; the loss has fallen to {level:.3g} since" if self._looks_recovered >= self.run.window else ""
            evidence = _and_says(evidence, f"previously an alarm{why}")
        follows_from = None if cause is None else (cause.rule, cause.module)
        when = case.since, case.until(self.run.window)
        return Verdict(severity, *key, *when, evidence, advice, finding.batch_idx, follows_from, finding.rows)

    def _ask(self, rules: Sequence[Rule]) -> tuple[Verdict, ...]:
        seen: set[Key] = set()
        of_step: dict[str, list[Finding]] = {}
        for finding in self.run.facts.findings:
            of_step.setdefault(finding.rule, []).append(finding.as_certain())
        for rule in rules:
            findings = of_step.get(rule.name, []) if rule.of == "step" else self._findings_of(rule)
            # While an event lasts, findings of its rule count as this event, whatever layer they name.
            event = self._of_event(rule.name, findings[0]) if findings else None
            if event is not None:
                seen.add(event)
                continue
            for finding in findings:
                key = (rule.name, finding.module)
                if key not in seen:
                    seen.add(key)
                    self._add_look(rule, finding)
        names = {rule.name for rule in rules}
        for key in [key for key in self._open if key not in seen and key[0] in names]:
            self._miss_look(key)
        self.verdicts = self._verdicts_now()
        return self.verdicts

    def _findings_of(self, rule: Rule) -> list[Finding]:
        try:
            assert rule.judge is not None
            found = rule.judge(self.run)
            if not isinstance(found, Iterable):
                raise TypeError(
                    f"the rule returned {quoted(found)} instead of an iterable of hookboard.Finding objects"
                )
            found = list(found)
            for finding in found:
                if not isinstance(finding, Finding):
                    kind = type(finding).__name__
                    raise TypeError(f"the rule yielded {quoted(finding)}, which is a {kind}, not a hookboard.Finding")
            return found
        except Exception as error:  # the rule may be the user's; the others are still asked
            self._rules = [other for other in self._rules if other is not rule]
            warn_switched_off(f"HealthMonitor's rule {rule.name!r}", error)
            return []

    def _of_event(self, rule: str, finding: Finding) -> Key | None:
        """Let the open event to which a finding belongs last on, and return its key; None if there is none."""
        step = self.run.now.step
        key = next((key for key, case in self._open.items() if key[0] == rule and case.origin == "event"), None)
        if key is None:
            return None
        case = self._open[key]
        # If its batch was searched for the module in vain, later looks show what spoiled weights have done.
        if case.whereabouts == "open" or (case.whereabouts == "lost" and step == case.since):
            evidence, advice = finding.evidence, finding.advice
            if step != case.since:  # otherwise it shows the event itself
                evidence = f"{case.finding.evidence.rstrip('.')}; the next measurement, at step {step}: {evidence}"
                advice = case.finding.advice
            case.finding = replace(case.finding, module=finding.module, evidence=evidence, advice=advice)
            case.whereabouts, case.module = "known", finding.module
            del self._open[key]
            key = rule, finding.module
            self._open[key] = case
        case.last, case.missed, case.in_a_row = step, 0, case.in_a_row + 1
        return key

    def _add_look(self, rule: Rule, finding: Finding) -> None:
        step, key = self.run.now.step, (rule.name, finding.module)
        case = self._open.get(key)
        if case is None:
            case = self._open[key] = Case(*key, step, finding, "step" if rule.at_once else "looks")
        was_said, losses = case.is_said, self.run.losses
        # A loss that is stuck crosses the border of harm now and then.
        is_kept = not (case.is_proven or losses.is_harmed) and self._looks_recovered < self.run.window
        case.add(finding, step, self.run.window, is_kept)
        needs_no_loss = finding.is_hard or not (losses.is_harmed and losses.is_finite)
        case.is_proven |= finding.severity == "alarm" and needs_no_loss
        if case.is_said and not was_said:
            earlier = self._closed.pop(key, None)
            if earlier is not None and finding.since is None:  # it has come back
                case.since = earlier.since

    def _miss_look(self, key: Key) -> None:
        case = self._open[key]
        case.missed, case.in_a_row = case.missed + 1, 0
        if not case.is_said:
            del self._open[key]
        elif case.missed >= self.run.window:
            self._closed[key] = self._open.pop(key)


def _and_says(evidence: str, clause: str) -> str:
    return f"{evidence.rstrip('.')} ({clause})"
