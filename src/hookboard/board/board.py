"""`Board`: answers the page's requests from the data that TensorBoard has loaded."""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from hookboard.base.messages import meanings
from hookboard.base.records import LayerFacts
from hookboard.board.logged_run import (
    LoggedRun,
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
    Curve,
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
    """Keeps the newest version of each value; while one thread makes it, others wait."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Hashable, Any]] = {}
        self._lock = RLock()  # what makes a value may get others

    def get(self, key: Hashable, version: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; make it if it is not kept in this version."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept[0] != version:
                kept = self._kept[key] = version, make()
            return kept[1]


MAX_HISTOGRAMS = 100
MAX_LOSS_STEPS = 400


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
        {"tag": tag, "label": label, "steps": [step for step, _ in at], "keys": [key for _, key in at]}
        for tag, label in tags.items()
        if (at := keys.get(tag))
    ]


def verdicts_of(run: LoggedRun, layer: str) -> list[Mapping[str, Any]]:
    """Return the verdicts on a layer, on the blocks that contain it, and those that name it; "" is the whole run."""
    names = {layer, *accumulate(layer.split("."), "{}.{}".format)}
    return [verdict for verdict in run.verdicts if verdict["module"] in names or layer in verdict["names"]]


MAX_CELLS = 2_000_000
"""Maximum number of cells of a map: rows that share no step have far more cells than values."""

NO_DATA_HINT = (
    "No run in the log directory has data from hookboard. Add one of its callbacks to the Trainer, for example "
    "Trainer(callbacks=[HealthMonitor()]), train with a TensorBoardLogger, and point TensorBoard's --logdir at its log "
    "directory."
)

Answer = dict[str, Any]


class Board:
    """Answers the page's requests, with a method for each kind; RefusalError for what does not exist."""

    def __init__(self, source: Source, cache: Cache | None = None) -> None:
        self.source = source
        self._cache = cache or Cache()

    def runs(self) -> Answer:
        """Return `summary_of` each run of hookboard, a `hint` if there is none, and `now` in seconds since 1970."""
        scalars, records = self.source.last_scalars(), self.source.last_tensors()
        found = []
        for name in sorted(scalars.keys() | records.keys(), key=natural_key):
            ours, kept = scalars.get(name, {}), records.get(name, {})
            if is_of_hookboard(ours, kept):
                summary = partial(summary_of, self.source, name, ours, kept)
                found.append(self._cache.get(("summary", self.source.experiment, name), token_of(ours, kept), summary))
        return {"runs": found, "hint": "" if found else NO_DATA_HINT, "now": int(time.time())}

    def logged_run(self, name: str) -> LoggedRun:
        """Return what the run of this name holds; a `RefusalError` if it does not exist or has no data of hookboard."""
        source = self.source
        scalars, records = source.last_scalars(name).get(name, {}), source.last_tensors(run=name).get(name, {})
        if not is_of_hookboard(scalars, records):
            if name not in source.runs():
                raise no_such("run", name, source.runs())
            raise RefusalError(f"run {name!r} has no hookboard data.", 404)
        return self._cache.get(
            (source.experiment, name),
            token_of(scalars, records),
            lambda: read_run(source, name, scalars, records),
        )

    def run(self, run: LoggedRun) -> Answer:
        """Return the layers, series, verdicts and loss of a run, and warnings about what could not be read."""
        first = default_of(run.series, run.health)
        return {
            "run": run.name,
            "is_ordered": run.is_ordered,
            "layers": [layer_answer(layer) for layer in run.layers.values()],
            "series": [
                {
                    **{name: value for name, value in vars(one).items() if name != "tags"},
                    "source": "scalars" if one.tags else "health",
                    "rows": len(run.rows[one.id]),
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
        """Return the values of a series, rows by steps; with `against` also those of its rows in another series."""
        shown = _series(run, series)
        curves = self.curves(run, shown)
        rows = [row for row in run.rows[shown.id] if row in curves]
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
        answer["modules"] = [run.layer_of(row, shown.kind) for row in rows]
        answer["steps"] = steps.tolist()
        answer["values"] = [json_cells(cells_of(curves[row], steps)) for row in rows]
        if against is not None:
            answer["against_values"] = [json_cells(held_cells_of(theirs[row], steps)) for row in rows]
        return answer

    def layer(self, run: LoggedRun, layer: str) -> Answer:
        """Return what the page of a layer shows; the values of its statistics are in the answers to `map`."""
        if layer not in run.layers:
            raise no_such("layer", layer, run.layers)
        return {
            "run": run.name,
            "layer": layer_answer(run.layers[layer]),
            "series": [
                {"id": one.id, "label": one.label, "scale": one.scale, "row": row}
                for one in run.series.values()
                for row in run.rows[one.id]
                if run.layer_of(row, one.kind) == layer and (one.tags or len(self.curves(run, one)[row].steps))
            ],
            "histograms": histograms_of(self.source, run, layer),
            "pictures": pictures_of(self.source, run, layer),
            "verdicts": verdicts_of(run, layer),
        }

    def histogram(self, run: LoggedRun, tag: str) -> Answer:
        """Return the edges and counts of a histogram at its steps; of more than MAX_HISTOGRAMS, TensorBoard chooses."""
        points = self.source.tensors(run.name, [tag], HISTOGRAMS, MAX_HISTOGRAMS).get(tag)
        if points is None:
            raise no_such("histogram", tag, self.source.last_tensors(HISTOGRAMS, run.name).get(run.name, {}))
        last = curve_of([step for step, _ in points], range(len(points)))
        tensors = [points[int(i)][1] for i in last.values]
        columns = {name: [json_numbers(t[:, i]) for t in tensors] for i, name in enumerate(("left", "right", "counts"))}
        return {"tag": tag, "steps": last.steps.tolist(), **columns}

    def curves(self, run: LoggedRun, series: Series) -> Mapping[str, Curve]:
        """Return the curve of each row of a series: of its tags that have scalars, or from the health record."""
        return self._cache.get(
            (self.source.experiment, run.name, series.id), run.token, lambda: self._read(run, series)
        )

    def _read(self, run: LoggedRun, series: Series) -> dict[str, Curve]:
        if not series.tags:
            return _of_health(run, series)
        scalars = self.source.scalars(run.name, series.tags.values())
        return {row: scalars[tag] for row, tag in series.tags.items() if tag in scalars}


def json_text(answer: Any) -> str:
    """Return an answer as JSON."""
    return json.dumps(answer, allow_nan=False, separators=(",", ":"))


def layer_answer(layer: LayerFacts) -> Answer:
    """Return what the page shows of a layer, for JSON; `count` is the number of values in all its parameters."""
    return {
        **vars(layer),
        "type": layer.types[0].rpartition(".")[2] if layer.types else "",
        "count": sum(int(np.prod(shape, dtype=object)) for shape in layer.parameters.values()),
    }


def _series(run: LoggedRun, id: str) -> Series:
    if id not in run.series:
        raise no_such("series", id, run.series)
    return run.series[id]


def _missed(
    rows: Sequence[str], curves: Mapping[str, Curve], others: Iterable[str], theirs: Mapping[str, Curve]
) -> dict[str, None]:
    """Return the rows of a series that another run lacks, as the keys of a dict."""
    there = set(others)
    # A row without a value is not missed if the other run knows its layer too.
    lacking = (row for row in rows if row not in there and (row not in theirs or len(curves[row].steps)))
    return dict.fromkeys(lacking)


def _of_health(run: LoggedRun, series: Series) -> dict[str, Curve]:
    """Return the curves of a quantity of the health record, which has NaN where there is no value."""
    assert run.health is not None
    steps, values = np.asarray(run.health.steps, np.int64), run.health.values[series.statistic]
    rows = zip(run.health.layers, values, ~np.isnan(values), strict=True)
    return {layer: curve_of(steps[is_there], row[is_there]) for layer, row, is_there in rows}
