"""`RunTable`: the numbers of a run, layers x looks x quantities, in memory that does not grow with the run.

A look is turned into arrays over all layers first (`LookArrays`), because one NumPy operation over all layers costs no
more than one over a single layer. `quantities_of` reduces it to one number for each layer and quantity.
"""

import functools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hookboard.health.look import Look
from hookboard.layers import Kind, Layer
from hookboard.measure import FIELDS
from hookboard.sites import ROLES, Role

QUANTITIES: dict[str, str] = {
    "activation_rms": "The RMS of the layer's output.",
    "gradient_rms": "The RMS of the gradient of the layer's output.",
    "weight_rms": "The RMS of all weights that the layer owns.",
    "weight_gradient_rms": "The RMS of the gradients of all its weights.",
    "update_ratio": "The L2 norm of what the step changed of its weights, over that of the weights before.",
    "dead_fraction": "The share of the output's channels (of more than 4096: of every k-th) that are 0 throughout.",
    "sample_spread": "How much the output differs from sample to sample (or place): deviation in a channel over RMS.",
}
"""Every quantity by name."""

RECENT_LOOKS = 64
"""Number of latest looks that `RunTable.recent` keeps."""

COURSE_COLUMNS = 256
"""Maximum number of columns of `RunTable.course`, whatever the length of the run."""

_ROW_OF = {quantity: row for row, quantity in enumerate(QUANTITIES)}

_COUNT, _MEAN, _DEVIATION, _NEGINF = map(FIELDS.index, ("count", "mean", "deviation", "neginf"))
_NONFINITE = slice(FIELDS.index("nan"), _NEGINF + 1)

_UNMEASURED = (0.0, math.nan, math.nan, math.nan, math.nan, 0.0, 0.0, 0.0, math.nan, math.nan)
"""The row of a tensor that was not measured."""


class RunTable:
    """All quantities of all layers: exactly at the latest 64 looks, and thinned out over the whole run.

    Args:
        layers: all watched layers, in the order of execution.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = LayerArrays(layers)
        """What depends on the layers alone, as arrays."""
        self.steps: list[int] = []
        """The optimizer steps of the columns of `course`."""
        self.recent_steps: deque[int] = deque(maxlen=RECENT_LOOKS)
        """The optimizer steps of the columns of `recent`."""
        shape = len(QUANTITIES), len(self.layers.names)
        # Looks come first, so that memory is used as the run goes on. `recent` slides through a block of twice its
        # length, and moves to its beginning when it comes to its end: it holds views.
        self._recent = np.empty((2 * RECENT_LOOKS, *shape))
        self._end = 0  # of the part of `_recent` in use
        self.recent: dict[str, np.ndarray]
        """Each quantity at the latest looks, shape (layers, at most 64), float64; valid until the next look."""
        self._show_recent()
        self._course = np.empty((COURSE_COLUMNS + 1, *shape))
        self._spoiled = np.empty((COURSE_COLUMNS + 1, *shape), dtype=bool)
        self._every = 1  # once in how many looks a column is added to `course`
        self._since = 0  # looks since the last one

    def add(self, step: int, values: np.ndarray, spoiled: np.ndarray) -> None:
        """Add the quantities of a look.

        Args:
            step: its optimizer step.
            values: shape (quantities, layers), see `quantities_of`.
            spoiled: shape (quantities, layers), booleans.
        """
        if self._end == len(self._recent):
            self._recent[: RECENT_LOOKS - 1] = self._recent[RECENT_LOOKS + 1 :]
            self._end = RECENT_LOOKS - 1
        self._recent[self._end] = values
        self._end += 1
        self._show_recent()
        self.recent_steps.append(step)
        self._since += 1
        if self._since < self._every:
            return
        self._since = 0
        self._course[len(self.steps)], self._spoiled[len(self.steps)] = values, spoiled
        self.steps.append(step)
        if len(self.steps) > COURSE_COLUMNS:
            self.steps, self._every = self.steps[::2], 2 * self._every
            for block in (self._course, self._spoiled):
                block[: len(self.steps)] = block[::2]

    def _show_recent(self) -> None:
        latest = self._recent[max(0, self._end - RECENT_LOOKS) : self._end]
        self.recent = dict(zip(QUANTITIES, latest.transpose(1, 2, 0), strict=True))

    def course(self, quantity: str, first: int | None = None) -> np.ndarray:
        """Return a quantity over the whole run, shape (layers, columns), float64; its columns belong to `steps`.

        Args:
            quantity: its name.
            first: return only this many of the first columns.
        """
        return np.asarray(self._course[: len(self.steps), _ROW_OF[quantity]][:first].T.copy())

    def is_spoiled(self, quantity: str) -> np.ndarray:
        """Return where the tensor behind `course` was not finite, shape (layers, columns), booleans."""
        return np.asarray(self._spoiled[: len(self.steps), _ROW_OF[quantity]].T)

    def reorder(self, layers: Sequence[Layer], place: Sequence[int]) -> None:
        """Put the layers in another order; new ones start empty.

        Args:
            layers: all watched layers, in the new order.
            place: where each of them stood before; a number beyond the last one for a new layer.
        """
        self.layers = LayerArrays(layers)
        self._recent = _in_order(self._recent, self._end, place, np.nan)
        self._show_recent()
        self._course = _in_order(self._course, len(self.steps), place, np.nan)
        self._spoiled = _in_order(self._spoiled, len(self.steps), place, False)

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept of it in a checkpoint, apart from the layers."""
        filled = len(self.steps)
        return {
            "steps": self.steps,
            "values": {quantity: self._course[:filled, row] for quantity, row in _ROW_OF.items()},
            "spoiled": {quantity: self._spoiled[:filled, row] for quantity, row in _ROW_OF.items()},
            "every": self._every,
            "since": self._since,
            "recent_steps": self.recent_steps,
            "recent": self.recent,
        }

    @staticmethod
    def of_parts(layers: Sequence[Layer], parts: Mapping[str, Any]) -> "RunTable":
        """Make a table from what `state_dict` returned."""
        table = RunTable(layers)
        table.steps, table._every, table._since = parts["steps"], parts["every"], parts["since"]
        table.recent_steps = parts["recent_steps"]
        for quantity, row in _ROW_OF.items() if table.steps else ():
            table._course[: len(table.steps), row] = parts["values"][quantity]
            table._spoiled[: len(table.steps), row] = parts["spoiled"][quantity]
            table._end = parts["recent"][quantity].shape[1]
            table._recent[: table._end, row] = parts["recent"][quantity].T
        table._show_recent()
        return table


def _in_order(block: np.ndarray, filled: int, place: Sequence[int], new: float) -> np.ndarray:
    """Take the layers of the filled part of a block from these places; a place beyond the last layer gives a new one.

    >>> _in_order(np.array([[1.0, 2.0]]), 1, [1, 0, 2], np.nan)
    array([[ 2.,  1., nan]])
    """
    filler = np.full((filled, *block.shape[1:-1], 1), new, block.dtype)
    made = np.empty((*block.shape[:-1], len(place)), block.dtype)
    made[:filled] = np.concatenate([block[:filled], filler], axis=-1)[..., list(place)]
    return made


class LayerArrays:
    """What depends on the layers alone, as arrays; computed once for as long as the layers stay the same.

    Args:
        layers: all watched layers, in the order of execution.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        weights = [(place, layer, name) for place, layer in enumerate(layers) for name in layer.weights]
        self._layers = list(layers)
        self.names = tuple(layer.name for layer in layers)
        self.places = {name: place for place, name in enumerate(self.names)}
        """Layer name -> its place."""
        self.weights = tuple(name for _, _, name in weights)
        """The names of all weights, layer by layer."""
        self.owner = np.array([place for place, _, _ in weights], dtype=np.intp)
        """The place of the layer that owns each weight, shape (weights,)."""
        self.has_matrix = np.array([layer.has_matrix for layer in layers], dtype=bool)
        """See `Layer.has_matrix`, shape (layers,)."""
        self.with_matrix: list[int] = np.flatnonzero(self.has_matrix).tolist()
        """The places of the layers with a matrix."""
        self.inputs = np.array([_inputs(layer.shapes.get(name, ())) for _, layer, name in weights])
        """Number of inputs of a unit of each weight, shape (weights,); NaN for weights with less than two dimensions.
        """
        self.is_trainable = np.array([name in layer.trainable for _, layer, name in weights], dtype=bool)
        """True for each weight that may be trained, shape (weights,)."""
        self.trainable = frozenset(name for layer in layers for name in layer.trainable)
        """The names of all weights that may be trained."""
        self.has_untrainable = any(layer.has_matrix and not layer.trainable for layer in layers)
        """True if a layer with a matrix has no weight that may be trained."""
        self.batch_norms: list[int] = np.flatnonzero([layer.is_batch_norm for layer in layers]).tolist()
        """The places of all batch norms."""
        self._of_kinds: dict[frozenset[Kind], np.ndarray] = {}

    def of_kind(self, kinds: frozenset[Kind]) -> np.ndarray:
        """Return which layers are of one of these kinds, shape (layers,), booleans."""
        found = self._of_kinds.get(kinds)
        if found is None:
            found = self._of_kinds[kinds] = np.array([layer.kind in kinds for layer in self._layers], dtype=bool)
        return found

    def first_of_each(self, is_meant: np.ndarray) -> np.ndarray:
        """Return the index of the first weight of each layer, among the weights where `is_meant`, shape (weights,)."""
        rows = np.flatnonzero(is_meant)
        return rows[np.diff(self.owner[rows], prepend=-1) > 0]


def _inputs(shape: Sequence[int]) -> float:
    return float(math.prod(shape[1:])) if len(shape) > 1 else math.nan


class LookArrays:
    """A look as arrays over all layers, or over all weights.

    Args:
        look: the look.
        layers: the layers.
    """

    def __init__(self, look: Look, layers: LayerArrays) -> None:
        self.look, self.layers = look, layers
        self._rows: dict[Role, Rows] = {}

    def rows(self, role: Role) -> "Rows":
        """Return the rows of a role: one for each layer or, for the roles of parameters, for each weight."""
        found = self._rows.get(role)
        if found is None:
            names = self.layers.weights if ROLES[role].of_parameter else self.layers.names
            found = self._rows[role] = Rows(self.look, names, role)
        return found

    @functools.cached_property
    def began_at_zero(self) -> np.ndarray:
        """Of the first look: which layers had only zeros as weights before it, shape (layers,), booleans.

        Only weights with two or more dimensions count, or all of a layer that has none.
        """
        table, before, after = self.layers, self.rows("parameter_before"), self.rows("parameter")
        is_matrix, layers = ~np.isnan(table.inputs), len(table.names)
        counts = is_matrix | (np.bincount(table.owner, is_matrix, layers) == 0)[table.owner]
        rms = np.where(before.is_there, before.rms, after.rms)
        known, others = (np.bincount(table.owner, counts & part, layers) for part in (rms >= 0, rms > 0))
        return np.asarray((known > 0) & (others == 0))


class Rows:
    """The moments of one role at one look, a row for each module or weight.

    Args:
        look: the look.
        names: of the modules or weights.
        role: the role.

    All arrays have the shape (names,). Where nothing was measured, counts are 0 and all other numbers NaN.
    """

    def __init__(self, look: Look, names: tuple[str, ...], role: Role) -> None:
        places = look.table.places.rows(role, names)
        self.is_there = places >= 0
        """True where something was measured."""
        # Without any reading there is no row that could be taken.
        rows = look.table.rows[places] if len(look.table.rows) else np.empty((len(names), len(FIELDS)))
        if not self.is_there.all():
            rows[~self.is_there] = _UNMEASURED
        self.count, self.mean, self.deviation = rows[:, _COUNT], rows[:, _MEAN], rows[:, _DEVIATION]
        self.nonfinite = np.asarray(rows[:, _NONFINITE].sum(axis=1))
        """How many values are NaN or infinite."""
        self._neginf, self._table, self._places = rows[:, _NEGINF], look.table, places

    @functools.cached_property
    def rms(self) -> np.ndarray:
        """NaN where there is no value."""
        return np.where(self.count > 0, np.hypot(self.mean, self.deviation), np.nan)

    @property
    def is_spoiled(self) -> np.ndarray:
        """True where there was NaN or +Inf, or nothing finite: -Inf alone may be a mask."""
        is_bad = self.nonfinite > 0
        if is_bad.any():
            is_bad &= (self.nonfinite > self._neginf) | (self.count == 0)
        return is_bad

    @functools.cached_property
    def units(self) -> "Units":
        """The rows of the channels of all of them, in one block."""
        channels, widths = self._table.channels, self._table.widths
        places = self._places.tolist()
        return Units(
            [None if place < 0 else channels[place] for place in places],
            [0 if place < 0 else widths[place] for place in places],
        )

    @functools.cached_property
    def reaches(self) -> np.ndarray:
        """Of gradients: True where there is one that is not all 0."""
        # Of finite values with any other than 0 the mean or the deviation is not 0; both are 0 where there are none.
        return (self.deviation > 0) | (np.abs(self.mean) > 0) | (self.nonfinite > 0)


class Units:
    """The rows of all channels of many tensors, one tensor after the other.

    Args:
        channels: those of each tensor; None where there are none.
        widths: number of channels of each tensor, with or without a row.
    """

    def __init__(self, channels: Sequence[np.ndarray | None], widths: Sequence[int]) -> None:
        parts = {place: part for place, part in enumerate(channels) if part is not None and len(part)}
        self.places = np.array([*parts], dtype=np.intp)
        """Which tensors have channels, shape (tensors with channels,)."""
        self.counts = np.array([*map(len, parts.values())], dtype=np.intp)
        """How many rows each has, shape (tensors with channels,)."""
        self.widths = np.array(widths, dtype=np.intp)[self.places]
        """How many channels each has, shape (tensors with channels,): of a wide tensor only every k-th has a row."""
        self.starts = np.cumsum(self.counts) - self.counts
        """Where each begins in `rows`, shape (tensors with channels,)."""
        self.rows = np.concatenate([*parts.values()]) if parts else np.empty((0, len(FIELDS)))
        """Shape (channels of all tensors, columns of `hookboard.measure.FIELDS`)."""
        self.columns = dict(zip(FIELDS, self.rows.T, strict=True))
        """The columns of `rows` by name."""

    def each(self, reduce: np.ufunc, values: np.ndarray, dtype: type | None = None) -> np.ndarray:
        """Reduce values of all channels to one number for each tensor, shape (tensors with channels,)."""
        return np.asarray(reduce.reduceat(values, self.starts, dtype=dtype))

    @functools.cached_property
    def has_values(self) -> np.ndarray:
        """True for channels with a finite value, shape (channels of all tensors,)."""
        return np.asarray(self.columns["count"] > 0)

    @functools.cached_property
    def is_zero(self) -> np.ndarray:
        """True for channels whose finite values are all 0, and that have some, shape (channels of all tensors,)."""
        return np.asarray((self.columns["zeros"] == self.columns["count"]) & self.has_values)

    @functools.cached_property
    def squares(self) -> np.ndarray:
        """The squared deviation of each channel, shape (channels of all tensors,); inf where float64 cannot hold it."""
        with np.errstate(over="ignore"):
            return np.asarray(np.square(self.columns["deviation"]))

    @functools.cached_property
    def within(self) -> np.ndarray:
        """The sum of `squares` of each tensor, shape (tensors with channels,)."""
        return np.asarray(self.each(np.add, self.squares))


def quantities_of(look: LookArrays) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a look to all quantities of all layers.

    Returns:
        The values, shape (quantities, layers), in the order of `QUANTITIES`; NaN where there was nothing. And where the
        tensor behind a value held NaN or +Inf, or nothing finite, same shape, booleans (-Inf alone may be a mask); it
        is told of outputs, their gradients and updates, and False for weights and their gradients.
    """
    output, gradient = look.rows("output"), look.rows("grad_output")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratios, bad_updates = _updates(look)
        values = {
            "activation_rms": output.rms,
            "gradient_rms": gradient.rms,
            "weight_rms": _joint_rms(look, look.rows("parameter")),
            "weight_gradient_rms": _joint_rms(look, look.rows("parameter_grad")),
            "update_ratio": ratios,
            "dead_fraction": _dead_fractions(output),
            "sample_spread": _sample_spreads(output),
        }
    bad_outputs, never = output.is_spoiled, np.zeros_like(bad_updates)
    spoiled = {
        "activation_rms": bad_outputs,
        "gradient_rms": gradient.is_spoiled,
        "update_ratio": bad_updates,
        "dead_fraction": bad_outputs,
        "sample_spread": bad_outputs,
    }
    return np.array([values[name] for name in QUANTITIES]), np.array([spoiled.get(name, never) for name in QUANTITIES])


def _joint_rms(look: LookArrays, rows: Rows, counted: np.ndarray | None = None) -> np.ndarray:
    """Return the RMS of all weights of each layer, shape (layers,).

    Args:
        look: the look.
        rows: of each weight.
        counted: which weights count, shape (weights,); left out, all.
    """
    count = rows.count if counted is None else rows.count * counted
    squares = np.where(count > 0, rows.rms * rows.rms * count, 0.0)
    owner, layers = look.layers.owner, len(look.layers.names)
    return np.sqrt(np.bincount(owner, squares, layers) / np.bincount(owner, count, layers))


def _updates(look: LookArrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the update ratio of each layer, and where it is spoiled."""
    before, update = look.rows("parameter_before"), look.rows("parameter_update")
    layers = look.layers
    is_spoiled = np.bincount(layers.owner, before.is_spoiled | update.is_spoiled, len(layers.names)) > 0
    whole, step = _joint_rms(look, before, update.is_there), _joint_rms(look, update)
    ratios = np.where(whole != 0, step / whole, np.where(step != 0, np.inf, np.nan))
    return ratios, is_spoiled


def _dead_fractions(output: Rows) -> np.ndarray:
    """Return the share of channels with nothing but zeros, among those with a finite value."""
    units = output.units
    dead = units.is_zero
    if output.nonfinite.any():
        is_finite = [units.columns[field] == 0 for field in ("nan", "posinf", "neginf")]
        dead = np.logical_and.reduce([dead, *is_finite])
    shares = np.full(len(output.count), np.nan)
    shares[units.places] = units.each(np.add, dead, np.intp) / units.each(np.add, units.has_values, np.intp)
    return shares


def _sample_spreads(output: Rows) -> np.ndarray:
    units = output.units
    mean = units.columns["mean"]
    within = units.within
    whole = within + units.each(np.add, mean * mean)
    spreads = np.full(len(output.count), np.nan)
    spreads[units.places] = np.where((whole > 0) & (whole < np.inf), np.sqrt(within / whole), np.nan)
    return spreads
