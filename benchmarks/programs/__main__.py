"""What `HealthMonitor` says of published faulty programs: `python -m benchmarks.programs`.

python -m benchmarks.programs                  train each program faulty and fixed, with HealthMonitor(), print a table
python -m benchmarks.programs --json FILE      the rows besides, with every alarm
python -m benchmarks.programs --every 5        with the Trainer's log_every_n_steps at 5 in place of Lightning's 50
python -m benchmarks.programs --harm           the scores without a monitor, by which the fix must beat the fault
python -m benchmarks.programs --set held_out   programs that no rule was written with, in place of those that were
python -m benchmarks.programs --set newer      a second set of such programs
python -m benchmarks.programs --only 31880720  programs whose name contains this
python -m benchmarks.programs --peer           what torchtest2 says of the same (benchmarks/programs/requirements.txt)
"""

import argparse
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.health.runner import quiet
from benchmarks.programs import peer
from benchmarks.programs.catalogue import HELD_OUT, NEWER, POSTS
from benchmarks.programs.rows import each, harm, judged

SETS = {"seen": POSTS, "held_out": HELD_OUT, "newer": NEWER}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.programs", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--every", type=int, default=50, help="the Trainer's log_every_n_steps")
    parser.add_argument("--harm", action="store_true", help="scores without a monitor on three seeds")
    parser.add_argument("--peer", action="store_true", help="let torchtest2 judge in place of hookboard")
    parser.add_argument("--set", choices=list(SETS), default="seen", help="which programs")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(given)
    names = [post.name for post in SETS[options.set] if options.only in post.name]
    if options.harm:
        for line in each(harm, names, options.processes):
            print(line, flush=True)
        return
    rows = []
    if options.peer:
        for row in each(peer.checked, names, options.processes):
            rows.append(row)
            print(f"| {row['post']} | {checks(row['failures'])} | {checks(row['failures_on_fix'])} |", flush=True)
        print(peer.sums(rows))
        return
    judge = functools.partial(judged, every=options.every)
    for row in each(judge, names, options.processes):
        rows.append(row)
        print(shown(row), flush=True)
    for line in sums(rows):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def checks(failures: Sequence[str]) -> str:
    return ", ".join(failure.split(":")[0] for failure in failures) or "-"


def shown(row: dict[str, Any]) -> str:
    def said(alarms: list[dict[str, Any]]) -> str:
        return ", ".join(f"{alarm['rule']} {alarm['module']}".strip() for alarm in alarms) or "-"

    cause = "yes" if row["cause"] else "no" if row["found"] else "-"
    repaired = (
        f"{len(row['repaired_seeds'])} of {len(row['harmed'])} seeds: {row['followed']}" if row["followed"] else "-"
    )
    wrong, right = row["scores"]
    return (
        f"| {row['post']} | {row['fault']} | {'yes' if row['found'] else 'no'} | {said(row['alarms'])} | {cause}"
        f" | {repaired} | {said(row['alarms_on_fix'])} | {wrong:.2g} -> {right:.2g} |"
    )


def sums(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the sums of all programs, and of those that people wrote."""
    yield sum_of("programs", rows)
    yield sum_of("of them by people", [row for row in rows if not row["post"].startswith("AutoTrainer")])


def sum_of(what: str, rows: Sequence[dict[str, Any]]) -> str:
    def count(key: str) -> int:
        return sum(row[key] for row in rows)

    return (
        f"{len(rows)} {what}: found {count('found')}, cause right {count('cause')},"
        f" repaired by the first advice {count('repaired')} ({sum(bool(row['followed']) for row in rows)} could be"
        f" followed by a script), false alarms on fixes {count('false_alarm')}"
    )


if __name__ == "__main__":
    quiet()
    main()
