"""Rules about how far a step moves the weights: `update_too_small` and `update_too_large`."""

import math
from collections.abc import Iterator

import numpy as np

from hookboard.health.agreement import agreement_of
from hookboard.health.layers import Layer
from hookboard.health.look import Look
from hookboard.health.rule import Rule
from hookboard.health.run import Run, median_of
from hookboard.health.verdict import Symptom

SMALL = 1e-4
"""Updates of the whole model are small if their median over the layers, relative to the weights, is below this: in 200
steps the weights change by 2 % at most (TheDeepChecker; DeepDiagnosis says 1e-5, and 1e-3 is usual)."""

FAR_BELOW = 1e-3
"""A layer's updates are small if they are below this share of the median of the others (a choice: learning rates that
fall from layer to layer on purpose end at about 1e-2)."""

LARGE = 0.1
"""Updates are large if their median over the layers, relative to the weights, is above this for a window
(DeepDiagnosis, TheDeepChecker)."""

LARGE_AT_FIRST = 0.3
"""Or if it is above this in the first step: Adam then comes to 0.1 in narrow layers (seen on the benchmark's tuning
half), and weights that have grown by the next look hide it."""

OVERWRITES = 3.0
"""In the first step it is a defect whatever the loss does: nothing is left of the initialization (a choice)."""

SAME = 0.9
"""Cosine of gradients that are all but the same: that of a sum and the next one. In healthy runs it is below 0.6 (seen
on the benchmark's tuning half)."""

GREW = 3.0
"""And they must be so many times as large as at the start: a sum grows."""

FAR_ABOVE = 30.0
"""A layer's updates are large if they are above `LARGE`, and this many times the median of the others."""

ENDING = 0.05
"""A schedule is at its end when the learning rate is below this share of its largest: then small steps are wanted."""


def update_too_small(run: Run) -> Iterator[Symptom]:
    """Steps too small to learn anything: of the whole model, or of one layer among others."""
    look = run.now
    moving = {
        layer.name: ratio
        for layer, ratio in _ratios(run, look)
        if 0 < ratio < math.inf and not _is_between(run, layer) and not _is_spoiled(look, layer)
    }
    if not moving:
        return
    usual = median_of(moving.values())
    if usual < SMALL:
        if not run.losses.is_learning:
            yield _small_model(run, look, usual)
        return
    for name, ratio in moving.items():
        others = median_of(other for key, other in moving.items() if key != name)
        if ratio < min(FAR_BELOW * others, SMALL):
            evidence = f"a step moves its weights by {ratio:.1g} of their size; usual here: {others:.1g}{_harm(run)}"
            advice = "look at the learning rate of its group of parameters, and at its gradient"
            yield Symptom(name, evidence, advice, "alarm" if run.losses.is_harmed else "note", others / ratio)


def _small_model(run: Run, look: Look, usual: float) -> Symptom:
    rates = [stepped.rate for stepped in look.stepped.values()]
    optimizer = next(iter(look.stepped.values())).optimizer
    evidence = (
        f"a step moves the weights by {usual:.1g} of their size in the median over the layers, where 1e-3 is usual, at "
        f"a learning rate of {max(rates):.2g} in {optimizer}{_harm(run)}"
    )
    advice = "raise the learning rate, and look whether gradients are clipped or an epsilon outweighs them"
    return Symptom("", evidence, advice, "alarm" if run.losses.is_stuck else "note", SMALL / usual)


def update_too_large(run: Run) -> Iterator[Symptom]:
    """Steps that are large for the weights, before the loss took harm from them.

    They may be over when the harm shows: a network that they have killed no longer moves. So the whole run is looked
    at, but only while there is harm, or if the very first step has overwritten the weights.
    """
    if not run.losses.is_harmed and not run.first_move > OVERWRITES:
        return
    jump = next((jump for jump in run.rate_jumps if run.losses.is_worse_since(jump.step - 1)), None)
    if jump is not None:
        rose = f"rose from {jump.before:.2g} to {jump.after:.2g}"
        evidence = f"the learning rate {rose} between steps {jump.step} and {jump.seen}{_harm(run)}"
        advice = "look at the schedule, and lower the learning rate"
        yield Symptom("", evidence, advice, "alarm", jump.after / jump.before, jump.step)
        return
    layers = [i for i, layer in enumerate(run.layers) if layer.has_matrix]
    # Inf from the logarithm of 0 is not the doing of large steps.
    if not layers or not (run.losses.is_finite or run.has_blown_up):
        return
    ratios, steps = run.timeline.of("update_ratio")[layers], np.array(run.timeline.steps)
    ratios = np.where(np.isfinite(ratios), ratios, np.nan)
    seen = ~np.isnan(ratios).all(axis=0)
    if not seen.any():
        return
    whole = _medians(ratios[:, seen])
    first = 0 if whole[0] > LARGE_AT_FIRST else _first_of(whole > LARGE, run.window)
    if first is not None:
        yield _large_model(run, int(steps[seen][first]), whole, first)
        return
    summed = _summed(run, layers)
    if summed is not None:
        yield summed
        return
    ratios, steps = ratios[:, seen], steps[seen]
    for place, row in zip(layers, ratios, strict=True):
        layer = run.layers[place]
        large = np.nan_to_num(row) > np.maximum(LARGE, FAR_ABOVE * whole)
        start = _first_of(large, run.window)
        if start is not None and not _was_zero(run, layer):
            moved, usual = float(row[start]), float(whole[start])
            evidence = f"a step moved its weights by {moved:.2g} of their size; usual here: {usual:.1g}{_harm(run)}"
            advice = "lower the learning rate of its group of parameters"
            yield Symptom(layer.name, evidence, advice, "alarm", moved, int(steps[start]))


def _large_model(run: Run, step: int, whole: np.ndarray, first: int) -> Symptom:
    before = f"{np.median(whole[:first]):.1g} before" if first else "1e-3 is usual"
    rate = max((stepped.rate for stepped in run.now.stepped.values()), default=math.nan)
    evidence = (
        f"a step moved the weights by {whole[first]:.2g} of their size in the median over the layers ({before}), at a "
        f"learning rate that is now {rate:.2g}{_harm(run)}"
    )
    advice = "lower the learning rate, or let it rise slowly from 0, and clip gradients"
    return Symptom("", evidence, advice, "alarm", float(whole[first]), step)


def _summed(run: Run, layers: list[int]) -> Symptom | None:
    """Steps that follow the sum of many gradients, each of them of a usual size."""
    gradients, steps = _medians(run.timeline.of("weight_gradient_rms")[layers]), run.timeline.steps
    agreement = agreement_of(run)
    if agreement > SAME and gradients[-1] > GREW * gradients[0]:
        start, grown = int(np.argmax(gradients > GREW * gradients[0])), float(gradients[-1] / gradients[0])
        evidence = (
            f"gradients of neighbouring looks are all but the same (cosine {agreement:.2f}) and {grown:.2g} times as "
            f"large as at the start: they add up{_harm(run)}"
        )
        advice = "look whether zero_grad() is called before each backward pass"
        return Symptom("", evidence, advice, "alarm", grown, steps[start])
    return None


def _medians(values: np.ndarray) -> np.ndarray:
    """The median of the finite values of each column, shape (columns,); NaN if there is none."""
    return np.array([median_of(column) for column in values.T.tolist()])


def _first_of(is_large: np.ndarray, window: int) -> int | None:
    """The start of the first stretch of `window` in a row; None if there is none."""
    length = 0
    for i, large in enumerate(is_large):
        length = length + 1 if large else 0
        if length == window:
            return i - window + 1
    return None


def _ratios(run: Run, look: Look) -> list[tuple[Layer, float]]:
    ratios = run.recent("update_ratio")[:, -1]
    return [(layer, float(ratio)) for layer, ratio in zip(run.layers, ratios, strict=True) if layer.has_matrix]


def _is_between(run: Run, layer: Layer) -> bool:
    """Whether the layer's learning rate is 0, still rises, or is at the end of its schedule."""
    name = next((name for name in layer.weights if name in run.now.stepped), None)
    if name is None:
        return True
    rate = run.now.stepped[name].rate
    before = next((look.stepped[name].rate for look in run.looks if name in look.stepped), rate)
    return not rate or rate < ENDING * run.peak_rate[name] or before < rate


def _is_spoiled(look: Look, layer: Layer) -> bool:
    """Whether a step has left NaN or Inf in the weights of the layer: the rest tells nothing."""
    updates = (look.of(name, "parameter_update") for name in layer.weights)
    return any(update is not None and update.moments.nonfinite > 0 for update in updates)


def _was_zero(run: Run, layer: Layer) -> bool:
    """Whether a weight of the layer, other than a bias or a gain, was all 0 before the first step."""
    if run.first is None:
        return False
    befores = [run.first.of(name, "parameter_before") for name in layer.weights if len(layer.shapes.get(name, ())) > 1]
    return any(before is not None and before.moments.rms == 0 for before in befores)


def _harm(run: Run) -> str:
    return f"; {run.losses.harm}" if run.losses.is_harmed else ""


UPDATE_TOO_SMALL = Rule("update_too_small", update_too_small)
UPDATE_TOO_LARGE = Rule("update_too_large", update_too_large)
