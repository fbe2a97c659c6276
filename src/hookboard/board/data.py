"""`Board`: what the page asks for, from the data that TensorBoard has loaded."""

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hookboard.board.cache import Cache
from hookboard.board.curves import Curve, CurvesOfRows, cells_of, columns_for, held_cells_of, plain
from hookboard.board.layer import (
    CurvesOf,
    curves_of_layer,
    histogram,
    histograms_of,
    pictures_of,
    rows_of_layer,
    verdicts_of,
)
from hookboard.board.names import natural
from hookboard.board.refusal import RefusalError, no_such
from hookboard.board.run import Run, is_of_hookboard, read_run, token_of
from hookboard.board.selecting import selected
from hookboard.board.series import Series, default_of
from hookboard.board.source import Source
from hookboard.record import LayerFacts

CACHED_BYTES = 256 << 20

MOST_CELLS = 4_000_000
"""How many cells a map may have: rows that share no step have many more than there are values."""

EMPTY = (
    "The log directory holds no runs yet. Train with hookboard's callbacks and a TensorBoardLogger, for example "
    "Trainer(callbacks=[HealthMonitor()]), and start TensorBoard with --logdir on the directory of its logs."
)
WITHOUT_OURS = (
    "No run in the log directory has numbers of layers by hookboard. Add a callback of it to the Trainer, for example "
    "Trainer(callbacks=[HealthMonitor()]), and train with a TensorBoardLogger."
)

Answer = dict[str, Any]


class Board:
    """Answers what the page asks, with what is slow to read kept in memory.

    Args:
        most_bytes: how much memory it may keep.
    """

    def __init__(self, most_bytes: int = CACHED_BYTES) -> None:
        self.cache = Cache(most_bytes)

    def runs(self, source: Source) -> Answer:
        """All runs that have data of hookboard, and what to do if there is none."""
        scalars, records = source.last_scalars(), source.last_tensors()
        found = []
        for name in sorted(scalars.keys() | records.keys(), key=natural):
            ours, kept = scalars.get(name, {}), records.get(name, {})
            if is_of_hookboard(ours, kept):
                run = self._read(source, name, ours, kept)
                found.append(
                    {
                        "name": name,
                        "last_step": run.last_step,
                        "series": len(run.series),
                        "is_judged": run.health is not None,
                    }
                )
        hint = "" if found else WITHOUT_OURS if source.runs() else EMPTY
        return {"runs": found, "hint": hint}

    def run(self, source: Source, name: str) -> Answer:
        """What a run holds: layers, series, verdicts."""
        run = self._run(source, name)
        first = default_of(run.series)
        return {
            "run": name,
            "last_step": run.last_step,
            "token": run.token,
            "is_ordered": run.is_ordered,
            "every_n_steps": run.every_n_steps,
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
            "verdicts": list(run.health.verdicts) if run.health else [],
            "warnings": run.warnings,
        }

    def map(self, source: Source, name: str, series: str, columns: int, against: str | None = None) -> Answer:
        """The values of a series, rows by steps; with another run, also what that one has at the same place."""
        run = self._run(source, name)
        one = _series(run, series)
        curves = self._curves(source, run, one)
        rows = [row for row in run.rows[one.id] if row in curves]
        answer: Answer = {"run": name, "series": series, "token": run.token}
        if against is not None:
            other = self._run(source, against)
            theirs = self._curves(source, other, _series(other, series))
            answer |= {"against": against, "against_token": other.token}
            others = [row for row in other.rows[one.id] if row in theirs]
            missed = _missed(rows, curves, others, theirs)
            answer["unmatched"] = [*missed, *_missed(others, theirs, rows, curves)]
            rows = [row for row in rows if row not in missed]
        steps = columns_for((curves[row] for row in rows), max(min(columns, MOST_CELLS // max(len(rows), 1)), 1))
        answer["rows"] = rows
        answer["modules"] = [run.layer_of(row, one) for row in rows]
        answer["steps"] = steps.tolist()
        answer["values"] = (plain(cells_of(curves[row], steps)) for row in rows)
        if against is not None:
            answer["against_values"] = (plain(held_cells_of(theirs[row], steps)) for row in rows)
        return answer

    def packed_map(self, source: Source, name: str, series: str, columns: int, against: str | None = None) -> bytes:
        """The same as packed JSON, kept as long as nothing new has come."""
        version = [self._run(source, one).token for one in (name, against) if one is not None]
        return self.cache.get(
            (source.experiment, "map", name, series, columns, against),
            tuple(version),
            lambda: packed(self.map(source, name, series, columns, against)),
            len,
        )

    def layer(self, source: Source, name: str, layer: str, columns: int, has_band: bool) -> Answer:
        """What there is of one layer; the band of its kind takes the time to read all other layers too."""
        run = self._run(source, name)
        if layer not in run.layers:
            raise no_such("layer", layer, run.layers)
        own = rows_of_layer(run, layer)
        if has_band:
            curves_of: CurvesOf = partial(self._curves, source, run)
        else:
            # At once: the fast loader goes through all tags for each request.
            found = source.scalars(
                name, [run.series[id].tags[row] for id in own for row in own[id] if run.series[id].tags]
            )
            curves_of = partial(_curves_among, run, found)
        return {
            "run": name,
            "token": run.token,
            "layer": layer_answer(run.layers[layer]),
            "series": list(curves_of_layer(run, own, columns, has_band, curves_of)),
            "histograms": histograms_of(source, run, layer),
            "pictures": pictures_of(source, run, layer),
            "verdicts": verdicts_of(run, layer),
        }

    def histogram(self, source: Source, name: str, tag: str) -> Answer:
        """A histogram over steps."""
        return histogram(source, self._run(source, name).name, tag)

    def select(self, source: Source, name: str, modules: Sequence[str], types: Sequence[str]) -> Answer:
        """The layers that patterns and types name."""
        return {"names": selected(self._run(source, name).layers, modules, types)}

    def _run(self, source: Source, name: str) -> Run:
        """The run of this name.

        Raises:
            RefusalError: there is none with data of hookboard.
        """
        scalars, records = source.last_scalars(name).get(name, {}), source.last_tensors(run=name).get(name, {})
        if not is_of_hookboard(scalars, records):
            if scalars or records or name in source.runs():
                raise RefusalError(f"run {name!r} has no data of hookboard.", 404)
            raise no_such("run", name, source.runs())
        return self._read(source, name, scalars, records)

    def _read(self, source: Source, name: str, scalars: Mapping[str, Any], records: Mapping[str, Any]) -> Run:
        return self.cache.get(
            (source.experiment, name),
            token_of(scalars, records),
            lambda: read_run(source, name, scalars, records),
            lambda run: run.nbytes,
        )

    def _curves(self, source: Source, run: Run, one: Series) -> Mapping[str, Curve]:
        """Row to curve."""
        if not one.tags:
            return _curves_among(run, {}, one)
        return self.cache.get(
            (source.experiment, run.name, one.id),
            run.token,
            lambda: _curves_among(run, source.scalars(run.name, one.tags.values()), one),
            lambda curves: sum(curve.nbytes + 400 + len(row) for row, curve in curves.items()),
        )


def packed(answer: Answer) -> bytes:
    """JSON, packed as browsers take it; the level is that of TensorBoard, as more of it takes far longer.

    What an iterator gives is a list in the JSON, written one by one: a whole map takes ten times its curves' memory.
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
    """What is known of a layer, for JSON."""
    return {
        "name": layer.name,
        "type": layer.types[0].rpartition(".")[2] if layer.types else "",
        "types": list(layer.types),
        "output": None if layer.output is None else list(layer.output),
        "parameters": {name: list(shape) for name, shape in layer.parameters.items()},
        "count": sum(int(np.prod(shape, dtype=object)) for shape in layer.parameters.values()),
    }


def _series(run: Run, id: str) -> Series:
    if id not in run.series:
        raise no_such("series", id, run.series)
    return run.series[id]


def _missed(
    rows: Sequence[str], curves: Mapping[str, Curve], others: Iterable[str], theirs: Mapping[str, Curve]
) -> dict[str, None]:
    """The rows of a run that another one lacks; a health record also holds layers without a value, which none lacks."""
    there = set(others)
    lacking = (row for row in rows if row not in there and (row not in theirs or len(curves[row].steps)))
    return dict.fromkeys(lacking)


def _curves_among(run: Run, scalars: Mapping[str, Curve], one: Series) -> Mapping[str, Curve]:
    """Row to curve, from the curves of tags, or from the run's health record."""
    if one.tags:
        return {row: scalars[tag] for row, tag in one.tags.items() if tag in scalars}
    assert run.health is not None
    return CurvesOfRows(run.health.layers, run.health.steps, run.health.values[one.statistic])
