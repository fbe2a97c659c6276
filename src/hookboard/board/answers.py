"""The answers that a report holds: those of the tab's server, with fewer columns and digits."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hookboard.board.board import Answer, Bands, Board
from hookboard.board.logged_run import LoggedRun
from hookboard.board.plugin import picture_type

Request = list[str]
"""A route and its parameters, in the order in which the page gives them, without `columns` and `band`."""

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
    runs = [board.logged_run(name) for name in names]
    room = _Room()
    found: list[tuple[Request, Answer]] = [(["runs"], listed)]
    for run in runs:
        found += _maps(board, run, runs, columns)
        bands: Bands = {}
        layers = [board.layer(run, layer, columns, True, bands) for layer in run.layers]
        # Those with a verdict first: histograms and pictures of others may be left out.
        for answer in sorted(layers, key=lambda answer: not answer["verdicts"]):
            answer["histograms"] = [one for one in answer["histograms"] if room.take_histogram(board, run, one)]
            answer["pictures"] = list(room.pictures(board, answer["pictures"]))
            found.append((["layer", run.name, answer["layer"]["name"]], answer))
        answer = board.run(run)
        answer["warnings"] = [*answer["warnings"], *room.warnings()]
        found.append((["run", run.name], answer))
    return found + room.histograms


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
        self.numbers, self.bytes = MAX_HISTOGRAM_NUMBERS, MAX_PICTURE_BYTES
        self.histograms: list[tuple[Request, Answer]] = []
        self.left_out = {"histogram": 0, "picture": 0}

    def take_histogram(self, board: Board, run: LoggedRun, one: dict[str, str]) -> bool:
        """Add a histogram to `histograms`, thinned to some of its steps; return False if it does not fit."""
        answer = board.histogram(run, one["tag"])
        last = len(answer["steps"]) - 1
        kept = sorted({round(last * i / (MAX_HISTOGRAM_STEPS - 1)) for i in range(MAX_HISTOGRAM_STEPS)})
        for field in ("steps", "left", "right", "counts"):
            answer[field] = [answer[field][i] for i in kept]
        size = 3 * sum(map(len, answer["counts"]))
        if size > self.numbers:
            self.left_out["histogram"] += 1
            return False
        self.numbers -= size
        self.histograms.append((["histogram", run.name, one["tag"]], answer))
        return True

    def pictures(self, board: Board, listed: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the last picture of each tag, as a `data:` URL in place of its key; leave out those that do not fit."""
        for one in listed:
            data = board.source.picture(one["keys"][-1])
            mime = picture_type(data)
            if mime is None or len(data) > self.bytes:
                self.left_out["picture"] += 1
                continue
            self.bytes -= len(data)
            key = f"data:{mime};base64,{base64.b64encode(data).decode()}"
            yield {**one, "steps": one["steps"][-1:], "keys": [key]}

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each kind of thing that was left out so far of this run, and begin anew."""
        for kind, count in self.left_out.items():
            if count:
                what = f"{count} {kind}{'s' if count > 1 else ''}"
                yield f"This report leaves out {what} to stay small; the tab in TensorBoard shows everything."
                self.left_out[kind] = 0


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
    if not isinstance(value, list | tuple | Iterator):
        return value
    items = [pooled(one, lists) for one in value]
    if len(items) < MIN_LIST or any(isinstance(one, dict | list) for one in items):
        return items
    return {"$": lists.setdefault(tuple(items), len(lists))}
