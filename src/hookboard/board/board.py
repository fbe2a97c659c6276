"""`Board`: answers the page's requests from the data that TensorBoard has loaded."""

import gzip
import io
import json
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from hookboard.base.records import LayerFacts
from hookboard.base.rule_texts import meanings
from hookboard.board.logged_run import (
    LoggedRun,
    RunSummary,
    Series,
    default_of,
    is_of_hookboard,
    loss_tag,
    natural_key,
    read_run,
    summary_of,
    token_of,
)
from hookboard.board.source import (
    HISTOGRAMS,
    Cells,
    Curve,
    LastPoint,
    RefusalError,
    Source,
    cells_of,
    columns_for,
    curve_of,
    held_cells_of,
    json_cells,
    json_numbers,
    no_such,
)
from hookboard.model.sites import read_histogram_tag

Value = TypeVar("Value")


class Cache:
    """Keeps the most recently used values, the newest version of each, up to a total size in bytes.

    While one thread makes a value, others wait, so that nothing is made twice. `functools.lru_cache` does not wait, and
    keeps all versions of a run that grows. A value larger than `most_bytes` is made anew each time.
    """

    def __init__(self, most_bytes: float = math.inf) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._kept: dict[Hashable, tuple[Hashable, Any, int]] = {}
        self._lock = RLock()  # what makes a value may get others

    def get(
        self, key: Hashable, version: Hashable, make: Callable[[], Value], size_of: Callable[[Value], int]
    ) -> Value:
        """Return the value of a key; make it if it is not kept in this version."""
        with self._lock:
            kept, value, size = self._kept.pop(key, (None, None, 0))
            self.bytes -= size
            if kept != version:
                value = make()
                size = size_of(value)
            if size <= self.most_bytes:
                self._kept[key] = (version, value, size)
                self.bytes += size
            while self.bytes > self.most_bytes:
                self.bytes -= self._kept.pop(next(iter(self._kept)))[2]
            return value  # type: ignore[no-any-return]  # values are of all types


CurvesOf = Callable[[Series], Mapping[str, Curve]]

BAND = {"low": 0.1, "median": 0.5, "high": 0.9}
"""The quantiles that are the band's lower edge, its middle and its upper edge."""

MIN_BAND_ROWS = 3
"""Minimum number of rows of a kind for a band; with fewer, all rows of the series are taken."""

MAX_BAND_CELLS, MAX_LAYER_BAND_CELLS = 2_000_000, 40_000_000
"""Maximum number of values behind one band (with more, it gets fewer steps), and behind all bands of a layer (with
more, some bands are left out).
"""

MIN_BAND_COST = 200
"""Reading a curve takes at least as long as reading this many values."""

BYTES_OF_ROW = 600
"""About what a row takes in memory: names, an empty curve, its part of a health record."""

MAX_HISTOGRAMS = 100
MAX_LOSS_STEPS = 400


def rows_of_layer(run: LoggedRun, layer: str) -> dict[str, list[str]]:
    """Return the rows (layer or parameter names) that belong to a layer, by the id of the series; no empty lists."""
    own = {
        id: [row for row in rows if run.layer_of(row, run.series[id].kind) == layer] for id, rows in run.rows.items()
    }
    return {id: rows for id, rows in own.items() if rows}


Bands = dict[Hashable, dict[str, list[float | str | None]]]
"""The bands of a run that are computed already: layers of one kind share them."""


def curves_of_layer(
    run: LoggedRun, own: Mapping[str, Sequence[str]], columns: int, has_band: bool, curves_of: CurvesOf, bands: Bands
) -> Iterator[dict[str, Any]]:
    """Yield for JSON the curve of each row of a layer that has points, with the band of its kind (`_kind`).

    The band has only None without `has_band`, or where MAX_LAYER_BAND_CELLS leaves it out. A kind with too few rows has
    the band of all rows of the series. Known `bands` are not computed again; new ones are added.
    """
    left = MAX_LAYER_BAND_CELLS
    for id, rows in own.items():
        one = run.series[id]
        curves = curves_of(one)
        kinds = _kinds(run, one, curves) if has_band else {}
        for row in rows:
            if row in curves and len(curves[row].steps):
                kind = _kind(run, one, row)
                peers = kinds.get(kind, [])
                steps = columns_for([curves[row]], max(min(columns, MAX_BAND_CELLS // max(len(peers), 1)), 1))
                left -= len(peers) * max(len(steps), MIN_BAND_COST)
                peers = peers if left >= 0 else []
                key = (one.id, kind, len(peers), steps.tobytes())
                if key not in bands:
                    bands[key] = _band([curves[peer] for peer in peers], steps)
                yield {
                    "id": one.id,
                    "label": one.label,
                    "scale": one.scale,
                    "row": row,
                    "steps": steps.tolist(),
                    "values": json_cells(cells_of(curves[row], steps)),
                    **bands[key],
                    "of": len(peers),
                }


def loss_of(source: Source, name: str) -> dict[str, Any] | None:
    """Return the tag that most likely is the training loss of a run, and its curve; None if there is none."""
    tag = loss_tag(source.last_scalars(name).get(name, {}))
    curve = source.scalars(name, [tag]).get(tag) if tag else None
    if curve is None or not len(curve.steps):
        return None
    steps = columns_for([curve], MAX_LOSS_STEPS)
    return {"tag": tag, "steps": steps.tolist(), "values": json_cells(cells_of(curve, steps))}


def histograms_of(source: Source, run: LoggedRun, layer: str) -> list[dict[str, str]]:
    """List the histograms of a layer's tensors."""
    found = []
    for tag in sorted(source.last_tensors(HISTOGRAMS, run.name).get(run.name, {}), key=natural_key):
        said = read_histogram_tag(tag)
        if said is not None and run.layer_of(said.path, said.kind) == layer:
            found.append({"tag": tag, "stage": said.stage, "kind": said.kind, "row": said.path})
    return found


def pictures_of(source: Source, run: LoggedRun, layer: str) -> list[dict[str, Any]]:
    """List the pictures of a layer, in tags such as `feature_maps/<layer>` and `cam/<layer>/<method>`."""
    tags = {}
    for tag in sorted(source.picture_tags(run.name), key=natural_key):
        head, _, path = tag.partition("/")
        if path and run.layer_of(path) == layer:
            tags[tag] = f"{head} {path.removeprefix(layer).strip('/')}".replace("_", " ").strip()
    keys = source.picture_keys(run.name, list(tags))
    return [
        {"tag": tag, "label": label, "steps": [step for step, _ in at], "keys": [some[0] for _, some in at]}
        for tag, label in tags.items()
        if (at := [(step, some) for step, some in keys.get(tag, []) if some])
    ]


def verdicts_of(run: LoggedRun, layer: str) -> list[Mapping[str, Any]]:
    """Return the verdicts on a layer, on the blocks that contain it, and those that name it; "" is the whole run."""
    names = {layer, *accumulate(layer.split("."), "{}.{}".format)}
    return [one for one in run.verdicts if one["module"] in names or layer in one["names"]]


def _kinds(run: LoggedRun, one: Series, curves: Mapping[str, Curve]) -> dict[tuple[str, str], list[str]]:
    """Group rows by kind; a kind with too few rows gets all rows of the series."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in curves:
        kinds.setdefault(_kind(run, one, row), []).append(row)
    every = list(curves)
    return {kind: rows if len(rows) >= MIN_BAND_ROWS else every for kind, rows in kinds.items()}


def _kind(run: LoggedRun, one: Series, row: str) -> tuple[str, str]:
    """Return the type of a row's layer, "" if unknown, and what follows the layer in the row's name."""
    layer = run.layer_of(row, one.kind)
    types = run.layers[layer].types
    return types[0] if types else "", row.removeprefix(layer)


def _band(curves: Sequence[Curve], steps: np.ndarray) -> dict[str, list[float | str | None]]:
    """Return the quantiles of `BAND` of the rows' finite values at each step, by name; None where there are none."""
    values = np.full((len(curves) + 1, len(steps)), np.nan)  # one row more, so that there always is one
    for row, curve in zip(values, curves, strict=False):
        row[:] = cells_of(curve, steps).values
    values[~np.isfinite(values)] = np.nan
    ranked = np.sort(values, axis=0)  # NaN comes last
    last = np.isfinite(ranked).sum(axis=0) - 1
    columns = np.arange(len(steps))
    found = {}
    for name, share in BAND.items():
        place = share * np.maximum(last, 0)
        below, above = np.floor(place).astype(np.intp), np.ceil(place).astype(np.intp)
        low, high = ranked[below, columns], ranked[above, columns]
        found[name] = json_cells(Cells(low + (place - below) * (high - low), last >= 0))
    return found


MAX_CELLS = 4_000_000
"""Maximum number of cells of a map: rows that share no step have far more cells than values."""

NO_DATA_HINT = (
    "No run in the log directory has data from hookboard. Add one of its callbacks to the Trainer, for example "
    "Trainer(callbacks=[HealthMonitor()]), train with a TensorBoardLogger, and point TensorBoard's --logdir at its log "
    "directory."
)

Answer = dict[str, Any]


class Board:
    """Answers the page's requests from a source, with a method for each kind of request.

    Each raises a `RefusalError` for a run, series, layer or tag that does not exist.
    """

    def __init__(self, source: Source, cache: Cache | None = None) -> None:
        self.source = source
        self._cache = cache or Cache()

    def runs(self) -> Answer:
        """Return the `RunSummary` of each run with data of hookboard, and the time `now`, in seconds since 1970.

        If there are none, `hint` says what to do.
        """
        scalars, records = self.source.last_scalars(), self.source.last_tensors()
        found = []
        for name in sorted(scalars.keys() | records.keys(), key=natural_key):
            ours, kept = scalars.get(name, {}), records.get(name, {})
            if is_of_hookboard(ours, kept):
                said = self._summary(name, ours, kept)
                found.append({**vars(said), "loss": None if said.loss is None else json_numbers([said.loss])[0]})
        return {"runs": found, "hint": "" if found else NO_DATA_HINT, "now": int(time.time())}

    def _summary(self, name: str, scalars: Mapping[str, LastPoint], records: Mapping[str, LastPoint]) -> RunSummary:
        return self._cache.get(
            ("summary", self.source.experiment, name),
            token_of(scalars, records),
            lambda: summary_of(self.source, name, scalars, records),
            lambda summary: BYTES_OF_ROW,
        )

    def logged_run(self, name: str) -> LoggedRun:
        """Return what the run of this name holds; a `RefusalError` if it does not exist or has no data of hookboard."""
        source = self.source
        scalars, records = source.last_scalars(name).get(name, {}), source.last_tensors(run=name).get(name, {})
        if not is_of_hookboard(scalars, records):
            if scalars or records or name in source.runs():
                raise RefusalError(f"run {name!r} has no hookboard data.", 404)
            raise no_such("run", name, source.runs())
        return self._cache.get(
            (source.experiment, name),
            token_of(scalars, records),
            lambda: read_run(source, name, scalars, records),
            lambda run: BYTES_OF_ROW * sum(map(len, run.rows.values())),
        )

    def run(self, run: LoggedRun) -> Answer:
        """Return the layers, series, verdicts and loss of a run, and warnings about what could not be read."""
        first = default_of(run.series, run.health)
        return {
            "run": run.name,
            "last_step": run.last_step,
            "is_ordered": run.is_ordered,
            "layers": [layer_answer(layer) for layer in run.layers.values()],
            "series": [
                {
                    "id": one.id,
                    "label": one.label,
                    "stage": one.stage,
                    "kind": one.kind,
                    "statistic": one.statistic,
                    "source": "scalars" if one.tags else "health",
                    "rows": len(run.rows[one.id]),
                    "scale": one.scale,
                    "is_default": one.id == first,
                }
                for one in run.series.values()
            ],
            "headline": run.health.headline if run.health else "",
            "verdicts": run.verdicts,
            "meanings": meanings(one["rule"] for one in run.verdicts),
            "cards": list(run.health.cards) if run.health else [],
            "warnings": run.warnings,
            "loss": loss_of(self.source, run.name),
        }

    def map(self, run: LoggedRun, series: str, columns: int, against: tuple[LoggedRun, str] | None = None) -> Answer:
        """Return the values of a series, rows by steps; with `against` also those of the same rows in another series.

        Both are iterators over the rows, for `packed_json`.
        """
        one = _series(run, series)
        curves = self.curves(run, one)
        rows = [row for row in run.rows[one.id] if row in curves]
        answer: Answer = {"run": run.name, "series": series}
        if against is not None:
            other, second = against[0], _series(*against)
            theirs = self.curves(other, second)
            answer |= {"against": other.name, "against_series": second.id}
            others = [row for row in other.rows[second.id] if row in theirs]
            missed = _missed(rows, curves, others, theirs)
            answer["unmatched"] = [*missed, *_missed(others, theirs, rows, curves)]
            rows = [row for row in rows if row not in missed]
        steps = columns_for((curves[row] for row in rows), max(min(columns, MAX_CELLS // max(len(rows), 1)), 1))
        answer["rows"] = rows
        answer["modules"] = [run.layer_of(row, one.kind) for row in rows]
        answer["steps"] = steps.tolist()
        answer["values"] = (json_cells(cells_of(curves[row], steps)) for row in rows)
        if against is not None:
            answer["against_values"] = (json_cells(held_cells_of(theirs[row], steps)) for row in rows)
        return answer

    def packed_map(
        self, run: LoggedRun, series: str, columns: int, against: tuple[LoggedRun, str] | None = None
    ) -> bytes:
        """Return `map` as gzipped JSON, cached until the runs have new data."""
        other, second = (against[0].name, against[1]) if against else (None, None)
        return self._cache.get(
            (self.source.experiment, run.name, series, columns, other, second),
            (run.token, against and against[0].token),
            lambda: packed_json(self.map(run, series, columns, against)),
            len,
        )

    def layer(self, run: LoggedRun, layer: str, columns: int, has_band: bool, bands: Bands | None = None) -> Answer:
        """Return what the page of a layer shows: its facts, statistics, histograms, pictures and verdicts.

        With `has_band` all other layers are read too, which takes longer, see `curves_of_layer`.
        """
        if layer not in run.layers:
            raise no_such("layer", layer, run.layers)
        own = rows_of_layer(run, layer)
        curves_of = partial(self.curves, run) if has_band else self._own_curves(run, own)
        return {
            "run": run.name,
            "layer": layer_answer(run.layers[layer]),
            "series": list(curves_of_layer(run, own, columns, has_band, curves_of, {} if bands is None else bands)),
            "histograms": histograms_of(self.source, run, layer),
            "pictures": pictures_of(self.source, run, layer),
            "verdicts": verdicts_of(run, layer),
        }

    def _own_curves(self, run: LoggedRun, own: Mapping[str, Sequence[str]]) -> CurvesOf:
        """Read the rows of a layer at once: the fast loader goes through all tags for each request."""
        series = [run.series[id] for id in own]
        scalars = self.source.scalars(run.name, [one.tags[row] for one in series if one.tags for row in own[one.id]])
        return lambda one: _by_row(one, scalars) if one.tags else self.curves(run, one)

    def histogram(self, run: LoggedRun, tag: str) -> Answer:
        """Return the edges and counts of a histogram at its steps; of more than MAX_HISTOGRAMS, TensorBoard chooses."""
        points = self.source.tensors(run.name, [tag], HISTOGRAMS, MAX_HISTOGRAMS).get(tag)
        if points is None:
            raise no_such("histogram", tag, self.source.last_tensors(HISTOGRAMS, run.name).get(run.name, {}))
        if not all(tensor.ndim == 2 and tensor.shape[1] == 3 and tensor.dtype.kind == "f" for _, tensor in points):
            raise RefusalError(f"tag={tag!r} is not a histogram: expected rows of (left edge, right edge, count).")
        last = curve_of([step for step, _ in points], range(len(points)))
        tensors = [points[int(i)][1] for i in last.values]
        columns = {name: [json_numbers(t[:, i]) for t in tensors] for i, name in enumerate(("left", "right", "counts"))}
        return {"tag": tag, "steps": last.steps.tolist(), **columns}

    def curves(self, run: LoggedRun, one: Series) -> Mapping[str, Curve]:
        """Return the curve of each row of a series: of its tags that have scalars, or from the health record."""
        return self._cache.get(
            (self.source.experiment, run.name, one.id),
            run.token,
            lambda: (
                _by_row(one, self.source.scalars(run.name, one.tags.values())) if one.tags else _of_health(run, one)
            ),
            lambda curves: sum(BYTES_OF_ROW + 2 * curve.values.nbytes for curve in curves.values()),
        )


def packed_json(answer: Answer) -> bytes:
    """Return gzipped JSON, at TensorBoard's compression level; a higher one takes far longer.

    An iterator among the values of `answer` becomes a list and is written item by item, because a whole map takes ten
    times its curves' memory.
    """
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=3, mtime=0) as file:
        for piece in _pieces(answer):
            file.write(piece.encode())
    return content.getvalue()


def _pieces(answer: Answer) -> Iterator[str]:
    written = partial(json.dumps, allow_nan=False, separators=(",", ":"))
    for start, (name, value) in zip("{" + "," * len(answer), answer.items(), strict=False):
        yield f"{start}{written(name)}:"
        if isinstance(value, Iterator):
            yield "["
            yield from (f"{',' if i else ''}{written(one)}" for i, one in enumerate(value))
            yield "]"
        else:
            yield written(value)
    yield "}"


def layer_answer(layer: LayerFacts) -> Answer:
    """Return what the page shows of a layer, for JSON; `count` is the number of values in all its parameters."""
    return {
        "name": layer.name,
        "type": layer.types[0].rpartition(".")[2] if layer.types else "",
        "types": list(layer.types),
        "output": None if layer.output is None else list(layer.output),
        "parameters": {name: list(shape) for name, shape in layer.parameters.items()},
        "frozen": list(layer.frozen),
        "count": sum(int(np.prod(shape, dtype=object)) for shape in layer.parameters.values()),
    }


def _series(run: LoggedRun, id: str) -> Series:
    if id not in run.series:
        raise no_such("series", id, run.series)
    return run.series[id]


def _missed(
    rows: Sequence[str], curves: Mapping[str, Curve], others: Iterable[str], theirs: Mapping[str, Curve]
) -> dict[str, None]:
    """Return the rows of a series that another run lacks, as the keys of a dict.

    A row without a value is left out if the other run knows its layer too.
    """
    there = set(others)
    lacking = (row for row in rows if row not in there and (row not in theirs or len(curves[row].steps)))
    return dict.fromkeys(lacking)


def _by_row(one: Series, scalars: Mapping[str, Curve]) -> dict[str, Curve]:
    """Return the curves of a series by row instead of tag; a row whose tag has none is left out."""
    return {row: scalars[tag] for row, tag in one.tags.items() if tag in scalars}


def _of_health(run: LoggedRun, one: Series) -> dict[str, Curve]:
    """Return the curves of a quantity of the health record, which has NaN where there is no value."""
    assert run.health is not None
    steps, values = np.asarray(run.health.steps, np.int64), run.health.values[one.statistic]
    rows = zip(run.health.layers, values, ~np.isnan(values), strict=True)
    return {layer: curve_of(steps[is_there], row[is_there]) for layer, row, is_there in rows}
