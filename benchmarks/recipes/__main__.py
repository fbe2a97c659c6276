"""What `HealthMonitor` says of healthy trainings of others: `python -m benchmarks.recipes`.

pip install -r benchmarks/recipes/requirements.txt   timm, transformers and peft; without one its recipes are left out
python -m benchmarks.recipes                         train each with HealthMonitor(), print a table and the sums
python -m benchmarks.recipes --json FILE             the rows besides, with every alarm
python -m benchmarks.recipes --only timm             recipes whose name contains this
python -m benchmarks.recipes --half report           those of one half
python -m benchmarks.recipes --bare                  without a monitor: whether each learns
"""

import argparse
import functools
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.health.runner import quiet
from benchmarks.programs.rows import each
from benchmarks.recipes.catalogue import RECIPES, run_by_name


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.recipes", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", default="", help="recipes whose name contains this")
    parser.add_argument("--half", choices=("tuning", "report"), help="those of one half")
    parser.add_argument("--bare", action="store_true", help="without a monitor")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(given)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    wanted = [recipe for recipe in RECIPES if options.only in recipe.name and options.half in (None, recipe.half)]
    rows = []
    names = [recipe.name for recipe in wanted if recipe.can_run]
    train = functools.partial(run_by_name, with_monitor=not options.bare)
    for row in each(train, names, options.processes):
        rows.append(row)
        print(shown(row), flush=True)
    print(*sums(rows), sep="\n")
    missing = [recipe.name for recipe in wanted if not recipe.can_run]
    if missing:
        print(f"left out, as their package is missing: {', '.join(missing)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def shown(row: dict[str, Any]) -> str:
    said = ", ".join(f"{alarm['rule']} {alarm['module']}".strip() for alarm in row["alarms"]) or "-"
    loss = " -> ".join(f"{value:.3g}" for value in row["loss"]) or "two losses"
    learned = "" if row["learned"] else " NOT LEARNED"
    return f"| {row['name']} | {row['half']} | {said} | {loss}{learned} | {row['seconds']:.1f} s |"


def sums(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Yield how many recipes of each half have an alarm, and by which rules; what did not learn does not count."""
    for half in sorted({row["half"] for row in rows}, reverse=True):
        of_half = [row for row in rows if row["half"] == half and row["learned"]]
        rules = Counter(rule for row in of_half for rule in {alarm["rule"] for alarm in row["alarms"]})
        named = ", ".join(f"{rule} {count}" for rule, count in rules.most_common()) or "none"
        yield f"{half}: {sum(bool(row['alarms']) for row in of_half)} of {len(of_half)} recipes with an alarm ({named})"
    idle = [row["name"] for row in rows if not row["learned"]]
    if idle:
        yield f"not counted, as they did not learn: {', '.join(idle)}"


if __name__ == "__main__":
    quiet()
    main()
