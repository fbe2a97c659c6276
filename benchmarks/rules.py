"""What each rule finds, and what it alone finds.

    python -m benchmarks.rules programs.json benchmarks/wild/run.json

The files are rows that `benchmarks.programs` and `benchmarks.wild` write with `--json`.
The planted runs are judged from the traces that `make bench-health` leaves, from their numbers alone: rules about the
code of the step see nothing there. A rule alone finds a fault if no other rule gives an alarm.
"""

import argparse
import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.document import table
from benchmarks.health.cases import Case, all_cases
from benchmarks.health.judge import alarms_of, judged
from benchmarks.health.runner import path_of
from benchmarks.health.trace import Trace

from hookboard.tracing.questions import RULES

PLANTED, PROGRAMS, PROJECTS = "planted", "programs", "projects"


class Ran(NamedTuple):
    """The rules that gave an alarm in a run."""

    of: str
    is_faulty: bool
    rules: frozenset[str]


def rules_in(verdicts: Iterable[dict[str, Any]]) -> frozenset[str]:
    return frozenset(one["rule"] for one in verdicts if one["severity"] == "alarm")


def rows_of(path: Path) -> Iterator[Ran]:
    """Yield the runs in a file of rows: of a program the faulty one and its fix, of a project one."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        if "verdicts" in row:
            yield Ran(PROJECTS, bool(row["fault"]), rules_in(row["verdicts"]))
        else:
            if "alarms" in row:
                yield Ran(PROGRAMS, True, rules_in(row["alarms"]))
            yield Ran(PROGRAMS, False, rules_in(row["alarms_on_fix"]))


def of_trace(case: Case) -> Ran | None:
    path = path_of(case)
    if not path.exists():
        return None
    alarms = alarms_of(judged(Trace.load(path)).verdicts)
    return Ran(PLANTED, case.kind == "plant", frozenset(alarm.says for alarm in alarms))


def lines(ran: Iterable[Ran]) -> Iterator[str]:
    found, alone, healthy = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
    for one in ran:
        for rule in one.rules:
            if not one.is_faulty:
                healthy[rule] += 1
            else:
                found[rule, one.of] += 1
                alone[rule, one.of] += len(one.rules) == 1

    def row(rule: str) -> list[str]:
        told = [
            f"{found[rule, of]} ({alone[rule, of]})" if found[rule, of] else "" for of in (PLANTED, PROGRAMS, PROJECTS)
        ]
        return [f"`{rule}`", *told, str(healthy[rule] or "")]

    of_all = {
        rule: [sum(each[rule, of] for of in (PLANTED, PROGRAMS, PROJECTS)) for each in (alone, found)] for rule in RULES
    }
    yield from table(
        "rule | planted | programs | projects | healthy", map(row, sorted(RULES, key=of_all.__getitem__, reverse=True))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, nargs="*")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        planted = [one for one in pool.imap(of_trace, list(all_cases()), chunksize=8) if one is not None]
    print("\n".join(lines([*planted, *(one for path in given.rows for one in rows_of(path))])))


if __name__ == "__main__":
    main()
