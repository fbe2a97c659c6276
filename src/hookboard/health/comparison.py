"""`Comparison`: how far a model's outputs in an evaluation are from those in training, layer by layer."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hookboard.health.look import Look
from hookboard.health.running import Running, running_of
from hookboard.layers import Layer
from hookboard.measure import FIELDS

_MEAN, _DEVIATION = FIELDS.index("mean"), FIELDS.index("deviation")

FAINT = 0.1
"""Deviations of a channel below this share of the layer's RMS count as that share (a choice)."""


@dataclass(frozen=True)
class Gap:
    """How far the outputs of one layer are from those in training.

    Args:
        layer: the layer.
        size: by how many deviations the mean of the median channel differs, or by what power of e the RMS does; the
            larger one.
        usual: the same between two looks in training, the median of some; NaN if there were none, or if the evaluation
            lies farther from the last of them than the others do.
        training: the RMS in training.
        evaluation: the RMS in the evaluation.
    """

    layer: Layer
    size: float
    usual: float
    training: float
    evaluation: float


@dataclass(frozen=True)
class Comparison:
    """An evaluation and the last look in training before it.

    Args:
        step: the optimizer step of the evaluation.
        gaps: of each layer that gave outputs in both, in the order of execution.
        norms: the running statistics of those batch norms of which they can be told.
    """

    step: int
    gaps: Sequence[Gap]
    norms: Sequence[Running] = ()


def compared(evaluation: Look, training: Sequence[Look], layers: Iterable[Layer]) -> Comparison:
    """Compare an evaluation with the last of some looks in training."""
    layers = list(layers)
    *others, last = training
    # In a training that moves fast, what lies farther apart differs by more.
    are_near = bool(others) and evaluation.step - last.step <= last.step - others[0].step
    gaps = []
    for layer in layers:
        size = size_of(last, evaluation, layer)
        one, other = last.of(layer.name, "output"), evaluation.of(layer.name, "output")
        if math.isnan(size) or one is None or other is None:
            continue
        known = [size for look in others if not math.isnan(size := size_of(last, look, layer))]
        usual = float(np.median(known)) if known and are_near else math.nan
        gaps.append(Gap(layer, size_of(last, evaluation, layer), usual, one.moments.rms, other.moments.rms))
    return Comparison(evaluation.step, gaps, list(running_of(evaluation, training, layers)))


def size_of(one: Look, other: Look, layer: Layer) -> float:
    """The size of the gap between two looks, see `Gap`; NaN if it cannot be told. Dropout has no say."""
    before, after = one.of(layer.name, "output"), other.of(layer.name, "output")
    if before is None or after is None or layer.kind == "dropout":
        return math.nan
    if not (before.moments.rms > 0 and after.moments.rms > 0):
        return math.nan
    size = abs(math.log(after.moments.rms / before.moments.rms))
    if before.channels is None or after.channels is None or before.width != after.width:
        return size
    spread = np.maximum(before.channels[:, _DEVIATION], FAINT * before.moments.rms)
    shift = np.abs(after.channels[:, _MEAN] - before.channels[:, _MEAN]) / spread
    return max(size, float(np.median(shift)))
