"""`Scales`: the RMS of what layers with weights give, against what goes in and against their weights."""

import math
from dataclasses import dataclass

import numpy as np

from hookboard.health.look import Look
from hookboard.health.run import Run, median_of
from hookboard.layers import Kind, Layer
from hookboard.sites import Role

WEIGHING: frozenset[Kind] = frozenset({"linear", "conv"})
"""Kinds of layers whose weights scale a signal."""


@dataclass(frozen=True)
class Scales:
    """The scale of linear and convolutional layers at one look.

    Args:
        layers: those with an output that is not 0, in the order of execution.
        log: log10 of the RMS of their outputs, shape (layers,).
        gains: log10 of the RMS of their outputs over that of what ran just before; NaN where nothing did.
        weights: log10 of the RMS of their weights times the root of how many inputs a unit has; NaN if not known.
    """

    layers: list[Layer]
    log: np.ndarray
    gains: np.ndarray
    weights: np.ndarray

    def heaviness(self, layer: Layer) -> float:
        """By how many powers of ten its weights scale more than those of the others; NaN if not known."""
        place = next((i for i, other in enumerate(self.layers) if other.name == layer.name), None)
        if place is None:
            return math.nan
        return float(self.weights[place] - median_of(np.delete(self.weights, place)))


def scales_of(run: Run, at_start: bool = False) -> Scales:
    """The scales at the latest look, or at the first.

    Layers whose weights began at 0 are left out: they are to grow.
    """
    rms = run.course("activation_rms", 1)[:, 0] if at_start else run.recent("activation_rms")[:, -1]
    used = np.flatnonzero(np.isfinite(rms) & ~run.initial.began_at_zero)
    values = rms[used]
    before = np.append(np.nan, values)[:-1]
    is_main = run.arrays.of_kind(WEIGHING)[used] & (values > 0)
    places, now, before = used[is_main], values[is_main], before[is_main]
    ratios = np.divide(now, before, out=np.full_like(now, np.nan), where=before > 0)
    weights = np.full_like(now, np.nan) if at_start else _weight_gains(run)[places]
    return Scales([run.layers[place] for place in places.tolist()], np.log10(now), np.log10(ratios), weights)


def _weight_gains(run: Run) -> np.ndarray:
    """The gain of the first weight of each layer that has one, see `weight_gain`; shape (layers,)."""
    rms, table = run.latest.rows("parameter").rms, run.arrays
    size = rms * np.sqrt(table.inputs)
    first = table.first_of_each((size > 0) & (rms < np.inf))
    gains = np.full(len(table.names), np.nan)
    gains[table.owner[first]] = np.log10(size[first])
    return gains


def weight_gain(look: Look, layer: Layer, name: str, role: Role = "parameter") -> float:
    """log10 of the factor by which a weight scales a signal of independent values: the L2 norm of a unit's weights."""
    reading, shape = look.numbers(name, role), layer.shapes[name]
    if len(shape) < 2 or reading is None or not reading.moments.count or not 0 < reading.moments.rms < math.inf:
        return math.nan
    return math.log10(reading.moments.rms * math.sqrt(math.prod(shape[1:])))
