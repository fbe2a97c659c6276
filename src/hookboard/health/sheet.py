"""`Sheet`: a look as arrays over all layers: one operation over all of them costs no more than one over a layer."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from hookboard.health.layer_table import LayerTable
from hookboard.health.look import Look
from hookboard.measure import FIELDS
from hookboard.sites import ROLES, Role

_COUNT, _MEAN, _DEVIATION, _NEGINF = map(FIELDS.index, ("count", "mean", "deviation", "neginf"))
_NONFINITE = slice(FIELDS.index("nan"), _NEGINF + 1)

_NOTHING = (0.0, math.nan, math.nan, math.nan, math.nan, 0.0, 0.0, 0.0, math.nan, math.nan)
"""The row of what was not measured."""


class Rows:
    """The merged rows of one role at one look, one for each module or weight.

    Args:
        look: the look.
        names: of the modules or weights.
        role: the role.

    All arrays have the shape (names,). Where nothing was measured, counts are 0 and all other numbers NaN.
    """

    def __init__(self, look: Look, names: tuple[str, ...], role: Role) -> None:
        places = look.table.places.rows(role, names)
        self.is_there = places >= 0
        """Whether there is a row."""
        # Of no readings at all there is no row that could be taken.
        rows = look.table.rows[places] if len(look.table) else np.empty((len(names), len(FIELDS)))
        if not self.is_there.all():
            rows[~self.is_there] = _NOTHING
        self.count, self.mean, self.deviation = rows[:, _COUNT], rows[:, _MEAN], rows[:, _DEVIATION]
        self._rows, self._table, self._places = rows, look.table, places

    @functools.cached_property
    def nonfinite(self) -> np.ndarray:
        """How many values are NaN or infinite."""
        return np.asarray(self._rows[:, _NONFINITE].sum(axis=1))

    @property
    def is_spoiled(self) -> np.ndarray:
        """Whether there was NaN or +Inf, or nothing finite: -Inf alone may be a mask."""
        is_bad = self.nonfinite > 0
        if is_bad.any():
            is_bad &= (self.nonfinite > self._rows[:, _NEGINF]) | (self.count == 0)
        return is_bad

    @functools.cached_property
    def rms(self) -> np.ndarray:
        """NaN where there is no value."""
        return np.where(self.count > 0, np.hypot(self.mean, self.deviation), np.nan)

    @functools.cached_property
    def channels(self) -> list[np.ndarray | None]:
        """The rows of the channels of each; None where there are none."""
        channels = self._table.channels
        return [None if place < 0 else channels[place] for place in self._places.tolist()]

    @functools.cached_property
    def units(self) -> "Units":
        """The same in one block."""
        return Units(self.channels, [0 if place < 0 else self._table.widths[place] for place in self._places.tolist()])

    @functools.cached_property
    def reaches(self) -> np.ndarray:
        """Of gradients: whether there is one that is not all 0."""
        # Of finite values with any other than 0 the mean or the deviation is not 0; both are 0 where there are none.
        return (self.deviation > 0) | (np.abs(self.mean) > 0) | (self.nonfinite > 0)


class Units:
    """The rows of all channels of many tensors, one behind the other.

    Args:
        channels: those of each tensor; None where there are none.
        widths: how many channels each tensor has, with or without a row.
    """

    def __init__(self, channels: Sequence[np.ndarray | None], widths: Sequence[int]) -> None:
        parts = [(place, part) for place, part in enumerate(channels) if part is not None and len(part)]
        self.places = np.array([place for place, _ in parts], dtype=np.intp)
        """Which tensors have channels, shape (tensors with channels,)."""
        self.counts = np.array([len(part) for _, part in parts], dtype=np.intp)
        """How many rows, shape (tensors with channels,)."""
        self.widths = np.array([widths[place] for place, _ in parts], dtype=np.intp)
        """How many channels, shape (tensors with channels,): of a wide tensor only every k-th has a row."""
        self.starts = np.cumsum(self.counts) - self.counts
        """Where they begin in `rows`, shape (tensors with channels,)."""
        self.rows = np.concatenate([part for _, part in parts]) if parts else np.empty((0, len(FIELDS)))
        """Shape (channels of all tensors, columns of `hookboard.measure.FIELDS`)."""

    def column(self, field: str) -> np.ndarray:
        """One column of `rows`."""
        return np.asarray(self.rows[:, FIELDS.index(field)])

    def each(self, reduce: np.ufunc, values: np.ndarray, dtype: type | None = None) -> np.ndarray:
        """Values of all channels, reduced to one number for each tensor, shape (tensors with channels,)."""
        return np.asarray(reduce.reduceat(values, self.starts, dtype=dtype))

    @functools.cached_property
    def has_values(self) -> np.ndarray:
        """Whether a channel has a finite value, shape (channels of all tensors,)."""
        return np.asarray(self.column("count") > 0)

    @functools.cached_property
    def is_zero(self) -> np.ndarray:
        """Whether all its finite values are 0, and there are some, shape (channels of all tensors,)."""
        return np.asarray((self.column("zeros") == self.column("count")) & self.has_values)

    @functools.cached_property
    def squares(self) -> np.ndarray:
        """The squared deviation of each channel, shape (channels of all tensors,); inf where float64 cannot hold it."""
        with np.errstate(over="ignore"):
            return np.asarray(np.square(self.column("deviation")))

    @functools.cached_property
    def within(self) -> np.ndarray:
        """Their sum, shape (tensors with channels,)."""
        return np.asarray(self.each(np.add, self.squares))


class Sheet:
    """A look as arrays over all layers, or all weights.

    Args:
        look: the look.
        table: the layers.
    """

    def __init__(self, look: Look, table: LayerTable) -> None:
        self.look, self.table = look, table
        self._rows: dict[Role, Rows] = {}

    def rows(self, role: Role) -> Rows:
        """The rows of a role: of each layer, or for the roles of parameters of each of `LayerTable.weights`."""
        found = self._rows.get(role)
        if found is None:
            names = self.table.weights if ROLES[role].of_parameter else self.table.names
            found = self._rows[role] = Rows(self.look, names, role)
        return found

    @functools.cached_property
    def began_at_zero(self) -> np.ndarray:
        """Of the first look: which layers had only 0 as weights before it, shape (layers,), booleans.

        Those with two or more dimensions count, or all where there is none.
        """
        table, before, after = self.table, self.rows("parameter_before"), self.rows("parameter")
        is_matrix, layers = ~np.isnan(table.inputs), len(table.names)
        counts = is_matrix | (np.bincount(table.owner, is_matrix, layers) == 0)[table.owner]
        rms = np.where(before.is_there, before.rms, after.rms)
        known, others = (np.bincount(table.owner, counts & part, layers) for part in (rms >= 0, rms > 0))
        return np.asarray((known > 0) & (others == 0))
