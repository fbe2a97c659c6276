"""Replays a trace through hookboard's rules, as `HealthMonitor` would judge it live from the numbers alone."""

from collections.abc import Sequence

from benchmarks.health.alarms import Alarm
from benchmarks.health.trace import Trace

from hookboard.health.judge import Judge
from hookboard.health.rule import Rule, Verdict
from hookboard.tracing.questions import RULES

WINDOW = 3
"""How many looks a finding must last, as by default."""


def judged(trace: Trace, rules: Sequence[Rule] | None = None, window: int = WINDOW) -> Judge:
    """The judge after the last entry of a trace."""
    judge = Judge(list(RULES.values()) if rules is None else rules, trace.layers, window)
    for name, given, named in trace.entries:
        # Other tools have nothing but numbers: what is known from the code of the step is left out.
        getattr(judge, name)(*(given[:1] if name == "see" else given), **named)
    return judge


def alarms_of(verdicts: Sequence[Verdict]) -> list[Alarm]:
    return [Alarm(v.rule, v.module, v.since, frozenset({v.rule})) for v in verdicts if v.severity == "alarm"]


def order_of(trace: Trace) -> list[str]:
    """The layers that ran, in the order of the first look."""
    names = [site.name for look in trace.looks[:1] for site in look.readings if site.role == "output"]
    return list(dict.fromkeys(names))
