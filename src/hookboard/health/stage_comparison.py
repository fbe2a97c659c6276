"""`StageComparison`: an evaluation against training, and running statistics of batch norms against those of batches."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hookboard.health.look import Look
from hookboard.health.robust import median_of
from hookboard.measure.row import FIELDS
from hookboard.model.layers import Layer

_MEAN, _DEVIATION, _MIN, _MAX = map(FIELDS.index, ("mean", "deviation", "min", "max"))

FAINT_DEVIATION_SHARE = 0.1
"""Floor of a channel's standard deviation, as a share of the layer's RMS (a choice)."""


@dataclass(frozen=True)
class Gap:
    """How far the outputs of one layer in an evaluation are from those in training."""

    layer: Layer
    size: float  # in deviations of a channel's mean or powers of e of the RMS, see `size_of`
    usual: float  # the median of the same between looks in training; NaN without any, or if the evaluation is far off
    training: float  # the RMS
    evaluation: float  # the RMS


@dataclass(frozen=True)
class Running:
    """The running statistics of one batch norm, compared with the statistics of batches (`_distance`)."""

    layer: Layer
    now: float  # from those of the last look in training
    before: float  # the least: from those of an earlier look, or averaged over the last two or more; inf without one


@dataclass(frozen=True)
class StageComparison:
    """An evaluation, compared with the last look in training before it."""

    step: int
    gaps: Sequence[Gap]  # of layers with outputs in both, in the order of execution; not of dropouts and losses
    norms: Sequence[Running] = ()  # of which they can be inferred
    has_other_weights: bool = False


def compared(evaluation: Look, training: Sequence[Look], layers: Sequence[Layer]) -> StageComparison:
    """Compare an evaluation with the last look in training; the looks before it tell which gaps are usual."""
    *others, last = training
    # In a training that moves fast, what lies farther apart differs by more.
    are_near = bool(others) and evaluation.step - last.step <= last.step - others[0].step
    gaps = []
    for layer in layers:
        size = size_of(last, evaluation, layer)
        one, other = last.of(layer.name, "output"), evaluation.of(layer.name, "output")
        if math.isnan(size) or one is None or other is None:
            continue
        usual = median_of(size_of(last, look, layer) for look in others) if are_near else math.nan
        gaps.append(Gap(layer, size, usual, one.moments.rms, other.moments.rms))
    norms = list(running_of(evaluation, training, layers))
    return StageComparison(evaluation.step, gaps, norms, evaluation.has_other_weights)


def size_of(one: Look, other: Look, layer: Layer) -> float:
    """Return how far a layer's outputs differ between two looks; NaN if unknown, for dropout and losses."""
    before, after = one.of(layer.name, "output"), other.of(layer.name, "output")
    if before is None or after is None or layer.kind == "dropout" or layer.type.endswith("Loss"):
        return math.nan
    if not (before.moments.rms > 0 and after.moments.rms > 0):
        return math.nan
    # The larger of two: |log| of the ratio of the RMS, and the shift of the median channel's mean in deviations.
    size = abs(math.log(after.moments.rms / before.moments.rms))
    if before.channels is None or after.channels is None or before.width != after.width:
        return size
    spread = np.maximum(before.channels[:, _DEVIATION], FAINT_DEVIATION_SHARE * before.moments.rms)
    shift = np.abs(after.channels[:, _MEAN] - before.channels[:, _MEAN]) / spread
    return max(size, float(np.median(shift)))


AFFINE_TOLERANCE = 0.02
"""Relative difference of the ends of a norm's input and output up to which it is affine (a choice; bfloat16: 0.004)."""

MOVED_CHANNEL_SHARE = 0.05
"""Share of its standard deviation above which a step that moves the gain or bias of a channel makes it useless for the
comparison (a choice): the evaluation comes after that step."""

TINY_SPREAD = 1e-30  # avoids division by zero


def running_of(evaluation: Look, training: Sequence[Look], layers: Iterable[Layer]) -> Iterator[Running]:
    """Yield how far the running statistics of each batch norm, inferred from an evaluation, are from batches'."""
    *others, last = training
    for source, norm in pairwise(layers):
        if not norm.is_batch_norm:
            continue
        went_in, came_out = _channels(evaluation, source), _channels(evaluation, norm)
        now, usual, past = _channels(last, source), _channels(last, norm), [_channels(look, source) for look in others]
        if went_in is None or came_out is None or usual is None or now is None:
            continue
        if len({part.shape for part in (went_in, came_out, usual, now)}) > 1:
            continue
        signs = _signs(went_in, came_out)
        alive = (
            (signs != 0)
            & (MOVED_CHANNEL_SHARE * usual[:, _DEVIATION] > _moved(last, norm))
            & (came_out[:, _DEVIATION] > 0)
        )
        if 2 * alive.sum() < len(alive):
            continue
        # A norm maps x to a * x + b. In evaluation, a is the gain over the running deviation; in training, over that
        # of the batch, and b makes the mean of the output the bias. So both outputs tell the running statistics.
        slope = signs[alive] * came_out[alive, _DEVIATION] / went_in[alive, _DEVIATION]
        mean = went_in[alive, _MEAN] - (came_out[alive, _MEAN] - usual[alive, _MEAN]) / slope
        deviation = usual[alive, _DEVIATION] / np.abs(slope)
        looks = [part[alive] for part in past if part is not None and part.shape == now.shape]
        latest = [*looks, now[alive]]
        averages = [np.mean(latest[-count:], axis=0) for count in range(2, len(latest) + 1)]
        distances = [_distance(mean, deviation, part) for part in (*looks, *averages)]
        yield Running(norm, _distance(mean, deviation, now[alive]), min(distances, default=math.inf))


def _channels(look: Look, layer: Layer) -> np.ndarray | None:
    reading = look.of(layer.name, "output")
    return None if reading is None or reading.moments.nonfinite else reading.channels


def _moved(look: Look, norm: Layer) -> float:
    updates = (look.of(name, "parameter_update") for name in norm.weights)
    return max((update.moments.rms for update in updates if update is not None), default=0.0)


def _signs(went_in: np.ndarray, came_out: np.ndarray) -> np.ndarray:
    """Return the sign of the factor by which a norm scales each channel, shape (channels,); 0 if it is not affine."""
    # An affine map keeps the distances of min and max from the mean, in deviations; a negative factor swaps them.
    ends = [
        (part[:, [_MIN, _MAX]] - part[:, [_MEAN]]) / np.maximum(part[:, [_DEVIATION]], TINY_SPREAD)
        for part in (went_in, came_out)
    ]
    same, turned = (np.abs(ends[1] - other).max(axis=1) for other in (ends[0], -ends[0][:, ::-1]))
    is_affine = np.minimum(same, turned) < AFFINE_TOLERANCE * np.abs(ends[0]).max(axis=1)
    return np.asarray(np.where(same <= turned, 1.0, -1.0) * is_affine)


def _distance(mean: np.ndarray, deviation: np.ndarray, batch: np.ndarray) -> float:
    spread = np.maximum(batch[:, _DEVIATION], TINY_SPREAD)
    shift = float(np.median(np.abs(mean - batch[:, _MEAN]) / spread))
    return max(shift, float(np.median(np.abs(np.log(np.maximum(deviation, TINY_SPREAD) / spread)))))
