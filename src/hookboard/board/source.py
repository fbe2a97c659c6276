"""`Source`: what TensorBoard's data provider holds, as curves and tensors, from its fast and its slow loader alike."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
from tensorboard.data.provider import RunTagFilter
from tensorboard.errors import PublicError

from hookboard.base.messages import unknown
from hookboard.base.records import MAX_NAME_CHARS, PLUGIN


class RefusalError(ValueError):
    """The request is wrong. The text says what was given and what is valid, the code is the HTTP status."""

    def __init__(self, text: str, code: int = 400) -> None:
        super().__init__(text)
        self.code = code


def no_such(kind: str, name: str, valid: Iterable[str]) -> RefusalError:
    """Return the error for a name that does not exist.

    >>> no_such("run", "lightnin_logs", ["lightning_logs"])
    RefusalError("unknown run 'lightnin_logs'; did you mean 'lightning_logs'? Valid: lightning_logs.")
    """
    return RefusalError(str(unknown(kind, name, valid)), 404)


class Curve(NamedTuple):
    """One number over increasing steps; not finite where the measured value was not."""

    steps: np.ndarray
    values: np.ndarray


def curve_of(steps: Iterable[int], values: Iterable[float]) -> Curve:
    """Make a curve of points in the order of writing; one is dropped if a later one has the same or a smaller step.

    >>> curve_of([0, 10, 20, 10], [1.0, 2.0, 3.0, 4.0]).values.tolist()
    [1.0, 4.0]
    """
    at, of = np.fromiter(steps, np.int64), np.fromiter(values, np.float64)
    # As in TensorBoard's fast loader: a resumed run writes steps a second time.
    is_last = np.ones(len(at), dtype=bool)
    is_last[:-1] = at[:-1] < np.minimum.accumulate(at[::-1])[::-1][1:]
    return Curve(at[is_last], of[is_last])


def columns_for(curves: Iterable[Curve], most: int) -> np.ndarray:
    """Return a view's columns: evenly chosen steps, with the first and the last; each ends the steps it stands for."""
    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *(curve.steps for curve in curves)]))
    if len(steps) <= most:
        return steps
    chosen = np.linspace(len(steps) - 1, 0, most).round().astype(np.intp)[::-1]  # of a single column, the last
    return np.asarray(steps[chosen])


class Cells(NamedTuple):
    """The values of a curve in the columns of a map, and where there are any."""

    values: np.ndarray
    is_there: np.ndarray


def cells_of(curve: Curve, columns: np.ndarray) -> Cells:
    """Return the last value in each column, or the last non-finite one, so that none is missed."""
    values, is_there = np.full(len(columns), np.nan), np.zeros(len(columns), dtype=bool)
    at = np.searchsorted(columns, curve.steps)
    seen, at = curve.values[at < len(columns)], at[at < len(columns)]
    values[at] = seen  # of several values of a column, NumPy keeps the last
    is_there[at] = True
    is_bad = ~np.isfinite(seen)
    values[at[is_bad]] = seen[is_bad]
    return Cells(values, is_there)


def held_cells_of(curve: Curve, columns: np.ndarray) -> Cells:
    """Return the cells as `cells_of` does, but fill columns without a value with the last value before them."""
    values, is_there = cells_of(curve, columns)
    before = np.searchsorted(curve.steps, columns, side="right") - 1
    is_held = ~is_there & (before >= 0)
    values[is_held] = curve.values[before[is_held]]
    return Cells(values, is_there | is_held)


def json_cells(cells: Cells) -> list[float | str | None]:
    """Convert cells for JSON: None where there is no value, a string where it is not finite.

    >>> json_cells(Cells(np.array([0.5, np.nan, -np.inf, 0.0]), np.array([True, True, True, False])))
    [0.5, 'nan', '-inf', None]
    """
    numbers: list[float | str | None] = cells.values.tolist()
    for i in np.flatnonzero(~(np.isfinite(cells.values) & cells.is_there)).tolist():
        numbers[i] = str(numbers[i]) if cells.is_there[i] else None
    return numbers


def json_numbers(values: Sequence[float] | np.ndarray) -> list[float | str | None]:
    """Convert numbers for JSON; NaN and infinities become "nan", "inf" and "-inf", and nothing becomes None."""
    return json_cells(Cells(np.asarray(values, np.float64), np.ones(len(values), dtype=bool)))


SCALARS, HISTOGRAMS, IMAGES = "scalars", "histograms", "images"
"""TensorBoard's own plugins whose data the tab reads."""

MAX_POINTS = 1_000_000
"""More points than TensorBoard keeps of a tag, so that it drops none: it does not know which ones matter."""

TAGS_AT_ONCE = 1000
"""Maximum number of tags in a request for scalars: the fast loader takes none above 4 MB, and tags may be long."""


class LastPoint(NamedTuple):
    """The last point of a tag; its value is NaN if it is no scalar."""

    step: int
    wall_time: float
    value: float = math.nan


@dataclass(frozen=True)
class Source:
    """The data of one experiment, for one request. Tags of more than MAX_NAME_CHARS characters are left out."""

    provider: Any
    context: Any
    experiment: str

    def folder(self) -> str:
        """Return the last two names of the path that holds the runs, such as "project/logs"; "" if it is unknown."""
        said = self._ask("experiment_metadata")
        return "/".join(PurePath(said.data_location).parts[-2:]) if said is not None else ""

    def runs(self) -> list[str]:
        """Return the names of all runs."""
        return [run.run_name for run in self._ask("list_runs") or ()]

    def last_scalars(self, run: str | None = None) -> dict[str, dict[str, LastPoint]]:
        """Return the last point of each scalar tag, as {run: {tag: point}}; of all runs if `run` is None."""
        # Listing the tags would be the natural way, but the slow loader then goes through all their points.
        found = self._of_plugin("read_last_scalars", SCALARS, _filter(run))
        return _each(found, lambda point: LastPoint(point.step, point.wall_time, point.value))

    def last_tensors(self, plugin: str = PLUGIN, run: str | None = None) -> dict[str, dict[str, LastPoint]]:
        """Return the last point of each of a plugin's tensor tags as {run: {tag: point}}; of all runs without `run`."""
        found = self._of_plugin("list_tensors", plugin, _filter(run))
        return _each(found, lambda series: LastPoint(series.max_step or 0, series.max_wall_time or 0.0))

    def scalars(self, run: str, tags: Collection[str]) -> dict[str, Curve]:
        """Return the curve of each tag; tags that do not exist are left out."""
        curves = {}
        for some in _portions(sorted(tags)):
            found = self._of_plugin("read_scalars", SCALARS, _filter(run, some), MAX_POINTS)
            for tag, points in found.get(run, {}).items():
                curves[tag] = curve_of([p.step for p in points], [p.value for p in points])
        return curves

    def tensors(
        self, run: str, tags: Collection[str], plugin: str, most: int
    ) -> dict[str, list[tuple[int, np.ndarray]]]:
        """Return (step, tensor) pairs of each tag, `most` or fewer, with the last; damaged ones raise any error."""
        found = self._of_plugin("read_tensors", plugin, _filter(run, tags), most)
        return {tag: [(p.step, p.numpy) for p in points] for tag, points in found.get(run, {}).items()}

    def picture_tags(self, run: str) -> list[str]:
        """Return the tags of all pictures."""
        return list(self._of_plugin("list_blob_sequences", IMAGES, _filter(run)).get(run, {}))

    def picture_keys(self, run: str, tags: Collection[str]) -> dict[str, list[tuple[int, str]]]:
        """Return (step, key of its first picture) pairs of each tag; `picture` takes a key."""
        found = self._of_plugin("read_blob_sequences", IMAGES, _filter(run, tags), MAX_POINTS) if tags else {}
        # The first two are the width and the height.
        return {
            tag: [(p.step, p.values[2].blob_key) for p in points if len(p.values) > 2]
            for tag, points in found.get(run, {}).items()
        }

    def picture(self, key: str) -> bytes:
        """Return the bytes of a picture; a `RefusalError` if there is no such key."""
        try:
            return bytes(self.provider.read_blob(self.context, blob_key=key))
        except Exception as error:  # a key is opaque: providers raise what its parts lead them to
            raise RefusalError(f"key={key!r}: there is no such picture ({error}).") from error

    def _of_plugin(
        self, method: str, plugin: str, wanted: RunTagFilter | None, most: int | None = None
    ) -> Mapping[str, Mapping[str, Any]]:
        options = {} if most is None else {"downsample": most}
        found = self._ask(method, plugin_name=plugin, run_tag_filter=wanted, **options) or {}
        return {
            run: {tag: one for tag, one in tags.items() if len(tag) <= MAX_NAME_CHARS} for run, tags in found.items()
        }

    def _ask(self, method: str, **options: Any) -> Any:
        """Call a method of the data provider for this experiment; return None if it lacks the method or refuses."""
        ask = getattr(self.provider, method, None)
        try:
            return ask and ask(self.context, experiment_id=self.experiment, **options)
        except PublicError:
            return None


def _filter(run: str | None, tags: Collection[str] | None = None) -> RunTagFilter | None:
    return None if run is None else RunTagFilter(runs=[run], tags=tags)


def _portions(tags: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(tags), TAGS_AT_ONCE):
        yield tags[start : start + TAGS_AT_ONCE]


def _each(found: Mapping[str, Mapping[str, Any]], last: Callable[[Any], LastPoint]) -> dict[str, dict[str, LastPoint]]:
    return {run: {tag: last(events) for tag, events in tags.items()} for run, tags in found.items()}
