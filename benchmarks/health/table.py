"""The table: how much of the planted is found, located, dated and named, and how often the healthy are alarmed of."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.health.alarms import Alarm, Score, score
from benchmarks.health.cases import Case
from benchmarks.health.halves import Half
from benchmarks.health.harm import did_harm
from benchmarks.health.judge import WINDOW, alarms_of, judged, order_of
from benchmarks.health.published import PUBLISHED
from benchmarks.health.trace import Trace

Traces = Mapping[Case, Trace]
Judging = Callable[[Trace], list[Alarm]]

JUDGES: dict[str, Judging] = {"hookboard": lambda trace: alarms_of(judged(trace).verdicts), **PUBLISHED}


@dataclass
class Result:
    """How one judge did.

    Args:
        scores: of every planted run.
        false: what was said first of every healthy run that was alarmed of.
        healthy: how many healthy runs there were.
    """

    scores: dict[Case, tuple[Score, Alarm | None]] = field(default_factory=dict)
    false: dict[Case, Alarm] = field(default_factory=dict)
    healthy: int = 0

    def share(self, name: str) -> float:
        right = [bool(getattr(score, name)) for score, _ in self.scores.values()]
        return sum(right) / max(1, len(right))


def harmless(traces: Traces) -> set[tuple[str, str]]:
    """Name and base of the plants that did no harm and are no defect by themselves: they are controls."""
    pairs: dict[tuple[str, str], list[Case]] = {}
    for case in traces:
        if case.kind == "plant":
            pairs.setdefault((case.name, case.base), []).append(case)
    found = set()
    for (name, base), cases in pairs.items():
        healthy = [trace for case, trace in traces.items() if case.kind == "base" and case.base == base]
        planted = [traces[case] for case in cases]
        if not planted[0].truth.by_itself and healthy and not did_harm(planted, healthy):
            found.add((name, base))
    return found


def results(traces: Traces, half: Half) -> dict[str, Result]:
    """The result of each judge on one half."""
    controls = harmless(traces)
    found = {name: Result() for name in JUDGES}
    for case, trace in sorted(traces.items()):
        if case.half != half:
            continue
        is_healthy = case.kind != "plant" or (case.name, case.base) in controls
        order = order_of(trace)
        for name, judging in JUDGES.items():
            alarms, result = judging(trace), found[name]
            if is_healthy:
                result.healthy += 1
                result.false |= {case: alarms[0]} if alarms else {}
            else:
                slack = 2 * WINDOW * trace.every
                result.scores[case] = score(alarms, trace.truth, order, slack), alarms[0] if alarms else None
    return found


def lines(traces: Traces, half: Half) -> Iterable[str]:
    """The table as Markdown, the misses of hookboard, and what was moved to the controls."""
    found = results(traces, half)
    ours = found["hookboard"]
    plants = {(case.name, case.base) for case in ours.scores}
    yield f"## The {half} half: {len(ours.scores)} planted runs ({len({name for name, _ in plants})} faults, "
    yield f"{len({base for _, base in plants})} architectures), {ours.healthy} healthy runs"
    yield ""
    yield "| rules | found | located | onset | cause | false alarms |"
    yield "|---|---|---|---|---|---|"
    for name, result in found.items():
        shares = " | ".join(f"{result.share(part):.0%}" for part in ("found", "located", "onset", "cause"))
        false = f"{len(result.false)} of {result.healthy} ({len(result.false) / max(1, result.healthy):.0%})"
        yield f"| {name} | {shares} | {false} |"
    yield ""
    yield from _misses(ours, traces)
    yield from _false_alarms(ours)
    moved = ", ".join(f"{name} in {base}" for name, base in sorted(harmless(traces)))
    yield f"\nPlants that did no harm, and are controls: {moved or 'none'}."


def _misses(result: Result, traces: Traces) -> Iterable[str]:
    yield "| missed by hookboard | what is wrong | said first | true |"
    yield "|---|---|---|---|"
    for case, (scored, alarm) in result.scores.items():
        wrong = [part for part in ("found", "located", "onset", "cause") if not getattr(scored, part)]
        if not wrong:
            continue
        truth = traces[case].truth
        said = f"{alarm.says} at {alarm.module or 'the model'} since {alarm.since}" if alarm else "nothing"
        places = ", ".join(place or "the model" for place in sorted(truth.places)[:4])
        true = f"{' or '.join(sorted(truth.causes)) or 'no rule'} at {places} since {truth.onset[0]}"
        parts = ", ".join(wrong) if alarm else "all"
        yield f"| {case.name} in {case.base}, seed {case.seed} | {parts} | {said} | {true} |"


def _false_alarms(result: Result) -> Iterable[str]:
    for case, alarm in result.false.items():
        said = f"{alarm.says} at {alarm.module or 'the model'} since {alarm.since}"
        yield f"| false alarm: {case.name} in {case.base}, seed {case.seed} | | {said} | healthy |"
