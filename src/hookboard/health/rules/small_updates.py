"""`update_too_small`: steps too small to learn anything."""

from collections.abc import Iterator

import numpy as np

from hookboard.health.look import Look
from hookboard.health.rule import Rule
from hookboard.health.rules.shared import harm_of, medians_of
from hookboard.health.run import Run, median_of
from hookboard.health.verdict import Severity, Symptom
from hookboard.layers import Layer

SMALL = 1e-4
"""Updates of the whole model are small if their median over the layers, relative to the weights, is below this: in 200
steps the weights change by 2 % at most (TheDeepChecker; DeepDiagnosis says 1e-5, and 1e-3 is usual)."""

FAR_BELOW = 1e-3
"""A layer's updates are small if they are below this share of the median of the others (a choice: learning rates that
fall from layer to layer on purpose end at about 1e-2)."""

ENDING = 0.05
"""A schedule is at its end when the learning rate is below this share of its largest: then small steps are wanted."""


def update_too_small(run: Run) -> Iterator[Symptom]:
    """Steps too small to learn anything: of the whole model, or of one layer among others."""
    look = run.now
    ratios = run.recent("update_ratio")[:, -1]
    places = np.flatnonzero(run.arrays.has_matrix & (ratios > 0) & (ratios < np.inf))
    moved = ratios[places]
    # If no single one is small, their median is not.
    if not (moved < SMALL).any() or (moved.min() >= FAR_BELOW * moved.max() and run.losses.is_learning):
        return
    moving = {
        layer.name: ratio
        for layer, ratio in zip((run.layers[place] for place in places), moved.tolist(), strict=True)
        if not _is_between(run, layer) and not _is_spoiled(look, layer)
    }
    if not moving:
        return
    usual = median_of(moving.values())
    if usual < SMALL:
        if not run.losses.is_learning:
            yield _small_model(run, look, usual)
        return
    for name, ratio in moving.items():
        if ratio >= SMALL:
            continue
        others = median_of(other for key, other in moving.items() if key != name)
        if ratio < min(FAR_BELOW * others, SMALL):
            evidence = f"a step moves its weights by {ratio:.1g} of their size; usual here: {others:.1g}{harm_of(run)}"
            advice = "look at the learning rate of its group of parameters, and at its gradient"
            yield Symptom(name, evidence, advice, "alarm" if run.losses.is_harmed else "note", others / ratio)


def _small_model(run: Run, look: Look, usual: float) -> Symptom:
    rates = [stepped.rate for stepped in look.stepped.values()]
    optimizer = next(iter(look.stepped.values())).optimizer
    evidence = (
        f"a step moves the weights by {usual:.1g} of their size in the median over the layers, where 1e-3 is usual, at "
        f"a learning rate of {max(rates):.2g} in {optimizer}{harm_of(run)}"
    )
    advice = "raise the learning rate, and look whether gradients are clipped or an epsilon outweighs them"
    # Without chance nobody can tell a loss that stays from that of a model that was trained before.
    severity: Severity = "alarm" if run.losses.is_stuck and run.losses.chance is not None else "note"
    return Symptom("", evidence, advice, severity, SMALL / usual, _small_since(run))


def _small_since(run: Run) -> int:
    """The step since which the whole model has moved by as little: a loss that falls at first hides it."""
    layers = run.arrays.with_matrix
    levels = medians_of(run.course("update_ratio")[layers])
    since = run.now.step
    for step, level in zip(reversed(run.course_steps), levels[::-1], strict=True):
        if level >= SMALL:
            break
        since = step if level < SMALL else since  # NaN tells nothing
    return since


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
    updates = (look.numbers(name, "parameter_update") for name in layer.weights)
    return any(update is not None and update.moments.nonfinite > 0 for update in updates)


UPDATE_TOO_SMALL = Rule("update_too_small", update_too_small)
