"""`vanishing_gradient` and `exploding_gradient`: gradients on their way back."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hookboard.health.robust import median
from hookboard.health.rule import Rule, Severity, Symptom
from hookboard.health.rules.shared import (
    BOUNDED_KINDS,
    activations_of,
    factor,
    harm_of,
    initialization,
    is_done,
    severity_of,
)
from hookboard.health.run import Run

VANISHING_DECADES_NOTE = 3.0
"""Powers of ten by which the norm of the gradient must fall from the last layers to the first (AutoTrainer: 1e-3)."""

GRADIENT_CHANGE_DECADES_ALARM = 3.5
"""Powers of ten by which it must fall, or rise, for an alarm whatever the loss does, if that is still so after the
first steps: next to nothing arrives. Healthy runs of the benchmark's tuning half fall by 2.5 in their first steps and
by 0.6 later."""

EXPLODING_DECADES_NOTE = 1.85
"""Powers of ten by which the norm of the gradient must rise (AutoTrainer: a factor of 70). Healthy runs of the
benchmark's tuning half reach 1.1."""

GRADIENT_GROWTH_DECADES = 2.0
"""Powers of ten by which all gradients must exceed their own history (chosen on the benchmark's tuning half)."""

HISTORY_WINDOWS = 4
"""Number of windows of looks that a history needs before gradients are compared with it (a choice)."""

GRADIENT_LAYERS_MIN = 4
"""A model needs at least this many layers for its gradients to have a trend (a choice)."""

FRONT_LAYERS_DIVISOR = 8
"""The gradient must be lost in all of the first layers: one layer in this many, and at least two (a choice)."""

GRADIENT_CAUSE_SHARE = 0.5
"""One layer is the cause if it accounts for this share of the whole change (a choice)."""


@dataclass(frozen=True)
class Course:
    """The gradient on its way back through the model.

    Args:
        places: of those layers whose output got a gradient that is not 0, in the order of execution.
        norms: log10 of the L2 norm of that gradient, shape (layers,).
    """

    places: np.ndarray
    norms: np.ndarray

    @property
    def end(self) -> float:
        """The usual gradient in the last layers: the median of the last quarter, of two layers at least."""
        return median(self.norms[-max(2, len(self.norms) // 4) :])


def course_of(run: Run) -> Course | None:
    """Return the course of the gradient at this look; None if the model is too small, or the step was skipped.

    A norm is compared, not an RMS: pooling spreads a gradient over all places, and keeps its norm within bounds.
    """
    if run.now.overflowed:
        return None
    gradients = run.latest.rows("grad_output")
    with np.errstate(over="ignore"):
        norms = gradients.rms * np.sqrt(gradients.count)
    places = np.flatnonzero((norms > 0) & (norms < np.inf) & (gradients.nonfinite == 0))
    return Course(places, np.log10(norms[places])) if len(places) >= GRADIENT_LAYERS_MIN else None


def _vanishing(run: Run) -> Iterator[Symptom]:
    course = course_of(run)
    if course is None:
        return
    # A branch beside the main path may get little: what counts is the most that any layer before still gets.
    most = np.maximum.accumulate(course.norms)
    lost = most - course.end
    front = max(1, len(lost) // FRONT_LAYERS_DIVISOR)
    fall = -float(lost[front])
    if fall < VANISHING_DECADES_NOTE:
        return
    place = _cause(np.diff(most))
    evidence = f"the norm of the gradient falls by a factor of {factor(fall)} from the last layers to the first, "
    evidence += _how(course, fall, np.diff(most), place)
    last = int(course.places[front])
    is_gone = fall >= GRADIENT_CHANGE_DECADES_ALARM and not _have_learnt(run, last)
    is_gone &= run.losses.is_known or _moves_nothing(run, last)
    severity: Severity = "alarm" if is_gone else severity_of(run)
    name = "" if place is None else run.layers[course.places[place]].name
    yield Symptom(name, f"{evidence}{harm_of(run)}.", _advice(run), severity, size=fall, is_hard=is_gone)


def _have_learnt(run: Run, last: int) -> bool:
    """Return True if the first layers have had their gradient and moved by it, and the loss is the lower for it.

    Args:
        run: the run.
        last: the place of the last of these layers.
    """
    first = [layer for layer in run.layers[: last + 1] if layer.has_matrix]
    return run.losses.is_learning and bool(first) and all(is_done(run, layer) for layer in first)


def _moves_nothing(run: Run, last: int) -> bool:
    """Return True if a gradient reaches weights of the first layers but is too small for a step to change them.

    Args:
        run: the run.
        last: the place of the last of these layers.
    """
    updates, gradients = run.latest.rows("parameter_update"), run.latest.rows("parameter_grad")
    is_still = (updates.rms == 0) & gradients.reaches & (run.arrays.owner <= last)
    weights, stepped = itertools.compress(run.arrays.weights, is_still), run.now.stepped
    return any(stepped[name].rate for name in weights if name in stepped)


def _advice(run: Run) -> str:
    bounded = activations_of(run, BOUNDED_KINDS)
    instead = f"Use ReLU or GELU in place of {' and '.join(bounded)}, add" if bounded else "Add"
    return f"{instead} normalization or shortcuts, and {initialization(run)}."


def _cause(steps: np.ndarray) -> int | None:
    """Return the layer that changes the gradient most; None if no layer stands out.

    Args:
        steps: by how much each layer but the first changes log10 of the norm, shape (layers - 1,).
    """
    largest = int(np.argmax(steps))
    return largest + 1 if steps[largest] >= GRADIENT_CAUSE_SHARE * steps.sum() else None


def _how(course: Course, change: float, steps: np.ndarray, place: int | None) -> str:
    """Return whether the gradient changes steadily or in one layer, as the end of a sentence."""
    if place is None:
        return f"steadily, by a factor of {factor(change / len(steps))} in each of {len(steps) + 1} layers"
    usual = factor(float(np.median(np.abs(np.diff(course.norms)))))
    return f"by {factor(float(steps[place - 1]))} in this layer alone; usual: {usual}"


def _exploding(run: Run) -> Iterator[Symptom]:
    course = course_of(run)
    if course is None:
        return
    rises = course.norms - course.end
    least = median(rises[: max(2, len(rises) // 4)])
    if least < EXPLODING_DECADES_NOTE:
        yield from _growing(run)
        return
    steps = -np.diff(course.norms)
    place = _cause(steps)
    evidence = f"the norm of the gradient grows by a factor of {factor(least)} from the last layers to the first, "
    evidence += _how(course, least, steps, place)
    advice = "Check how large the weights are, normalize the inputs, or clip gradients."
    name = "" if place is None else run.layers[course.places[place]].name
    severity: Severity = "alarm" if least >= GRADIENT_CHANGE_DECADES_ALARM and run.losses.is_known else severity_of(run)
    yield Symptom(name, f"{evidence}{harm_of(run)}.", advice, severity, size=least)


def _growing(run: Run) -> Iterator[Symptom]:
    """Compare all gradients with their own history."""
    history = run.recent("gradient_rms")
    window = run.window
    if history.shape[1] < HISTORY_WINDOWS * window:
        return
    lowest = history.min(axis=1)
    seen = lowest > 0
    # Of half of the layers the gradient must exceed the usual one, and so the least one, by as much.
    grew = np.count_nonzero(seen & (history[:, -1] > 10 ** (GRADIENT_GROWTH_DECADES - 0.01) * lowest))
    if seen.sum() < GRADIENT_LAYERS_MIN or 2 * grew < seen.sum():
        return
    known = np.log10(history[seen, -1] / np.median(history[seen, :-window], axis=1))
    if not np.median(known) > GRADIENT_GROWTH_DECADES:
        return
    evidence = (
        f"gradients are {factor(float(np.median(known)))} times as large as usual in this run, in "
        f"{len(known)} layers{harm_of(run)}."
    )
    advice = "Lower the learning rate or warm it up, and clip gradients."
    yield Symptom("", evidence, advice, severity_of(run), size=float(np.median(known)))


VANISHING = Rule(
    "vanishing_gradient",
    _vanishing,
    look_at="health/gradient_rms",
    about="the norm of the gradient falls from the last layers to the first",
)
EXPLODING = Rule(
    "exploding_gradient",
    _exploding,
    look_at="health/gradient_rms",
    about="the norm of the gradient grows from the last layers to the first, or gradients grow over time",
)
