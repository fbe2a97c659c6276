"""What `HealthMonitor` says of published faulty programs, of their fixes and of healthy ones.

python -m benchmarks.programs                  train all programs with HealthMonitor(), print a table and the sums
python -m benchmarks.programs --set held_out   those of one set: seen, held_out, newer or other_kinds
python -m benchmarks.programs --only ctc       those whose name or kind contains this
python -m benchmarks.programs --json FILE      the rows besides, with every alarm and every note
python -m benchmarks.programs --bare --seed 1  without a monitor, and with another seed than the one that is judged
"""

import argparse
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.health.runner import quiet
from benchmarks.programs.catalogue import SETS
from benchmarks.programs.rows import each, judged


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.programs", description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=list(SETS), help="which programs, if not all")
    parser.add_argument("--only", default="", help="programs whose name or kind contains this")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--bare", action="store_true", help="without a monitor")
    parser.add_argument("--seed", type=int, help="another than the one that is judged")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(given)
    judge = functools.partial(judged, seed=options.seed, with_monitor=not options.bare)
    rows = []
    for name in [options.set] if options.set else SETS:
        wanted = [known.name for known in SETS[name] if options.only.lower() in f"{known.name} {known.kind}".lower()]
        of_set = []
        for row in each(judge, wanted, options.processes):
            of_set.append(row)
            print(shown(row), flush=True)
        if of_set and not options.bare:
            print(*sums(name, of_set), sep="\n")
        rows += of_set
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, default=str))


def shown(row: dict[str, Any]) -> str:
    scores = " -> ".join(f"{score:.2g}" for score in row["scores"])
    lines = [f"{row['name']}: {row.get('fault') or row['kind']} ({scores}; {row['seconds']:.1f} s)"]
    if not row.get("learns", True):
        lines.append("    DOES NOT LEARN")
    for what, alarms in (("alarm", row.get("alarms", ())), ("FALSE", row["alarms_on_fix"])):
        lines += [f"    {what}: {said['rule']} {said['module'] or '-'}: {said['evidence']}" for said in alarms]
    if row.get("found") and not row["cause"]:
        lines.append("    no alarm names the cause")
    return "\n".join(lines)


def sums(name: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    def count(key: str, of: Sequence[dict[str, Any]]) -> int:
        return sum(row[key] for row in of)

    faulty, healthy = [row for row in rows if "found" in row], [row for row in rows if "found" not in row]
    yield (
        f"{name}: of {len(faulty)} faulty programs found {count('found', faulty)},"
        f" cause right {count('cause', faulty)}; false alarms on {count('false_alarm', faulty)} fixes"
    )
    if healthy:
        yield f"{name}: false alarms on {count('false_alarm', healthy)} of {len(healthy)} healthy programs"


if __name__ == "__main__":
    quiet()
    main()
