"""`Scales`: the RMS of what layers with weights give, against what goes in and against their weights."""

import math
from dataclasses import dataclass

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.look import Look
from hookboard.health.rules.shared import was_zero
from hookboard.health.run import Run, median_of
from hookboard.sites import Role


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
    rms = run.timeline.of("activation_rms", 1)[:, 0] if at_start else run.recent("activation_rms")[:, -1]
    layers, log, gains, weights = [], [], [], []
    before = math.nan
    for layer, value in zip(run.layers, rms.tolist(), strict=True):
        if not math.isfinite(value) or was_zero(run, layer):
            continue
        if layer.kind in ("linear", "conv") and value > 0:
            layers.append(layer)
            log.append(math.log10(value))
            gains.append(math.log10(value / before) if before > 0 else math.nan)
            weights.append(math.nan if at_start else _gain_of(run, layer))
        before = value
    return Scales(layers, np.array(log), np.array(gains), np.array(weights))


def weight_gain(look: Look, layer: Layer, name: str, role: Role = "parameter") -> float:
    """log10 of the factor by which a weight scales a signal of independent values: the L2 norm of a unit's weights."""
    reading, shape = look.numbers(name, role), layer.shapes[name]
    if len(shape) < 2 or reading is None or not reading.moments.count or not 0 < reading.moments.rms < math.inf:
        return math.nan
    return math.log10(reading.moments.rms * math.sqrt(math.prod(shape[1:])))


def _gain_of(run: Run, layer: Layer) -> float:
    gains = (weight_gain(run.now, layer, name) for name in layer.weights)
    return next((gain for gain in gains if not math.isnan(gain)), math.nan)
