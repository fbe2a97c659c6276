"""`Judge`: asks all rules after each look, and makes verdicts of the symptoms that last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hookboard.health.causes import explained
from hookboard.health.layers import Layer
from hookboard.health.look import Look
from hookboard.health.rule import Rule
from hookboard.health.run import Run
from hookboard.health.verdict import Symptom, Verdict
from hookboard.messages import warn_switched_off

Key = tuple[str, str]
"""The name of a rule, and of a module."""


@dataclass
class Case:
    """The symptoms of one rule at one module, from the first to the last.

    Args:
        first: the step of the first.
        last: the step of the latest.
        symptom: the latest.
        seen: at how many looks in a row it was seen.
        missed: at how many looks in a row it was not seen since.
        is_said: whether it has lasted long enough for a verdict.
        size: the largest size so far.
    """

    first: int
    last: int
    symptom: Symptom
    seen: int = 1
    missed: int = 0
    is_said: bool = False
    size: float = 0.0


class Judge:
    """Judges a run.

    Args:
        rules: the rules to ask.
        layers: every layer that is watched, by name.
        window: how many looks a symptom must last. A case ends when it has not been seen for as many looks.
    """

    def __init__(self, rules: Sequence[Rule], layers: Mapping[str, Layer], window: int) -> None:
        self.run = Run(layers, window)
        self._rules = list(rules)
        self._open: dict[Key, Case] = {}
        self._closed: dict[Key, Case] = {}

    def see(self, look: Look) -> None:
        """Take a measured step, and judge the run."""
        self.run.see(look)
        self._ask(look.step)

    def see_evaluation(self, look: Look) -> None:
        """Take an evaluation loop; it is judged with the next measured step."""
        self.run.see_evaluation(look)

    def add(self, rule: str, symptom: Symptom, step: int) -> None:
        """Take a symptom that was found outside of the looks, such as the site that gave the first NaN."""
        case = self._open.setdefault((rule, symptom.module), Case(symptom.since or step, step, symptom))
        case.is_said, case.last, case.symptom = True, step, symptom

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What is to be said of the run so far, worst first."""
        said = {**self._closed, **{key: case for key, case in self._open.items() if case.is_said}}.items()
        sizes, verdicts = {}, []
        for (rule, module), case in said:
            symptom, lasts = case.symptom, case.missed == 0
            until = None if lasts and not self._is_at_once(rule) else case.last
            verdict = Verdict(
                symptom.severity, rule, module, case.first, until, symptom.evidence, symptom.advice, symptom.batch_idx
            )
            sizes[verdict] = case.size
            verdicts.append(verdict)
        causes = explained(verdicts, self.run)
        # An effect keeps its own numbers, and says what it follows from.
        final = {v: _as_effect(v, causes[v]) if v in causes else v for v in verdicts}
        order = [rule.name for rule in self._rules]

        def rank(verdict: Verdict) -> tuple[object, ...]:
            of_rule = order.index(verdict.rule) if verdict.rule in order else -1
            is_alarm = final[verdict].severity == "alarm"
            return (
                not is_alarm,
                verdict in causes,
                verdict.until is not None and not self._is_at_once(verdict.rule),
                of_rule,
                -sizes[verdict],
                self.run.place(verdict.module),
            )

        return tuple(final[verdict] for verdict in sorted(verdicts, key=rank))

    def _ask(self, step: int) -> None:
        seen: set[Key] = set()
        for rule in list(self._rules):
            try:
                symptoms = list(rule.judge(self.run))
            except Exception as error:
                self._rules.remove(rule)
                warn_switched_off(f"the rule {rule.name!r} of HealthMonitor", error)
                continue
            for symptom in symptoms:
                seen.add((rule.name, symptom.module))
                self._note(rule, symptom, step)
        for key, case in list(self._open.items()):
            if key not in seen:
                case.missed += 1
                if case.missed >= self.run.window or not case.is_said:
                    del self._open[key]
                    if case.is_said:
                        self._closed[key] = case

    def _note(self, rule: Rule, symptom: Symptom, step: int) -> None:
        since = step if symptom.since is None else symptom.since
        case = self._open.get((rule.name, symptom.module))
        if case is None:
            case = self._open[rule.name, symptom.module] = Case(since, step, symptom)
        else:
            case.seen += 1
            case.symptom = symptom
            if symptom.since is not None:
                case.first = min(case.first, since)
        case.last, case.missed, case.size = step, 0, max(case.size, symptom.size)
        if not case.is_said and (rule.at_once or case.seen >= self.run.window):
            case.is_said = True
            earlier = self._closed.pop((rule.name, symptom.module), None)
            if earlier is not None:  # it has come back
                case.first = earlier.first

    def _is_at_once(self, name: str) -> bool:
        return any(rule.name == name and rule.at_once for rule in self._rules)


def _as_effect(verdict: Verdict, cause: Verdict) -> Verdict:
    where = f" in {cause.module}" if cause.module else ""
    return replace(verdict, severity="note", evidence=f"{verdict.evidence} It follows from {cause.rule}{where}.")
