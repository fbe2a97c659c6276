"""`symmetric_units`: units of one layer that are copies of each other, and stay so."""

from collections.abc import Iterator

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.rule import Rule
from hookboard.health.run import Run
from hookboard.health.verdict import Symptom
from hookboard.measure import FIELDS

_COUNT, _MEAN, _DEVIATION, _ABS_MEAN, _ZEROS = map(FIELDS.index, ("count", "mean", "deviation", "abs_mean", "zeros"))
_MIN, _MAX = map(FIELDS.index, ("min", "max"))

HALF = 0.5
"""Share of units with a twin above which it is an alarm: the layer is worth less than half of its size (a choice)."""

ALIKE = 1e-5
"""Two units have the same weights if no number of theirs differs by more than this share of its size: about 100
roundings of float32."""

ALIKE_GRADIENT = 1e-3
"""The same for gradients, where sums over a batch cancel."""


def _symmetric_units(run: Run) -> Iterator[Symptom]:
    for layer in run.layers:
        if layer.kind in ("embedding", "norm"):
            continue
        for name in sorted(layer.trainable):
            weight, gradient = run.now.of(name, "parameter"), run.now.of(name, "parameter_grad")
            if weight is None or gradient is None or weight.channels is None or gradient.channels is None:
                continue
            if weight.channels.shape == gradient.channels.shape:
                twins = _twins(weight.channels, gradient.channels)
                if twins >= 2:
                    yield _symmetric_symptom(layer, name, twins, len(weight.channels))


def _twins(weights: np.ndarray, gradients: np.ndarray) -> int:
    """How many units have the weights and the gradient of another unit.

    Units without any weight count only where the whole layer has none: single ones are pruned.
    """
    columns = [_MEAN, _DEVIATION, _ABS_MEAN, _MIN, _MAX]
    if not (np.isfinite(weights[:, columns]).all() and np.isfinite(gradients[:, columns]).all()):
        return 0
    is_zero = weights[:, _ZEROS] >= weights[:, _COUNT]
    counted = ~is_zero | (gradients[:, _ABS_MEAN] > 0) | is_zero.all()
    if counted.sum() < 2:
        return 0
    both = [_rounded(weights[counted][:, columns], ALIKE), _rounded(gradients[counted][:, columns], ALIKE_GRADIENT)]
    _, sizes = np.unique(np.hstack(both), axis=0, return_counts=True)
    return int(sizes[sizes > 1].sum())


def _rounded(rows: np.ndarray, share: float) -> np.ndarray:
    """The numbers of each unit in units of a share of its own size, and that size as a power of ten."""
    size = np.abs(rows).max(axis=1, keepdims=True)
    decade = np.floor(np.log10(size, where=size > 0, out=np.full_like(size, -300.0)))
    return np.hstack([np.round(rows / (share * 10.0**decade)), decade])


def _symmetric_symptom(layer: Layer, name: str, twins: int, units: int) -> Symptom:
    share = twins / units
    evidence = (
        f"{twins} of {units} units of {name} have the weights and the gradient of another unit, so they stay equal; "
        f"units of other layers differ."
    )
    advice = "Initialize its weights with random numbers, and look for weights that are copied or set to a constant."
    return Symptom(layer.name, evidence, advice, "alarm" if share > HALF else "note", size=share)


SYMMETRIC_UNITS = Rule("symmetric_units", _symmetric_units)
