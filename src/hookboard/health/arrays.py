"""`LookArrays`: a look as arrays over all layers, where one NumPy operation serves all; and the `Silence` of units."""

import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hookboard.health.look import Look
from hookboard.measure.row import FIELDS, Places, Readings
from hookboard.model.layers import Kind, Layer
from hookboard.model.sites import Role

QUANTITIES: dict[str, str] = {
    "activation_rms": "The RMS of the layer's output.",
    "gradient_rms": "The RMS of the gradient with respect to the layer's output.",
    "weight_rms": "The RMS of all weights and biases that the layer owns.",
    "weight_gradient_rms": "The RMS of the gradients of all its weights.",
    "update_ratio": "The L2 norm of the weights' change in the step relative to their norm before (inf if it was 0).",
    "dead_fraction": "The fraction of the output's channels (every k-th if there are over 1024) that are always 0.",
    "sample_spread": "A channel's standard deviation over samples (or positions), relative to the RMS of the output.",
    "expert_share": "The fraction of a router's choices that go to its busiest expert.",
}

SPOILED = {
    "activation_rms": "is_output_spoiled",
    "dead_fraction": "is_output_spoiled",
    "sample_spread": "is_output_spoiled",
    "gradient_rms": "is_gradient_spoiled",
    "update_ratio": "is_update_spoiled",
}
"""Quantity -> the column that is 1 where its tensor had NaN or +Inf, or nothing finite: -Inf alone may be a mask."""

COLUMN_OF = {name: column for column, name in enumerate(dict.fromkeys([*QUANTITIES, *SPOILED.values()]))}
"""The column of each number in what `numbers_of` returns."""

ROLES_OF_LAYERS: tuple[Role, ...] = ("output", "grad_output")
"""The roles whose moments are arrays over the layers, see `LookArrays.rows`."""

ROLES_OF_WEIGHTS: tuple[Role, ...] = ("parameter_before", "parameter_grad", "parameter_update")
"""The roles whose moments are arrays over the weights."""

_COUNT, _MEAN, _DEVIATION, _NEGINF = map(FIELDS.index, ("count", "mean", "deviation", "neginf"))
_NONFINITE = slice(FIELDS.index("nan"), _NEGINF + 1)

_UNMEASURED = (0.0, math.nan, math.nan, math.nan, math.nan, 0.0, 0.0, 0.0, math.nan, math.nan)
"""The row of a tensor that was not measured."""


class LayerArrays:
    """Arrays that depend on the layers alone, not on a look. "Place" is an index into `layers`."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        weights = [(place, layer, name) for place, layer in enumerate(layers) for name in layer.weights]
        self._layers = list(layers)
        self.names = tuple(layer.name for layer in layers)
        self.places = {name: place for place, name in enumerate(self.names)}
        self.weights = tuple(name for _, _, name in weights)  # all of them, layer by layer
        self.owner = np.array([place for place, _, _ in weights], dtype=np.intp)  # each weight's layer
        self.has_matrix = np.array([layer.has_matrix for layer in layers], dtype=bool)
        self.with_matrix: list[int] = np.flatnonzero(self.has_matrix).tolist()
        shapes = [layer.shapes.get(name, ()) for _, layer, name in weights]
        # Number of inputs of a unit of each weight; NaN for weights with less than two dimensions.
        self.inputs = np.array([math.prod(shape[1:]) if len(shape) > 1 else math.nan for shape in shapes], dtype=float)
        self.is_trainable = np.array([name in layer.trainable for _, layer, name in weights], dtype=bool)
        self._sought = dict.fromkeys(ROLES_OF_LAYERS, self.names) | dict.fromkeys(ROLES_OF_WEIGHTS, self.weights)
        ends = np.cumsum([0, *map(len, self._sought.values())]).tolist()
        self.parts: dict[Role, slice] = dict(zip(self._sought, map(slice, ends, ends[1:]), strict=True))
        self._of_kinds: dict[frozenset[Kind], np.ndarray] = {}
        self._rows_in: tuple[Places, np.ndarray] | None = None

    def rows_in(self, places: Places) -> np.ndarray:
        """Return the rows of all layers and weights in a table of readings, role after role (`parts`); -1 for none."""
        if self._rows_in is None or self._rows_in[0] is not places:
            self._rows_in = places, np.concatenate([places.rows(*sought) for sought in self._sought.items()])
        return self._rows_in[1]

    def of_kind(self, kinds: frozenset[Kind]) -> np.ndarray:
        """Return which layers are of one of these kinds, shape (layers,), bool."""
        found = self._of_kinds.get(kinds)
        if found is None:
            found = self._of_kinds[kinds] = np.array([layer.kind in kinds for layer in self._layers], dtype=bool)
        return found

    def first_of_each(self, is_meant: np.ndarray) -> np.ndarray:
        """Return indices into `weights`: of each layer the first weight for which `is_meant` is true, if any."""
        rows = np.flatnonzero(is_meant)
        return rows[np.diff(self.owner[rows], prepend=-1) > 0]


class LookArrays:
    """The moments of one look as arrays over all layers, or over all weights."""

    def __init__(self, look: Look, layers: LayerArrays) -> None:
        self.look, self.layers = look, layers
        self._rows_in_look = layers.rows_in(look.readings.places)
        # What was not measured has the row -1, the last one.
        block = np.vstack([look.readings.rows, _UNMEASURED])[self._rows_in_look]
        count, nonfinite = block[:, _COUNT], block[:, _NONFINITE].sum(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):
            rms = np.where(count > 0, np.hypot(block[:, _MEAN], block[:, _DEVIATION]), np.nan)
        is_spoiled = (nonfinite > 0) & ((nonfinite > block[:, _NEGINF]) | (count == 0))  # -Inf alone may be a mask
        is_there, mean, deviation = self._rows_in_look >= 0, block[:, _MEAN], block[:, _DEVIATION]
        columns = is_there, count, mean, deviation, rms, nonfinite, is_spoiled
        self.rows = {role: Rows(*[column[part] for column in columns]) for role, part in layers.parts.items()}

    @functools.cached_property
    def outputs(self) -> "Units":
        """The statistics of each channel of the outputs of all layers."""
        return Units(self.look.readings, self._rows_in_look[self.layers.parts["output"]])

    @functools.cached_property
    def weights(self) -> "Units":
        """The statistics of each unit (first dimension) of all weights."""
        return Units(self.look.readings, self._rows_in_look[self.layers.parts["parameter_before"]])

    @functools.cached_property
    def began_at_zero(self) -> np.ndarray:
        """Which layers had only zeros as weights before the step of this look, shape (layers,), bool."""
        table, rms = self.layers, self.rows["parameter_before"].rms
        is_matrix, layers = ~np.isnan(table.inputs), len(table.names)
        # Only weights with two or more dimensions count; in a layer without any, all do.
        counts = is_matrix | (np.bincount(table.owner, is_matrix, layers) == 0)[table.owner]
        known, others = (np.bincount(table.owner, counts & part, layers) for part in (rms >= 0, rms > 0))
        return np.asarray((known > 0) & (others == 0))


@dataclass(slots=True, eq=False)
class Rows:
    """The moments of the finite values of one role, shape (layers,) or (weights,); without any, NaN and counts of 0.

    These are what rules ask of all layers at once; `run.now.of(name, role).moments` has the rest.
    """

    is_there: np.ndarray
    count: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    rms: np.ndarray
    nonfinite: np.ndarray
    is_spoiled: np.ndarray

    @property
    def reaches(self) -> np.ndarray:
        """True where a value other than 0 was measured (NaN and Inf too), same shape. Of gradients: one arrives."""
        # Of finite values with any other than 0 the mean or the deviation is not 0; both are 0 where there are none.
        return np.asarray((self.deviation > 0) | (np.abs(self.mean) > 0) | (self.nonfinite > 0))


class Units:
    """The statistics of each channel of several tensors, in columns of shape (channels of all tensors,)."""

    def __init__(self, table: Readings, rows: np.ndarray) -> None:
        channels = [None if row < 0 else table.channels[row] for row in rows.tolist()]
        parts = {place: part for place, part in enumerate(channels) if part is not None and len(part)}
        self.places = np.array([*parts], dtype=np.intp)  # indices of the tensors that were measured and have channels
        self.counts = np.array([*map(len, parts.values())], dtype=np.intp)  # how many channels of each are in `columns`
        self.widths = np.array(table.widths, dtype=np.intp)[rows[self.places]]  # in `columns` maybe every k-th
        self.starts = np.cumsum(self.counts) - self.counts  # `np.add.reduceat(column, starts)` sums over each
        # Transposed, so that each column is contiguous: thousands of channels are gone through several times.
        all_parts = [part.T for part in parts.values()] or [np.empty((len(FIELDS), 0))]
        self.columns = dict(zip(FIELDS, np.concatenate(all_parts, axis=1), strict=True))
        self.has_values = np.asarray(self.columns["count"] > 0)  # finite ones
        self.is_zero = np.asarray((self.columns["zeros"] == self.columns["count"]) & self.has_values)


def numbers_of(look: LookArrays) -> np.ndarray:
    """Return what `COLUMN_OF` names of all layers at a look, shape (columns, layers); NaN where it is not known."""
    layers, rows = look.layers, look.rows
    output, gradient, weights, updates = (
        rows[role] for role in ("output", "grad_output", "parameter_before", "parameter_update")
    )
    is_moved = updates.is_there
    if look.look.factors:  # one begins at 0: their own steps tell no rate
        is_moved = is_moved & ~np.isin(layers.weights, [*look.look.factors])
    is_spoiled = weights.is_spoiled | updates.is_spoiled
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        before, step = _rms_of_layers(layers, weights, is_moved), _rms_of_layers(layers, updates, is_moved)
        dead_fraction, sample_spread = _shares_of_units(look)
        found = {
            "activation_rms": output.rms,
            "gradient_rms": gradient.rms,
            "weight_rms": _rms_of_layers(layers, weights),
            "weight_gradient_rms": _rms_of_layers(layers, rows["parameter_grad"]),
            "update_ratio": np.where(before != 0, step / before, np.where(step != 0, np.inf, np.nan)),
            "dead_fraction": dead_fraction,
            "sample_spread": sample_spread,
            "expert_share": _shares_of_experts(look),
            "is_output_spoiled": output.is_spoiled,
            "is_gradient_spoiled": gradient.is_spoiled,
            "is_update_spoiled": np.bincount(layers.owner, is_spoiled, len(layers.names)) > 0,
        }
    return np.array([found[name] for name in COLUMN_OF])


def _rms_of_layers(layers: LayerArrays, rows: Rows, is_meant: np.ndarray | None = None) -> np.ndarray:
    count = rows.count if is_meant is None else rows.count * is_meant
    squares = np.where(count > 0, rows.rms * rows.rms * count, 0.0)
    of_layers = len(layers.names)
    return np.sqrt(np.bincount(layers.owner, squares, of_layers) / np.bincount(layers.owner, count, of_layers))


def _shares_of_units(look: LookArrays) -> tuple[np.ndarray, np.ndarray]:
    """Return `dead_fraction` and `sample_spread` of each layer, shape (layers,) each; NaN where there is none."""
    units, columns = look.outputs, look.outputs.columns
    fraction, spread = np.full(len(look.layers.names), np.nan), np.full(len(look.layers.names), np.nan)
    dead = units.is_zero
    if look.rows["output"].nonfinite.any():
        dead = dead & (columns["nan"] + columns["posinf"] + columns["neginf"] == 0)
    counts = [np.add.reduceat(part, units.starts, dtype=np.intp) for part in (dead, units.has_values)]
    fraction[units.places] = counts[0] / counts[1]
    within = np.add.reduceat(np.square(columns["deviation"]), units.starts)
    whole = within + np.add.reduceat(np.square(columns["mean"]), units.starts)
    spread[units.places] = np.where((whole > 0) & (whole < np.inf), np.sqrt(within / whole), np.nan)
    return fraction, spread


def _shares_of_experts(look: LookArrays) -> np.ndarray:
    shares = np.full(len(look.layers.names), np.nan)
    for name in look.look.readings.places.names("expert_tokens"):
        reading = look.look.of(name, "expert_tokens")
        if reading is not None and reading.channels is not None and name in look.layers.places:
            tokens = reading.channels[:, _COUNT] * reading.channels[:, _MEAN]
            shares[look.layers.places[name]] = tokens.max() / tokens.sum()
    return shares


SILENT_AT_ZERO_KINDS: frozenset[Kind] = frozenset({"rectifier", "dropout"})
"""Kinds of layers whose units are silent if all their outputs are exactly 0."""

SILENT_BELOW_ZERO_KINDS: frozenset[Kind] = frozenset({"linear", "conv", "norm"})
"""Kinds whose units a rectifier behind them would silence: no output above 0, not all 0, as they are without input."""

USUAL_SILENCE_QUANTILE = 0.75
"""The usual silence in a layer is this quantile, over its units, of the longest silence that has ended (a choice)."""


class Silence:
    """Counts for each unit of all layers how long no sample has activated it, where its layer can be silent."""

    def __init__(self, layers: Mapping[str, tuple[int, int]], units: np.ndarray | None = None) -> None:
        self.layers = dict(layers)  # name -> its number of units, and of those counted: in a wide one every k-th
        self.counts = np.array([count for _, count in self.layers.values()], dtype=np.intp)
        ends = np.cumsum(self.counts)
        self.starts = ends - self.counts
        self.parts = dict(zip(self.layers, map(slice, self.starts.tolist(), ends.tolist()), strict=True))
        self.units = np.zeros((4, self.counts.sum())) if units is None else units
        # Of each unit, layer after layer. Of its silence now: the step of the first look, and how many looks and values
        # (samples x positions) it has lasted, 0 for an active unit. Of those that have ended: the longest, in looks.
        self.since, self.looks, self.samples, self.ended = map(np.asarray, self.units)
        self._seen: list[tuple[str, int, int]] = []  # the layers of the latest look
        self._places = np.zeros(0, dtype=np.intp)  # where the units of that look are in these arrays

    def among(self, names: Collection[str]) -> "Silence":
        """Return the counts of these layers alone, as far as they are known."""
        units = np.repeat([name in names for name in self.layers], self.counts).astype(bool)
        return Silence({name: both for name, both in self.layers.items() if name in names}, self.units[:, units])

    def with_layers_of(self, look: LookArrays) -> "Silence":
        """Return the counts with the layers of a look; those that are new, or have another width, begin anew."""
        units, names = look.outputs, look.layers.names
        facts = units.places.tolist(), units.widths.tolist(), units.counts.tolist()
        seen = [(names[place], width, count) for place, width, count in zip(*facts, strict=True)]
        if seen == self._seen:
            return self
        new = {name: (width, count) for name, width, count in seen if self.layers.get(name) != (width, count)}
        old = self.among(self.layers.keys() - new.keys())
        found = Silence(old.layers | new, np.hstack([old.units, Silence(new).units]))
        places = np.arange(len(found.looks))
        found._seen, found._places = seen, np.concatenate([places[:0], *(places[found.parts[one[0]]] for one in seen)])
        return found

    def count(self, look: LookArrays) -> None:
        """Update the counts with one more look; those of units without values, or of layers with NaN or Inf, stay."""
        layers, units = look.layers, look.outputs
        is_finite = look.rows["output"].nonfinite[units.places] == 0
        may_be_0, may_be_below = (
            np.repeat(is_finite & layers.of_kind(kinds)[units.places], units.counts)
            for kinds in (SILENT_AT_ZERO_KINDS, SILENT_BELOW_ZERO_KINDS)
        )
        is_below = (units.columns["max"] <= 0) & units.has_values & ~units.is_zero
        is_silent = (units.is_zero & may_be_0) | (is_below & may_be_below)
        was_silent = self.looks[self._places] > 0
        back = self._places[was_silent & units.has_values & ~is_silent & (may_be_0 | may_be_below)]
        self.ended[back] = np.maximum(self.ended[back], self.looks[back])
        self.looks[back] = self.samples[back] = 0
        rows = np.flatnonzero(is_silent)
        now = self._places[rows]
        self.since[now[self.looks[now] == 0]] = look.look.step
        self.looks[now] += 1
        self.samples[now] += units.columns["count"][rows]

    def lasting(self, looks: int) -> np.ndarray:
        """Return which units have been silent for at least this many looks, shape (units,), bool."""
        lasts = self.looks >= looks
        # Also over twice as long as the longest earlier silence of the unit, and as the usual one in its layer.
        has_ended = np.logical_or.reduceat(lasts, self.starts) & (np.maximum.reduceat(self.ended, self.starts) > 0)
        for part in itertools.compress(self.parts.values(), has_ended.tolist()):
            ended = self.ended[part]
            usual = np.sort(ended)[int(USUAL_SILENCE_QUANTILE * len(ended))]
            lasts[part] &= self.looks[part] > 2 * np.maximum(ended, usual)
        return lasts


def onsets(began: np.ndarray, since: int) -> tuple[int, str]:
    """Return the step at which most units fell silent (the first such), and a clause with how many had by step `since`.

    >>> onsets(np.array([10, 10, 10]), 10), onsets(np.array([0, 0, 10, 20, 30]), 20)
    ((10, 'since step 10'), (0, 'since step 30 (4 of them by step 20)'))
    """
    steps, counts = np.unique(began, return_counts=True)
    onset, last = int(steps[counts.argmax()]), int(steps[-1])
    earlier = f" ({(began <= since).sum()} of them by step {since})" if since < last else ""
    return onset, f"since step {last}{earlier}"
