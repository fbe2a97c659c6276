"""What a monitor says of a program: a row of the table, made in a process of its own."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.health.runner import quiet
from benchmarks.programs.catalogue import SETS
from benchmarks.programs.program import Case, Healthy, Learner, trained

from hookboard import HealthMonitor

HARM_MARGIN = 0.1
"""A fix scores so much better than its fault, or what is said of it is no false alarm: some diverge with the rounding
of a machine."""


def each(act: Callable[[str], Any], names: Sequence[str], processes: int) -> Iterator[Any]:
    if processes == 1:
        yield from map(act, names)
        return
    with multiprocessing.get_context("spawn").Pool(processes, quiet) as pool:
        yield from pool.imap(act, names)


def judged(name: str, seed: int | None = None, with_monitor: bool = True) -> dict[str, Any]:
    """Train a healthy program, or one faulty and fixed; returns its row.

    Args:
        name: of the program.
        seed: draws all that is drawn; None for the one that is judged.
        with_monitor: at its defaults; without one the row has scores and no alarms.
    """
    known = next(known for programs in SETS.values() for known in programs if known.name == name)
    seed = known.seed if seed is None else seed
    if isinstance(known, Healthy):
        score, seconds, said = watched(known.build, seed, with_monitor)
        alarms = alarms_of(said)
        row = {"learns": score >= known.least, "false_alarm": bool(alarms)}
        return {"name": name, "kind": known.kind, **row, "scores": [score], "seconds": seconds, "alarms_on_fix": alarms}
    wrong, of_wrong, said = watched(lambda: known.build(False), seed, with_monitor)
    right, of_right, said_of_fix = watched(lambda: known.build(True), seed, with_monitor)
    alarms, alarms_on_fix = alarms_of(said), alarms_of(said_of_fix)
    return {
        "name": name,
        "kind": known.kind,
        "source": known.source,
        "fault": known.fault,
        "found": bool(alarms),
        "cause": bool(alarms) and names_cause(known, alarms),
        "false_alarm": bool(alarms_on_fix) and is_harm(wrong, right),
        "scores": [wrong, right],
        "seconds": of_wrong + of_right,
        "alarms": alarms,
        "notes": [one for one in said if one["severity"] != "alarm"],
        "alarms_on_fix": alarms_on_fix,
    }


def watched(build: Callable[[], Learner], seed: int, with_monitor: bool) -> tuple[float, float, list[dict[str, Any]]]:
    """Train a program; returns its score, the seconds, and what the monitor said."""
    monitor = HealthMonitor()
    done = trained(build, seed, [monitor] if with_monitor else [])
    return done.score, done.seconds, [vars(said) for said in monitor.verdicts] if with_monitor else []


def alarms_of(verdicts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [said for said in verdicts if said["severity"] == "alarm"]


def is_harm(wrong: float, right: float) -> bool:
    return right - wrong >= HARM_MARGIN


def names_cause(known: Case, alarms: Sequence[dict[str, Any]]) -> bool:
    """Whether the first alarm is from one of the right rules, or any alarm has one of the words of the cause."""
    if known.causes:
        return alarms[0]["rule"] in known.causes
    said = " ".join(str(alarm[what]) for alarm in alarms for what in ("rule", "evidence", "advice")).lower()
    return any(word.lower() in said for word in known.words)
