"""What the page shows of one layer: its curves among those of its kind, its histograms and its pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hookboard.board.curves import Cells, Curve, cells_of, columns_for, curve_of, plain, plain_numbers
from hookboard.board.names import natural
from hookboard.board.refusal import RefusalError, no_such
from hookboard.board.run import Run
from hookboard.board.series import Series, is_of_parameter
from hookboard.board.source import HISTOGRAMS, Source
from hookboard.sites import read_histogram_tag

CurvesOf = Callable[[Series], Mapping[str, Curve]]

BAND = {"low": 0.1, "median": 0.5, "high": 0.9}
"""The shares of rows below the band's lower edge, its middle and its upper edge."""

FEWEST = 3
"""So many rows make a band: of fewer, all rows of the series are taken."""

BAND_CELLS, ALL_BAND_CELLS = 2_000_000, 40_000_000
"""How many values a band may be made of, else it has fewer steps; and all bands of a layer, else some are left out."""

FEWEST_CELLS = 200
"""A curve takes as long as so many values, however short it is."""

MOST_HISTOGRAMS = 100


def rows_of_layer(run: Run, layer: str) -> dict[str, list[str]]:
    """The rows of a layer, by the id of their series."""
    own = {id: [row for row in rows if run.layer_of(row, run.series[id]) == layer] for id, rows in run.rows.items()}
    return {id: rows for id, rows in own.items() if rows}


def curves_of_layer(
    run: Run, own: Mapping[str, Sequence[str]], columns: int, has_band: bool, curves_of: CurvesOf
) -> Iterator[dict[str, Any]]:
    """The curves of a layer's rows, with the band of all rows of their kind.

    Args:
        run: the run.
        own: the rows of the layer, see `rows_of_layer`.
        columns: how many steps there may be of each.
        has_band: whether the band is wanted.
        curves_of: reads a series, row to curve; without the band, only the own rows are needed.
    """
    left = ALL_BAND_CELLS
    for id, rows in own.items():
        one = run.series[id]
        curves = curves_of(one)
        kinds = _kinds(run, one, curves) if has_band else {}
        for row in rows:
            if row in curves and len(curves[row].steps):
                peers = kinds.get(_kind(run, one, row), [])
                steps = columns_for([curves[row]], max(min(columns, BAND_CELLS // max(len(peers), 1)), 1))
                left -= len(peers) * max(len(steps), FEWEST_CELLS)
                peers = peers if left >= 0 else []
                yield {
                    "id": one.id,
                    "label": one.label,
                    "scale": one.scale,
                    "row": row,
                    "steps": steps.tolist(),
                    "values": plain(cells_of(curves[row], steps)),
                    **_band([curves[peer] for peer in peers], steps),
                    "of": len(peers),
                }


def histograms_of(source: Source, run: Run, layer: str) -> list[dict[str, str]]:
    """The histograms of a layer's tensors."""
    found = []
    for tag in sorted(source.last_tensors(HISTOGRAMS, run.name).get(run.name, {}), key=natural):
        said = read_histogram_tag(tag)
        if said is not None and run.layer_at(said.path, is_of_parameter(said.kind)) == layer:
            found.append({"tag": tag, "stage": said.stage, "kind": said.kind, "row": said.path})
    return found


def pictures_of(source: Source, run: Run, layer: str) -> list[dict[str, Any]]:
    """The pictures of a layer, in tags such as `feature_maps/<layer>` and `cam/<layer>/<method>`."""
    tags = {}
    for tag in sorted(source.picture_tags(run.name), key=natural):
        head, _, path = tag.partition("/")
        if path and run.layer_at(path, is_parameter=False) == layer:
            tags[tag] = f"{head} {path.removeprefix(layer).strip('/')}".replace("_", " ").strip()
    keys = source.picture_keys(run.name, list(tags))
    return [
        {"tag": tag, "label": label, "steps": [step for step, _ in at], "keys": [some[0] for _, some in at]}
        for tag, label in tags.items()
        if (at := [(step, some) for step, some in keys.get(tag, []) if some])
    ]


def verdicts_of(run: Run, layer: str) -> list[Mapping[str, Any]]:
    """The verdicts on a layer and on the blocks that it is part of, but for those on the run."""
    verdicts = run.health.verdicts if run.health else ()
    return [
        one
        for one in verdicts
        if one["module"] == layer or (one["module"] and f"{layer}.".startswith(f"{one['module']}."))
    ]


def histogram(source: Source, run: str, tag: str) -> dict[str, Any]:
    """The edges and counts of a histogram over steps.

    Raises:
        RefusalError: there is no such histogram, or it is none.
    """
    points = source.tensors(run, [tag], HISTOGRAMS, MOST_HISTOGRAMS).get(tag)
    if points is None:
        raise no_such("histogram", tag, source.last_tensors(HISTOGRAMS, run).get(run, {}))
    if not all(tensor.ndim == 2 and tensor.shape[1] == 3 and tensor.dtype.kind == "f" for _, tensor in points):
        raise RefusalError(f"tag={tag!r} is no histogram: rows of left edge, right edge and count are expected.")
    last = curve_of([step for step, _ in points], range(len(points)))
    tensors = [points[int(i)][1] for i in last.values]
    columns = {name: [plain_numbers(t[:, i]) for t in tensors] for i, name in enumerate(("left", "right", "counts"))}
    return {"tag": tag, "steps": last.steps.tolist(), **columns}


def _kinds(run: Run, one: Series, curves: Mapping[str, Curve]) -> dict[tuple[str, str], list[str]]:
    """The rows of each kind; of a kind with few rows, all rows of the series."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in curves:
        kinds.setdefault(_kind(run, one, row), []).append(row)
    every = list(curves)
    return {kind: rows if len(rows) >= FEWEST else every for kind, rows in kinds.items()}


def _kind(run: Run, one: Series, row: str) -> tuple[str, str]:
    """The type of a row's layer, and which of its tensors the row is."""
    layer = run.layer_of(row, one)
    types = run.layers[layer].types
    return types[0] if types else "", row.removeprefix(layer)


def _band(curves: Sequence[Curve], steps: np.ndarray) -> dict[str, list[float | str | None]]:
    """The quantiles of the finite values of some rows at each step; None where there are none."""
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
        found[name] = plain(Cells(low + (place - below) * (high - low), last >= 0))
    return found
