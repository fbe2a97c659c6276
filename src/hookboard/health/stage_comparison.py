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
    """How far the outputs of one layer in an evaluation are from those in training.

    Args:
        size: the larger of two: the difference between the means of a channel, in standard deviations, as the median
            over the channels; and the absolute value of the natural logarithm of the ratio of the RMS.
        usual: the same between the last look in training and each of the looks before it, as their median; NaN if there
            were none, or if more steps lie between the last look and the evaluation than between the oldest of these
            looks and the last one.
        training: the RMS in training.
        evaluation: the RMS in the evaluation.
    """

    layer: Layer
    size: float
    usual: float
    training: float
    evaluation: float


@dataclass(frozen=True)
class Running:
    """The running statistics of one batch norm, compared with the statistics of batches.

    Args:
        now: how far the running statistics are from the batch statistics of the last look in training. The larger of
            two medians over the channels: the difference of the means in standard deviations, and the absolute value of
            the natural logarithm of the ratio of the standard deviations.
        before: the smallest such distance to the batch statistics of an earlier look, or to their average over the last
            two or more looks; inf if there was no earlier look.
    """

    layer: Layer
    now: float
    before: float


@dataclass(frozen=True)
class StageComparison:
    """An evaluation, compared with the last look in training before it.

    Args:
        gaps: the gap of each layer that gave outputs in both, in the order of execution; not of dropouts and losses.
        norms: the running statistics of the batch norms for which they can be inferred.
        has_other_weights: see `Look.has_other_weights`.
    """

    step: int
    gaps: Sequence[Gap]
    norms: Sequence[Running] = ()
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
    """Return how far a layer's outputs differ between two looks, see `Gap`; NaN if unknown, for dropout and losses."""
    before, after = one.of(layer.name, "output"), other.of(layer.name, "output")
    if before is None or after is None or layer.kind == "dropout" or layer.type.endswith("Loss"):
        return math.nan
    if not (before.moments.rms > 0 and after.moments.rms > 0):
        return math.nan
    size = abs(math.log(after.moments.rms / before.moments.rms))
    if before.channels is None or after.channels is None or before.width != after.width:
        return size
    spread = np.maximum(before.channels[:, _DEVIATION], FAINT_DEVIATION_SHARE * before.moments.rms)
    shift = np.abs(after.channels[:, _MEAN] - before.channels[:, _MEAN]) / spread
    return max(size, float(np.median(shift)))


AFFINE_TOLERANCE = 0.02
"""Relative difference between the extremes of a norm's output and of its input, in standard deviations from the mean,
up to which the norm counts as an affine map (a choice: bfloat16 rounds to 0.004)."""

MOVED_CHANNEL_SHARE = 0.05
"""Share of its standard deviation above which a step that moves the gain or bias of a channel makes that channel
useless for the comparison (a choice): the evaluation comes after that step."""

TINY_SPREAD = 1e-30
"""Avoids division by zero."""


def running_of(evaluation: Look, training: Sequence[Look], layers: Iterable[Layer]) -> Iterator[Running]:
    """Yield for each batch norm how far its running statistics are from those of training batches.

    The running statistics are inferred from its inputs and outputs in an evaluation.
    A norm maps each channel x to a * x + b. In evaluation, a is the gain divided by the running deviation; in training,
    it is the gain divided by the deviation of the batch, and b makes the mean of the output equal to the bias. So the
    outputs in both tell the running mean and deviation. A norm is left out if an output is missing or not finite, if
    the layer that ran before it is not its input, or if too few of its channels can be used.
    """
    *others, last = training
    for source, norm in pairwise(layers):
        if not norm.is_batch_norm:
            continue
        given, gave = _channels(evaluation, source), _channels(evaluation, norm)
        now, usual, past = _channels(last, source), _channels(last, norm), [_channels(look, source) for look in others]
        if given is None or gave is None or usual is None or now is None:
            continue
        if len({part.shape for part in (given, gave, usual, now)}) > 1:
            continue
        signs = _signs(given, gave)
        alive = (
            (signs != 0) & (MOVED_CHANNEL_SHARE * usual[:, _DEVIATION] > _moved(last, norm)) & (gave[:, _DEVIATION] > 0)
        )
        if 2 * alive.sum() < len(alive):
            continue
        slope = signs[alive] * gave[alive, _DEVIATION] / given[alive, _DEVIATION]
        mean = given[alive, _MEAN] - (gave[alive, _MEAN] - usual[alive, _MEAN]) / slope
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
    """Return how far the optimizer step of this look moved a norm (RMS of its gain or its bias); 0 if not measured."""
    updates = (look.of(name, "parameter_update") for name in norm.weights)
    return max((update.moments.rms for update in updates if update is not None), default=0.0)


def _signs(given: np.ndarray, gave: np.ndarray) -> np.ndarray:
    """Return the sign of the factor by which a norm scales each channel, shape (channels,).

    It is 0 where the output is not an affine map of the input. An affine map keeps the distances of the minimum and the
    maximum from the mean, in standard deviations; a negative factor swaps them.
    """
    ends = [
        (part[:, [_MIN, _MAX]] - part[:, [_MEAN]]) / np.maximum(part[:, [_DEVIATION]], TINY_SPREAD)
        for part in (given, gave)
    ]
    same, turned = (np.abs(ends[1] - other).max(axis=1) for other in (ends[0], -ends[0][:, ::-1]))
    is_affine = np.minimum(same, turned) < AFFINE_TOLERANCE * np.abs(ends[0]).max(axis=1)
    return np.asarray(np.where(same <= turned, 1.0, -1.0) * is_affine)


def _distance(mean: np.ndarray, deviation: np.ndarray, batch: np.ndarray) -> float:
    spread = np.maximum(batch[:, _DEVIATION], TINY_SPREAD)
    shift = float(np.median(np.abs(mean - batch[:, _MEAN]) / spread))
    return max(shift, float(np.median(np.abs(np.log(np.maximum(deviation, TINY_SPREAD) / spread)))))
