"""How many steps before the loss has doubled a monitor warns, and whether it warns of noisy trainings.

python -m benchmarks.early                 all programs: bare, with HealthMonitor(), and with every_n_steps=10
python -m benchmarks.early --only router   programs whose kind or name contains this
python -m benchmarks.early --bare          without a monitor: the step at which each loss has doubled
python -m benchmarks.early --loss          the same, and how early the loss alone warns
python -m benchmarks.early --json FILE     the rows besides, with every verdict
python -m benchmarks.early --table FILE    the rows besides, as a table in Markdown
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.document import table
from benchmarks.early import divergent, healthy  # noqa: F401  # each enters its programs
from benchmarks.early.loss_alone import loss_rows
from benchmarks.early.program import PROGRAMS, Program, doubling, trained
from benchmarks.health.runner import quiet
from lightning.pytorch import Callback, LightningModule, Trainer

from hookboard import HealthMonitor

WARNS = frozenset(
    {
        "activation_scale",
        "experts",
        "input_scale",
        "nonfinite",
        "precision",
        "spike",
        "update_too_large",
    }
)
"""The rules that warn of a divergence, chosen by their descriptions before any program had been watched."""

LOOKS: dict[str, int | None] = {"default": None, "every 10": 10}
"""How often a monitor looks, by the name of the column; None leaves `every_n_steps` out."""


class Sayings(Callback):
    """Keeps the batch after which each verdict of a monitor was there first; stands behind it."""

    def __init__(self, monitor: HealthMonitor) -> None:
        self.monitor = monitor
        self.said: dict[tuple[str, str, str], dict[str, Any]] = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._look(trainer.fit_loop.total_batch_idx)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look(trainer.fit_loop.total_batch_idx + 1)

    def _look(self, step: int) -> None:
        for each in self.monitor.verdicts:
            known = each.rule, each.module, each.severity
            if known not in self.said:
                self.said[known] = {"step": step, "warns": each.rule in WARNS, **vars(each)}


def watched(given: Program, every: int | None) -> list[dict[str, Any]]:
    """The verdicts on a program, in the order in which they came."""
    monitor = HealthMonitor(every_n_steps=every)
    sayings = Sayings(monitor)
    trained(given, [monitor, sayings])
    return [*sayings.said.values()]


def row_of(given: Program, is_bare: bool) -> dict[str, Any]:
    losses = trained(given)
    said = {} if is_bare else {name: watched(given, every) for name, every in LOOKS.items()}
    return {"name": given.name, "kind": given.kind, "doubles": doubling(losses), "losses": losses, "said": said}


def first_warning(row: dict[str, Any], looks: str, severities: Sequence[str] = ("note", "alarm")) -> Any:
    """The first verdict that warns of a divergence; None if there is none."""
    return next((each for each in row["said"][looks] if each["warns"] and each["severity"] in severities), None)


def ahead(row: dict[str, Any], looks: str) -> int | None:
    """The steps from the first warning to the doubling; 0 or less if it came too late, None if it never did."""
    first = first_warning(row, looks)
    return None if first is None else row["doubles"] - first["step"]


def shown(row: dict[str, Any]) -> str:
    doubles = "never" if row["doubles"] is None else f"at {row['doubles']}"
    lines = [f"{row['kind']:10} {row['name']}: doubles {doubles}"]
    for looks, said in row["said"].items():
        first = first_warning(row, looks)
        text = "no warning" if first is None else f"{first['severity']} {first['rule']} at {first['step']}"
        if first is not None and row["doubles"] is not None:
            text += f", {ahead(row, looks)} ahead"
        others = [f"{each['rule']} {each['step']}" for each in said if not each["warns"]]
        lines.append(f"    {looks:9} {text}{'; others: ' if others else ''}{', '.join(others)}")
    return "\n".join(lines)


def told(row: dict[str, Any], looks: str) -> str:
    """The first warning as a cell of a table."""
    first = first_warning(row, looks)
    if first is None:
        return "none"
    cell = f"{first['severity']} `{first['rule']}` at {first['step']}"
    return cell if row["doubles"] is None else f"{cell}, **{ahead(row, looks):+}**"


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of the trainings that diverge, and of one of the noisy ones, in Markdown."""
    columns = [f"`HealthMonitor({'' if every is None else f'every_n_steps={every}'})`" for every in LOOKS.values()]
    falling = [row for row in rows if row["kind"] != "healthy"]
    yield from table(
        " | ".join(["kind", "training", "doubles at", *columns]),
        ([row["kind"], row["name"], str(row["doubles"]), *(told(row, looks) for looks in LOOKS)] for row in falling),
    )
    yield ""
    noisy = [row for row in rows if row["kind"] == "healthy"]
    others = [
        ", ".join(
            dict.fromkeys(f"`{each['rule']}`" for said in row["said"].values() for each in said if not each["warns"])
        )
        for row in noisy
    ]
    yield from table(
        " | ".join(["noisy training", *columns, "other verdicts"]),
        (
            [row["name"], *(told(row, looks) for looks in LOOKS), other]
            for row, other in zip(noisy, others, strict=True)
        ),
    )


def sums(rows: Sequence[dict[str, Any]], looks: str) -> Iterator[str]:
    """Yield how many were warned of in time, by kind, and the noisy ones that were warned of."""
    falling = [row for row in rows if row["kind"] != "healthy"]
    others = [row for row in rows if row["kind"] == "healthy"]
    for kind in dict.fromkeys(row["kind"] for row in falling):
        of_kind = [ahead(row, looks) for row in falling if row["kind"] == kind]
        steps = sorted(each for each in of_kind if each is not None and each > 0)
        text = f", {median(steps):g} steps ahead in the median ({steps[0]} to {steps[-1]})" if steps else ""
        yield f"{looks}: {kind}: {len(steps)} of {len(of_kind)} in time{text}"
    in_time = sum((ahead(row, looks) or 0) > 0 for row in falling)
    false = [row["name"] for row in others if first_warning(row, looks)]
    alarms = sum(first_warning(row, looks, ["alarm"]) is not None for row in others)
    yield f"{looks}: {in_time} of {len(falling)} in time; {len(false)} of {len(others)} noisy, {alarms} by an alarm"
    yield from (f"    {name}" for name in false)


def main(given: Sequence[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="benchmarks.early", description=__doc__.splitlines()[0])
    parser.add_argument("--bare", action="store_true", help="without a monitor")
    parser.add_argument("--loss", action="store_true", help="without a monitor, and how early the loss alone warns")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--table", type=Path, help="write tables of the rows to this file")
    parser.add_argument("--only", default="", help="programs whose kind or name contains this")
    options = parser.parse_args(given)
    rows = []
    for known in PROGRAMS:
        if options.only.lower() in f"{known.kind} {known.name}".lower():
            rows.append(row_of(known, options.bare or options.loss))
            print(shown(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1, default=str))
    for looks in () if options.bare or options.loss else LOOKS:
        print("\n".join(sums(rows, looks)))
    if options.loss:
        print("\n".join(loss_rows(rows)))
    if options.table:
        options.table.write_text("\n".join([*tables(rows), ""]))


if __name__ == "__main__":
    quiet()
    main()
