"""What `HealthMonitor` says of real projects, each in an environment of its own: `python -m benchmarks.wild`.

python -m benchmarks.wild --install                  make the environments; a minute and up to 1 GB each
python -m benchmarks.wild --install --only zuko      one of them
python -m benchmarks.wild                            train the installed ones, print a table and the sums
python -m benchmarks.wild --faults                   with the fault that is planted in each, too
python -m benchmarks.wild --json FILE                put the rows into this file, too, with every verdict
python -m benchmarks.wild --table FILE               print the table of such a file, train nothing
"""

import argparse
import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.health.runner import quiet
from benchmarks.wild.catalogue import PROJECTS
from benchmarks.wild.environment import DEFAULT_FOLDER, START, install, is_installed, python_of, variables

FAULTS = {
    "rate": ("update_too_large",),
    "targets": ("targets", "input_scale"),
    "loss": ("loss_input", "loss_shape", "output_range", "targets", "unbounded_loss"),
    "dropout": ("dropout",),
    "frozen": ("not_updated", "not_in_optimizer"),
}
"""A kind of fault, and the rules that name it: the first alarm must be one of theirs, or its advice one of `WORDS`."""

WORDS = {"rate": "lower the learning rate"}

MINUTES = 30
"""A training that takes longer is ended."""


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.wild", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="the project of this name; can be repeated")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="of the environments")
    parser.add_argument("--install", action="store_true", help="make the environments")
    parser.add_argument("--faults", action="store_true", help="plant the faults, too")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--table", type=Path, help="print the table of this file")
    parser.add_argument("--processes", type=int, default=1, help="how many projects at once")
    options = parser.parse_args(given)
    if options.table:
        print(*table(json.loads(options.table.read_text())), sep="\n")
        return
    wanted = [project for project in PROJECTS if not options.only or project.name in options.only]
    if options.install:
        for project in wanted:
            failure = "" if is_installed(project, options.folder) else install(project, options.folder)
            print(f"{project.name}: {failure or 'installed'}", flush=True)
        return
    missing = [project.name for project in wanted if not is_installed(project, options.folder)]
    ready = [project.name for project in wanted if project.name not in missing]
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.processes) as pool:  # each thread waits for a process of its own
        for done in as_completed([pool.submit(train, options.folder, options.faults, name) for name in ready]):
            rows += done.result()
            print(*map(shown, done.result()), sep="\n", flush=True)
            if options.json:
                keep(done.result(), options.json)
    print(*sums(rows), sep="\n")
    if missing:
        print(f"left out, as they are not installed: {', '.join(missing)}")


def train(folder: Path, faults: bool, name: str) -> list[dict[str, Any]]:
    """Train a project in its environment; returns its rows."""
    project = next(project for project in PROJECTS if project.name == name)
    log = folder / name / "log.txt"
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "rows.json")
        inside = [python_of(folder / name), "-c", START, name, file, *project.variants]
        inside += ["--faulty"] * faults
        # A project that crashes or takes too long keeps the rows that it has written.
        with log.open("w") as out, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(inside, cwd=temporary, env=variables(), stdout=out, stderr=out, timeout=60 * MINUTES)
        rows = json.loads(file.read_text()) if file.exists() else []
    wanted = [(variant, "") for variant in project.variants] + [(project.variants[0], "?")] * faults
    lost = {"error": f"no row: see {log.name} of its environment", "loss": [], "learned": False, "identical": None}
    return rows + [
        {"name": name, "variant": variant, "fault": fault, "verdicts": [], **lost}
        for variant, fault in wanted[len(rows) :]
    ]


def keep(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Put rows into a file of rows, in place of those of the same trainings."""

    def key(one: dict[str, Any]) -> tuple[str, str, bool]:
        return one["name"], one["variant"], bool(one["fault"])

    kept = json.loads(file.read_text()) if file.exists() else []
    new = {key(row) for row in rows}
    kept = [*(one for one in kept if key(one) not in new), *rows]
    file.write_text(json.dumps(sorted(kept, key=key), indent=1) + "\n")


def alarms(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [said for said in row["verdicts"] if said["severity"] == "alarm"]


def is_named(row: dict[str, Any]) -> bool:
    """Return whether the first alarm names the fault."""
    first = alarms(row)[:1]
    return any(
        said["rule"] in FAULTS.get(row["fault"], ()) or WORDS.get(row["fault"], "\n") in said["advice"].lower()
        for said in first
    )


def shown(row: dict[str, Any]) -> str:
    said = ", ".join(f"`{alarm['rule']}` {alarm['module']}".strip() for alarm in alarms(row)) or "-"
    notes = len(row["verdicts"]) - len(alarms(row))
    loss = " to ".join(f"{value:.3g}" for value in row["loss"])
    state = row["error"] or ("" if row["learned"] or row["fault"] else "not learned")
    if row["fault"]:
        state = state or ("named" if is_named(row) else "found" if alarms(row) else "missed")
    same = {True: "yes", False: "NO", None: ""}.get(row["identical"], "not repeatable")
    name = f"{row['name']} {row['variant']}".strip()
    return f"| {name} | {row['fault'] or 'healthy'} | {said} | {notes} | {loss} | {same} | {state} |"


def table(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    yield "| project | fault | alarms | notes | loss, first to last fifth | bit-identical | |"
    yield "|---|---|---|---|---|---|---|"
    yield from (shown(row) for row in rows if not row["fault"])
    yield from (shown(row) for row in rows if row["fault"])
    yield ""
    yield from sums(rows)
    absent = sorted({project.name for project in PROJECTS} - {row["name"] for row in rows})
    if absent:
        yield f"not run yet: {', '.join(absent)}"


def sums(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Yield how many healthy projects have an alarm, and how many faults are found and named; by kind, too."""
    healthy = [row for row in rows if not row["fault"] and row["learned"] and not row["error"]]
    told = {row["name"] for row in healthy if alarms(row)}
    yield f"{len(told)} of {len({row['name'] for row in healthy})} healthy projects with an alarm"
    yield f"{sum(bool(alarms(row)) for row in healthy)} of {len(healthy)} healthy trainings with an alarm"
    differ = [row["name"] for row in healthy if row["identical"] is False]
    yield f"{len(differ)} of them differ from the plain run {', '.join(differ)}".strip()
    for kind in ("", *FAULTS):
        planted = [row for row in rows if row["fault"] and kind in ("", row["fault"]) and not row["error"]]
        if planted:
            found, named = (sum(bool(is_so(row)) for row in planted) for is_so in (alarms, is_named))
            yield f"{kind or 'faults'}: {found} of {len(planted)} found, {named} named first"
    idle = [row["name"] for row in rows if not row["fault"] and row not in healthy]
    if idle:
        yield f"not counted, as they did not run or learn: {', '.join(idle)}"


if __name__ == "__main__":
    quiet()
    main()
