"""Verdicts and lists of runs as lines for the terminal."""

import textwrap
import time
from collections.abc import Iterable, Iterator
from typing import Any

from hookboard.board import Board, LoggedRun, loss_tag, natural_key
from hookboard.records import HEALTH

WIDTH = 100
"""Width of the output, in characters, as in the terminal while a run trains."""


def verdict_lines(run: LoggedRun) -> list[str]:
    """Return a run's headline and the paragraphs of its health record, as lines of at most WIDTH characters.

    One line says so if HealthMonitor did not watch the run.
    """
    if run.health is None:
        return [f"{run.name}: HealthMonitor did not watch this run."]
    lines = _wrapped(f"{run.name}: {run.health.headline}", "")
    for paragraph in run.health.texts:
        lines += _wrapped(paragraph, "  ")
    return lines


def _wrapped(text: str, start: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent=start, subsequent_indent="    ", break_on_hyphens=False
    )


def run_lines(board: Board, names: Iterable[str]) -> Iterator[str]:
    """Yield the header and the lines of a table of runs, the sickest first; runs without a health record come last."""
    table = sorted((_line_of(board, name) for name in names), key=lambda line: line[0])
    yield f"{'alarms':>6} {'notes':>6} {'steps':>9}  {'last look':16}  {'loss':24}  run"
    yield from (text for _, text in table)


def _line_of(board: Board, name: str) -> tuple[tuple[Any, ...], str]:
    """Return the sort key and the line of a run."""
    run, source = board.logged_run(name), board.source
    looks = source.last_tensors(run=name).get(name, {})
    seen, alarms, notes = "-", "-", "-"
    rank: tuple[Any, ...] = (True, 0, 0, natural_key(name))
    if run.health is not None:
        count = sum(verdict["severity"] == "alarm" for verdict in run.health.verdicts)
        others = len(run.health.verdicts) - count
        alarms, notes, rank = str(count), str(others), (False, -count, -others, natural_key(name))
        seen = time.strftime("%Y-%m-%d %H:%M", time.localtime(looks[HEALTH].wall_time))
    tag = loss_tag(source.last_scalars(name).get(name, {}))
    loss = "-"
    if tag and len(values := source.scalars(name, [tag])[tag].values):
        loss = f"{values[-1]:.4g} {tag}"
    return rank, f"{alarms:>6} {notes:>6} {run.last_step:>9}  {seen:16}  {loss:24}  {name}"
