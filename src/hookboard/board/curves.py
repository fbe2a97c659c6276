"""`Curve`: one number over steps; its form for a view of limited width, and for JSON."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

AT_ONCE = 1000
"""The steps of so many curves are in memory a second time when columns are chosen."""


class Curve(NamedTuple):
    """One number over steps.

    Args:
        steps: increasing, shape (points,), int64.
        values: shape (points,), float64; not finite where what was measured was not.
    """

    steps: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return self.steps.nbytes + self.values.nbytes


def curve_of(steps: Iterable[int], values: Iterable[float]) -> Curve:
    """The curve of points in the order in which they were written.

    A run that was taken up again writes steps a second time. As TensorBoard's fast loader does, a point counts only
    if no later one has the same step or a smaller one.

    >>> curve_of([0, 10, 20, 10], [1.0, 2.0, 3.0, 4.0]).values.tolist()
    [1.0, 4.0]
    """
    at, of = np.fromiter(steps, np.int64), np.fromiter(values, np.float64)
    is_last = np.ones(len(at), dtype=bool)
    is_last[:-1] = at[:-1] < np.minimum.accumulate(at[::-1])[::-1][1:]
    return Curve(at[is_last], of[is_last])


class CurvesOfRows(Mapping[str, Curve]):
    """The curves of the rows of a matrix, each made when it is asked for: all of them take four times its memory.

    Args:
        names: of the rows.
        steps: of the columns.
        values: shape (rows, columns); NaN where there is no value.
    """

    def __init__(self, names: Sequence[str], steps: Sequence[int], values: np.ndarray) -> None:
        self._rows = {name: row for row, name in enumerate(names)}
        self._steps = np.asarray(steps, np.int64)
        self._values = values

    def __getitem__(self, name: str) -> Curve:
        row = self._values[self._rows[name]]
        is_there = ~np.isnan(row)
        return curve_of(self._steps[is_there], row[is_there])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def columns_for(curves: Iterable[Curve], most: int) -> np.ndarray:
    """The steps of the columns of a view: evenly chosen from all steps, with the first and the last.

    A column stands for the steps since the column before it.

    Args:
        curves: what is shown.
        most: how many columns there may be; a single one is the last step.

    Returns:
        Increasing steps, shape (columns,).
    """
    steps, rest = np.zeros(0, np.int64), iter(curves)
    while some := [curve.steps for curve in itertools.islice(rest, AT_ONCE)]:
        steps = np.unique(np.concatenate([steps, *some]))
    if len(steps) <= most:
        return steps
    chosen = np.linspace(len(steps) - 1, 0, most).round().astype(np.intp)[::-1]  # of a single column, the last
    return np.asarray(steps[chosen])


class Cells(NamedTuple):
    """A curve in the columns of a view.

    Args:
        values: shape (columns,).
        is_there: whether there is a value, shape (columns,).
    """

    values: np.ndarray
    is_there: np.ndarray


def cells_of(curve: Curve, columns: np.ndarray) -> Cells:
    """The last value of the steps of each column; one that is not finite goes before all others: it must be seen.

    Args:
        curve: the curve.
        columns: increasing steps, see `columns_for`. Later points of the curve are left out.
    """
    values, is_there = np.full(len(columns), np.nan), np.zeros(len(columns), dtype=bool)
    at = np.searchsorted(columns, curve.steps)
    seen, at = curve.values[at < len(columns)], at[at < len(columns)]
    values[at] = seen  # of several values of a column, NumPy keeps the last
    is_there[at] = True
    is_bad = ~np.isfinite(seen)
    values[at[is_bad]] = seen[is_bad]
    return Cells(values, is_there)


def held_cells_of(curve: Curve, columns: np.ndarray) -> Cells:
    """The same, and in a column without a value the last value before it."""
    values, is_there = cells_of(curve, columns)
    before = np.searchsorted(curve.steps, columns, side="right") - 1
    is_held = ~is_there & (before >= 0)
    values[is_held] = curve.values[before[is_held]]
    return Cells(values, is_there | is_held)


def plain(cells: Cells) -> list[float | str | None]:
    """Numbers for JSON: None where there is no value, a string where it is not finite.

    >>> plain(Cells(np.array([0.5, np.nan, -np.inf, 0.0]), np.array([True, True, True, False])))
    [0.5, 'nan', '-inf', None]
    """
    numbers: list[float | str | None] = cells.values.tolist()
    for i in np.flatnonzero(~(np.isfinite(cells.values) & cells.is_there)).tolist():
        numbers[i] = str(numbers[i]) if cells.is_there[i] else None
    return numbers


def plain_numbers(values: Sequence[float] | np.ndarray) -> list[float | str | None]:
    """The same for numbers that are all there."""
    array = np.asarray(values, np.float64)
    return plain(Cells(array, np.ones(len(array), dtype=bool)))
