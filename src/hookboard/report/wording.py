"""Verdicts and lists of runs as lines for the terminal."""

import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hookboard.board import Board, LoggedRun, loss_tag, natural_key
from hookboard.patterns import folded
from hookboard.records import HEALTH

WIDTH = 100
"""Width of the output, in characters, as in the terminal while a run trains."""

Verdict = Mapping[str, Any]
"""A verdict of a record: the fields of `hookboard.Verdict`."""


def verdict_lines(run: LoggedRun) -> list[str]:
    """Return a run's headline and a paragraph for each card of its health record, as lines of at most WIDTH characters.

    A card is a group of verdicts, see `HealthRecord.cards`. The words are those of the summary at the end of a fit. One
    line says so if HealthMonitor did not watch the run.
    """
    if run.health is None:
        return [f"{run.name}: HealthMonitor did not watch this run."]
    lines = _wrapped(f"{run.name}: {run.health.headline}", "")
    for card in run.health.cards:
        lines += _wrapped(_paragraph(card, run.health.verdicts, run.health.layers), "  ")
    return lines


def _paragraph(card: Mapping[str, Any], verdicts: Sequence[Verdict], layers: Sequence[str]) -> str:
    """Return the paragraph of the health report on one card of a health record.

    Args:
        card: its `alike` and `effects`, see `HealthRecord.cards`.
        verdicts: all verdicts of the record.
        layers: the names of all layers, in order.
    """
    alike = [verdicts[place] for place in card["alike"]]
    said = [alike[0]["evidence"]]
    if len(alike) > 1:
        said.append(f"The same rule and advice hold for {len(alike)} layers: {_folded(alike, layers)}")
    if card["effects"]:
        groups = [[verdicts[place] for place in places] for places in card["effects"]]
        effects = (f"{group[0]['rule']}{' in ' * bool(_names(group))}{_folded(group, layers)}" for group in groups)
        said.append(f"What follows from it: {'; '.join(effects)}")
    if len(said) > 1:
        said = [f"{one.rstrip('.')}." for one in said]
    return f"{_title(alike[0])}: {' '.join(said)} Try: {alike[0]['advice']}"


def _folded(group: Sequence[Verdict], layers: Sequence[str]) -> str:
    names = set(_names(group))
    return folded(dict.fromkeys([*(name for name in layers if name in names), *_names(group)]), layers)


def _names(group: Iterable[Verdict]) -> list[str]:
    return [verdict["module"] for verdict in group if verdict["module"]]


def _title(verdict: Verdict) -> str:
    """Return how a verdict begins, for example "alarm: dead_units in net.1 from step 10 to 90"."""
    since, until, batch = verdict["since"], verdict["until"], verdict["batch_idx"]
    where = f" in {verdict['module']}" if verdict["module"] else ""
    when = f"since step {since}" if until is None else f"at step {since}"
    if until not in (None, since):
        when = f"from step {since} to {until}"
    return f"{verdict['severity']}: {verdict['rule']}{where} {when}{'' if batch is None else f' (batch {batch})'}"


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
