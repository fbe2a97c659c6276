"""`Rule`: a named function that judges a run or a step. `Finding`: what it sees. `Case`, `Verdict`: what it becomes."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, get_args

from hookboard.base.checks import (
    check_differ,
    check_function,
    check_identifier,
    check_name,
    check_number,
    check_switches,
    check_text,
    check_whole,
    object_at,
    several,
    wrong,
)
from hookboard.base.messages import listed, quoted, unknown
from hookboard.model.patterns import is_pattern, matched, parted

Severity = Literal["alarm", "note"]
Severities = Literal["alarm", "note", "alarm or note"]
Judged = Literal["look", "evaluation", "end", "step"]


@dataclass(frozen=True)
class Verdict:
    """What `HealthMonitor` says about one module, or about the whole model.

    Args:
        severity: `alarm` if someone who knew would stop the run or fix the code; `note` if it is worth knowing.
        rule: the name of the rule.
        module: the dotted name of the layer where the fault lies; "" for the whole model. In a chain of sick layers, it
            is the one where the chain starts.
        since: the optimizer step of the first finding.
        until: the optimizer step of the last finding; None while it lasts.
        evidence: one sentence with the numbers, and what is usual for this model.
        advice: one sentence: what to try first.
        batch_idx: the index of the batch, for what happens in a single step; otherwise None.
        follows_from: rule and module of the verdict that this one follows from; None if it follows from no other.
        rows: the rows of that batch (indices along its first dimension) that are at fault, where they are known.
    """

    severity: Severity
    rule: str
    module: str
    since: int
    until: int | None
    evidence: str
    advice: str
    batch_idx: int | None = None
    follows_from: tuple[str, str] | None = None
    rows: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """What is wrong, where, and when: "alarm: dead_units in net.1 from step 10 to 90"."""
        batch = "" if self.batch_idx is None else f" (batch {self.batch_idx})"
        if self.until is None:
            when = f"since step {self.since}"
        elif self.until == self.since:
            when = f"at step {self.since}"
        else:
            when = f"from step {self.since} to {self.until}"
        where = f" in {self.module}" if self.module else ""
        return f"{self.severity}: {self.rule}{where} {when}{batch}"

    def in_sentences(self) -> "Verdict":
        """Return the verdict with evidence and advice as they are shown: as sentences with a capital and a full stop.

        If the fault has ended, "have been 0 since step 10" in the evidence becomes "were 0 from step 10 to 90".
        """
        said = self.evidence
        if self.until is not None:  # it was seen while it lasted
            said = re.sub(r"\bhave (never |not )?been ([^,;(]*since step)", r"were \1\2", said)
            said = re.sub(r"\bsince step (\d+)", rf"from step \1 to {self.until}", said)
        return replace(self, evidence=sentence(said, self.module), advice=sentence(self.advice, self.module))

    def __str__(self) -> str:
        """Return all of it in words.

        >>> print(Verdict("note", "dead_units", "net.1", 10, 90, "net.1 gave 0", "lower the rate"))
        note: dead_units in net.1 from step 10 to 90: net.1 gave 0. Try: Lower the rate.
        """
        shown = self.in_sentences()
        return f"{self.title}: {shown.evidence} Try: {shown.advice}"


class Verdicts(tuple[Verdict, ...]):
    """Verdicts, worst first. A prompt and `print` show a line for each."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "()"


def sentence(text: str, module: str = "") -> str:
    """Format a text as a sentence with a capital (unless it begins with the layer) and a full stop, and 1.3e+02 as 130.

    >>> sentence("head gave 0", "head"), sentence("it gave 1.3e+02, not 1e+09!")
    ('head gave 0.', 'It gave 130, not 1e+09!')
    """
    text = re.sub(r"\b\d(\.\d+)?e\+0[2-5]\b", lambda found: f"{float(found[0]):,.0f}", text.strip())
    if text and text[-1] not in ".!?":
        text += "."
    first = re.match(r"[a-z][a-z'-]*(?=[\s,;:]|\.?$)", text)
    return text if first is None or first.group() == module else text[0].upper() + text[1:]


@dataclass(frozen=True)
class Finding:
    """What a rule finds at one measured step, or in the code of the training step. It becomes a verdict if it persists.

    Args:
        module: the dotted name of the layer; "" for the whole model.
        evidence: one sentence with the numbers, and what is usual for this model, or with the line of code.
        advice: one sentence: what to try first.
        severity: `alarm` only for certain harm, or harm that the loss shows; otherwise `note`.
        size: how severe it is, in any unit; among otherwise equal verdicts of one rule, the largest comes first.
        since: the optimizer step at which it began. Default: the step at which the rule first saw it.
        until: the last optimizer step at which it was seen, if it has ended (such as the cause of lasting harm).
            Default: it persists.
        batch_idx: the index of the batch, for what happens in a single step.
        is_root: True if it cannot follow from another fault, such as a layer that is in no optimizer. Default: False;
            of an alarm by a rule with `of="step"`, True.
        is_hard: True if it is an alarm regardless of the loss, False if it is a note while the loss falls, such as
            something that may be intended. Default: False; of an alarm by a rule with `of="step"`, True.
        rule: the name of the rule. Default: the rule that yields the finding.
        rows: the rows of that batch that are at fault, where they are known.
        is_lasting: True if the rule itself knows that it has lasted for many steps (from the losses, for example), so
            that one measurement is enough for a verdict.
    """

    module: str
    evidence: str
    advice: str
    severity: Severity = "note"
    size: float = 0.0
    since: int | None = None
    batch_idx: int | None = None
    is_root: bool | None = None
    is_hard: bool | None = None
    until: int | None = None
    rule: str = ""
    rows: tuple[int, ...] = ()
    is_lasting: bool = False

    def __post_init__(self) -> None:
        check_text(module=self.module, evidence=self.evidence, advice=self.advice, rule=self.rule)
        check_name("severity", self.severity, get_args(Severity))
        check_number("size", self.size)
        check_whole("since", self.since, 0, "optimizer steps", "to use the current step")
        check_whole("until", self.until, 0, "optimizer steps", "if the problem persists")
        check_whole("batch_idx", self.batch_idx, 0, otherwise="")
        if not isinstance(self.rows, tuple) or not all(type(row) is int and row >= 0 for row in self.rows):
            raise wrong("rows", self.rows, "a tuple of row indices")
        is_root, is_hard = (False if flag is None else flag for flag in (self.is_root, self.is_hard))
        check_switches(is_root=is_root, is_hard=is_hard, is_lasting=self.is_lasting)

    def as_certain(self) -> "Finding":
        """Return a finding in the code as it is judged: it lasts, and by default an alarm is hard, and a root."""
        is_alarm = self.severity == "alarm"
        is_hard, is_root = (is_alarm if flag is None else flag for flag in (self.is_hard, self.is_root))
        return replace(self, is_hard=is_hard and is_alarm, is_root=is_root, is_lasting=True)

    def __str__(self) -> str:
        """Return all of it in words.

        >>> print(Finding("head", "the targets reach 7", "scale them", rule="targets"))
        note: targets in head: The targets reach 7. Try: Scale them.
        """
        where = f" in {self.module}" if self.module else ""
        evidence, advice = sentence(self.evidence, self.module), sentence(self.advice, self.module)
        return f"{self.severity}: {self.rule}{where}: {evidence} Try: {advice}"


@dataclass(frozen=True)
class Rule:
    """A rule that judges a training run.

    Pass your own to `HealthMonitor(rules=...)`, along with the names of built-in rules; in YAML, use the dotted path
    of the variable that holds it (`my_package.LARGE_BIAS`).

    Args:
        name: Its name in verdicts: letters, digits and underscores.
        judge: A function that takes a `Run` and returns the findings of the latest measured step. It is called after
            each measured step; if every step is measured, only once every 3 to 5 steps after the first few. If it
            raises, the rule is switched off with a warning, and training goes on.
        at_once: Whether one finding is enough for a verdict, and the rule is asked at every measured step. Otherwise a
            finding must last for the monitor's `window`. With `of="step"` it is so in any case.
        of: What it judges. `look`: each measured step. `evaluation`: also each evaluation loop; the last one of a fit
            has no measured step after it. `end`: the whole training, once; each finding is a verdict. `step`: the code
            of the first training step, for built-in rules only; each finding is a verdict too. Their `judge` is None
            if the findings come from watching the optimizers or from another rule.
        look_at: The tag of the chart or text that shows what the rule sees, such as `health/activation_rms`, for the
            table of verdicts.
        gives: Whether its verdicts are alarms, notes or both, for the documentation of the rule.

    Raises:
        ValueError: An argument is invalid, such as a name with other characters, or a `judge` that is not a function.

    Examples:
        >>> def judge(run):
        ...     for layer, rms in zip(run.layers, run.recent("activation_rms")[:, -1]):
        ...         if rms > 100:
        ...             yield Finding(layer.name, f"its outputs have an RMS of {rms:.3g}", "look at its weights")
        >>> Rule("huge_outputs", judge).name
        'huge_outputs'
    """

    name: str
    judge: Callable[[Any], Iterable[Finding]] | None
    at_once: bool = False
    of: Judged = "look"
    look_at: str = ""
    gives: Severities = "alarm or note"

    def __post_init__(self) -> None:
        check_identifier("name", self.name)
        check_name("of", self.of, get_args(Judged))
        if self.judge is not None or self.of != "step":
            check_function("judge", self.judge, "a function that takes a hookboard.Run")
        check_switches(at_once=self.at_once)
        check_text(look_at=self.look_at)
        check_name("gives", self.gives, get_args(Severities))


def rules_of(selected: "str | Rule | Sequence[str | Rule] | None", built_in: Mapping[str, Rule]) -> list[Rule]:
    """Resolve `rules=`: names of built-in rules, patterns over them (with `!`: excluded), dotted paths, `Rule` objects.

    >>> [rule.name for rule in rules_of("!a", {name: Rule(name, len) for name in ("a", "b")})]
    ['b']
    """
    if selected is None:
        return list(built_in.values())
    valid = "the name of a rule, a hookboard.Rule('my_name', function), or a list of these"
    included, excluded = parted(several("rules", selected, (str, Rule), valid, "to use all rules"))
    patterns = [each for each in included if isinstance(each, str) and is_pattern(each)]
    single = [each for each in included if each not in patterns]
    rules = [rule if isinstance(rule, Rule) else _named(rule, built_in) for rule in single]
    wanted = _matching(patterns, built_in) if included else set(built_in)
    rules += [rule for name, rule in built_in.items() if name in wanted and rule not in rules]
    for rule in rules:
        if rule.of == "step" and rule not in built_in.values():
            raise ValueError(f"rules: {rule.name!r} has of='step', which only built-in rules can have.")
    check_differ("rules", selected, [rule.name for rule in rules])
    unwanted = _matching(excluded, {*built_in, *(rule.name for rule in rules)})
    rules = [rule for rule in rules if rule.name not in unwanted]
    if not rules:
        raise ValueError(f"rules={quoted(selected)} selects no rule.")
    return rules


def _matching(patterns: Iterable[str], names: Collection[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        try:
            new = matched(pattern, names)
        except ValueError as error:
            raise ValueError(f"rules: {error}") from error
        if not new:
            raise _unknown("rule", pattern, sorted(names))
        found.update(new)
    return found


def rules_in(file: ModuleType) -> tuple[Rule, ...]:
    """Return the rules that a file defines, in their order there."""
    return tuple(value for value in vars(file).values() if isinstance(value, Rule))


def check_stop_on(selected: str | Sequence[str], asked: Sequence[str], built_in: Mapping[str, Rule]) -> None:
    """Raise ValueError if `stop_on=` has a name that is not that of a rule which is asked."""
    for name in several("stop_on", selected, str, f"one or more of: alarm, {', '.join(asked)}", "to never stop"):
        if name in built_in and name not in asked:
            raise ValueError(f"stop_on={selected!r}: {name!r} is not in rules= ({listed(asked)}); add it there.")
        if name not in ("alarm", *asked):
            raise _unknown("stop_on", name, ["alarm", *asked])


def _named(name: str, built_in: Mapping[str, Rule]) -> Rule:
    if name in built_in:
        return built_in[name]
    if "." not in name:
        raise _unknown("rule", name, built_in)
    return object_at(name, Rule, "rule")


def _unknown(kind: str, name: str, names: Iterable[str]) -> ValueError:
    return ValueError(f"{unknown(kind, name, names)} `hookboard explain` lists the built-in rules.")


CaseState = Literal["seen", "note", "alarm"]
"""The state of a case, see the table in `judge.py`; the others follow from its looks, the loss and other cases."""

Origin = Literal["looks", "step", "event"]
"""What shows a case: looks, of which it takes several; a single step, or its code; `Judge.add`, at its very step."""

Whereabouts = Literal["known", "open", "lost"]
"""Whether the module of an event is known; if not, whether its batch was searched for it in vain."""


@dataclass(eq=False)
class Case:
    """The findings of one rule at one module; its states are in the table of `judge.py`."""

    rule: str
    module: str
    since: int  # the step of the first finding
    finding: Finding
    origin: Origin = "looks"
    whereabouts: Whereabouts = "known"
    state: CaseState = "seen"
    last: int = 0  # the last step at which it was present: a rule may report what is over
    in_a_row: int = 0  # consecutive looks that showed it, of those at which its rule was asked
    missed: int = 0  # consecutive looks since then that did not show it
    of_streak: Severity = "note"
    streak: int = 0  # latest findings in a row that had the severity `of_streak`
    is_proven: bool = False  # an alarm of it was hard, an event, or while the loss showed no harm or was not finite
    size: float = 0.0
    severity: Severity = "note"  # what it is now, see `weigh`

    def add(self, finding: Finding, step: int, window: int, is_kept: bool = False) -> None:
        """Add the finding of the latest look; if `is_kept`, an alarm stays one although the finding is a note."""
        if finding.since is not None:
            self.since = finding.since
        self.finding, self.missed = finding, 0
        self.last = step if finding.until is None else max(self.last, finding.until)
        self.in_a_row += 1
        self.size = max(self.size, finding.size)
        severity = "alarm" if is_kept and self.state == "alarm" else finding.severity
        self.streak = self.streak + 1 if severity == self.of_streak else 1
        self.of_streak = severity
        enough = window if self.origin == "looks" and not finding.is_lasting else 1
        if self.streak >= enough:
            self.state = severity
        elif self.state == "seen" and self.in_a_row >= enough:
            self.state = "note"

    @property
    def is_said(self) -> bool:
        """Whether it has lasted long enough for a verdict."""
        return self.state != "seen"

    def weigh(self, window: int, may_be_harmed: bool, is_well: bool) -> None:
        """Set `severity`: that of the finding until it is said; then an alarm needs harm or proof, see `judge.py`."""
        is_certain = (self.finding.is_hard and not self.missed) or self.origin == "event"
        was_proven = self.is_proven and not is_well and (self.origin != "looks" or self.missed < window)
        is_alarm = self.state == "alarm" and (may_be_harmed or is_certain or was_proven)
        if self.is_said:
            self.severity = "alarm" if is_alarm else "note"
        else:
            self.severity = self.finding.severity

    def until(self, window: int) -> int | None:
        """Return the last step at which it was present; None while it lasts."""
        lasts = self.missed == 0 and (self.in_a_row >= window or self.origin == "looks" or self.finding.is_lasting)
        return None if lasts and self.finding.until is None else self.last

    def __str__(self) -> str:
        return f"{self.rule} in {self.module}" if self.module else self.rule
