"""The table: how much of the planted is found, located, dated and named, and how often the healthy are alarmed of."""

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.health.alarms import Alarm, Score, score
from benchmarks.health.cases import Case, Truth
from benchmarks.health.halves import Half
from benchmarks.health.harm import harmless
from benchmarks.health.judge import WINDOW, alarms_of, judged, order_of
from benchmarks.health.published import PUBLISHED
from benchmarks.health.runner import path_of
from benchmarks.health.trace import Head, Trace

PARTS = ("found", "located", "onset", "cause")

JUDGES: dict[str, Callable[[Trace], list[Alarm]]] = {
    "hookboard": lambda trace: alarms_of(judged(trace).verdicts),
    **PUBLISHED,
}


@dataclass(frozen=True)
class Said:
    """What all judges say of a run.

    Args:
        case: the run.
        truth: what is true of it.
        first: the first alarm of each judge, by its name; None if it gives none.
        scores: how right that alarm is.
    """

    case: Case
    truth: Truth
    first: dict[str, Alarm | None]
    scores: dict[str, Score]


@dataclass
class Result:
    """How one judge did.

    Args:
        scores: of every planted run.
        false: the healthy runs that it gives an alarm of.
        healthy: how many healthy runs there were.
    """

    scores: list[Score] = field(default_factory=list)
    false: list[Case] = field(default_factory=list)
    healthy: int = 0

    def row(self, name: str) -> str:
        parts = [[bool(getattr(score, part)) for score in self.scores] for part in PARTS]
        shares = " | ".join(f"{sum(right) / max(1, len(right)):.0%}" for right in parts)
        return f"| {name} | {shares} | {len(self.false)} of {self.healthy} |"


Others = Mapping[str, Mapping[Case, list[Alarm]]]
"""The alarms of monitors that have watched the trainings themselves, by name and case."""


def said_of(case: Case, others: Mapping[str, list[Alarm]]) -> Said:
    """Ask all judges of the trace of a case, and add what others said of it."""
    trace = Trace.load(path_of(case))
    order, slack = order_of(trace), 2 * WINDOW * trace.every
    alarms = {name: judging(trace) for name, judging in JUDGES.items()} | dict(others)
    first = {name: given[0] if given else None for name, given in alarms.items()}
    return Said(case, trace.truth, first, {n: score(a, trace.truth, order, slack) for n, a in alarms.items()})


def lines(cases: Sequence[Case], half: Half, processes: int, others: Others | None = None) -> Iterable[str]:
    """The table as Markdown, what hookboard misses, and what was moved to the controls.

    Args:
        cases: all of which there are traces; those of the other half only tell of harm.
        half: the half to judge.
        processes: how many judge at once.
        others: monitors that get a row too.
    """
    others = others or {}
    controls = harmless({case: Head.of(path_of(case)) for case in cases})
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        of_half = [case for case in cases if case.half == half]
        jobs = [(case, {name: alarms.get(case, []) for name, alarms in others.items()}) for case in of_half]
        said = pool.starmap(said_of, jobs, chunksize=8)
    planted = [one for one in said if one.case.kind == "plant" and (one.case.name, one.case.base) not in controls]
    healthy = [one for one in said if one not in planted]
    faults, bases = {one.case.name for one in planted}, {one.case.base for one in planted}
    configurations = {(one.case.name, one.case.base) for one in healthy}
    yield f"The {half} half: {len(planted)} planted runs ({len(faults)} faults, {len(bases)} architectures), "
    yield f"{len(healthy)} healthy runs ({len(configurations)} configurations)."
    yield ""
    yield f"| rules | {' | '.join(PARTS)} | false alarms |"
    yield "|---|---|---|---|---|---|"
    for name in [*JUDGES, *others]:
        scores = [one.scores[name] for one in planted]
        yield Result(scores, [one.case for one in healthy if one.first[name]], len(healthy)).row(name)
    yield ""
    yield from _misses(planted)
    yield from _false_alarms(healthy)
    yield ""
    moved = ", ".join(f"{name} in {base}" for name, base in sorted(controls))
    yield f"Plants that did no harm, and are controls: {moved or 'none'}."


def _misses(planted: Iterable[Said]) -> Iterable[str]:
    yield "| of hookboard | wrong | said first | true |"
    yield "|---|---|---|---|"
    for one in planted:
        wrong = [part for part in PARTS if not getattr(one.scores["hookboard"], part)]
        if wrong:
            alarm, truth = one.first["hookboard"], one.truth
            places = ", ".join(place or "the model" for place in sorted(truth.places)[:4])
            true = f"{' or '.join(sorted(truth.causes)) or 'no rule'} at {places} since {truth.onset[0]}"
            yield f"| {_title(one)} | {', '.join(wrong) if alarm else 'not found'} | {_told(alarm)} | {true} |"


def _false_alarms(healthy: Iterable[Said]) -> Iterable[str]:
    for one in healthy:
        if one.first["hookboard"]:
            yield f"| {_title(one)} | false alarm | {_told(one.first['hookboard'])} | healthy |"


def _title(one: Said) -> str:
    return f"{one.case.name} in {one.case.base}, seed {one.case.seed}"


def _told(alarm: Alarm | None) -> str:
    return f"{alarm.says} at {alarm.module or 'the model'} since {alarm.since}" if alarm else "nothing"
