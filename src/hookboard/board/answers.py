"""The answers that a report holds: those of the tab's server, with fewer columns and digits."""

import base64
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hookboard.board.board import Answer, Board
from hookboard.board.logged_run import LoggedRun
from hookboard.board.plugin import picture_type

Request = list[str]
"""A route and its parameters, in the order in which the page gives them, without `columns`."""

DIGITS = 4
"""How many significant digits numbers have."""

MAX_HISTOGRAM_STEPS, MAX_HISTOGRAM_NUMBERS = 30, 100_000
"""Maximum number of steps of a histogram, and of numbers in all histograms."""

MAX_PICTURE_BYTES = 1_000_000
"""Maximum size of all pictures together."""

MIN_LIST = 8
"""Minimum length of a list that `pooled` stores once and refers to."""


def answers_of(board: Board, names: Sequence[str], columns: int) -> list[tuple[Request, Answer]]:
    """Return each request that the page may make of some runs, with the answer."""
    listed = {"runs": [run for run in board.runs()["runs"] if run["name"] in names], "hint": ""}
    found: list[tuple[Request, Answer]] = [(["runs"], listed)]
    runs = [board.logged_run(name) for name in names]
    room = _Room()
    for run in runs:
        found += [*_maps(board, run, runs, columns), *_layers(board, run, room)]
    for run in runs:
        answer = board.run(run)
        found.append((["run", run.name], {**answer, "warnings": [*answer["warnings"], *room.warnings()]}))
    return found


def _maps(board: Board, run: LoggedRun, runs: Iterable[LoggedRun], columns: int) -> Iterator[tuple[Request, Answer]]:
    """Yield the map of each series, alone and against the other stages and the other runs that have it."""
    for one in run.series.values():
        yield ["map", run.name, one.id], board.map(run, one.id, columns)
        for other in run.series.values():
            if (other.kind, other.statistic) == (one.kind, one.statistic) and other.stage != one.stage:
                answer = board.map(run, one.id, columns, (run, other.id))
                yield ["map", run.name, one.id, run.name, other.id], answer
        for against in runs:
            if against is not run and one.id in against.series:
                answer = board.map(run, one.id, columns, (against, one.id))
                yield ["map", run.name, one.id, against.name], answer


class _Room:
    """Counts how many histogram numbers and picture bytes still fit into the report, and what did not fit."""

    def __init__(self) -> None:
        self.left: dict[str, float] = {"histogram": MAX_HISTOGRAM_NUMBERS, "picture": MAX_PICTURE_BYTES}
        self.left_out: Counter[str] = Counter()

    def takes(self, kind: str, size: float) -> bool:
        fits = size <= self.left[kind]
        if fits:
            self.left[kind] -= size
        else:
            self.left_out[kind] += 1
        return fits

    def warnings(self) -> Iterator[str]:
        for kind, count in self.left_out.items():
            what = f"{count} {kind}{'s' if count > 1 else ''}"
            yield f"This report leaves out {what} to stay small; the tab in TensorBoard shows everything."


def _layers(board: Board, run: LoggedRun, room: _Room) -> Iterator[tuple[Request, Answer]]:
    """Yield the page of each layer with its histograms and pictures, those with a verdict first: not all may fit."""
    answers = [board.layer(run, layer) for layer in run.layers]
    for answer in sorted(answers, key=lambda answer: not answer["verdicts"]):
        histograms, pictures = [], []
        for one in answer["histograms"]:
            thinned = _thinned(board.histogram(run, one["tag"]))
            if room.takes("histogram", 3 * sum(map(len, thinned["counts"]))):
                histograms.append(one)
                yield ["histogram", run.name, one["tag"]], thinned
        for one in answer["pictures"]:
            data = board.source.picture(one["keys"][-1])
            mime = picture_type(data)
            if room.takes("picture", len(data) if mime else math.inf):
                key = f"data:{mime};base64,{base64.b64encode(data).decode()}"
                pictures.append({**one, "steps": one["steps"][-1:], "keys": [key]})
        yield (
            ["layer", run.name, answer["layer"]["name"]],
            {**answer, "histograms": histograms, "pictures": pictures},
        )


def _thinned(histogram: Answer) -> Answer:
    """Return a histogram at MAX_HISTOGRAM_STEPS of its steps, evenly chosen."""
    last = len(histogram["steps"]) - 1
    kept = sorted({round(last * i / (MAX_HISTOGRAM_STEPS - 1)) for i in range(MAX_HISTOGRAM_STEPS)})
    columns = {name: [histogram[name][i] for i in kept] for name in ("steps", "left", "right", "counts")}
    return {**histogram, **columns}


def pooled(value: Any, lists: dict[tuple[Any, ...], int]) -> Any:
    """Return an answer with a reference in place of each long list of numbers or texts, stored once in `lists`.

    >>> lists = {}
    >>> pooled({"steps": list(range(8)), "values": [[0.123456, None]]}, lists), lists
    ({'steps': {'$': 0}, 'values': [[0.1235, None]]}, {(0, 1, 2, 3, 4, 5, 6, 7): 0})
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: pooled(one, lists) for name, one in value.items()}
    if not isinstance(value, list | tuple):
        return value
    items = [pooled(one, lists) for one in value]
    if len(items) < MIN_LIST or any(isinstance(one, dict | list) for one in items):
        return items
    return {"$": lists.setdefault(tuple(items), len(lists))}
