"""Signals and gradients through the layers: `collapsed` and `vanishing_gradient`."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hookboard.health.robust import median
from hookboard.health.rule import Finding, Rule, Severity
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
from hookboard.measure.row import FIELDS
from hookboard.model.layers import Layer

_MIN, _MAX = map(FIELDS.index, ("min", "max"))

SPREAD_ALARM = 1e-3
"""Spread over the samples, as a share of the RMS, below which outputs are nearly the same for all. At the end of a
classifier an alarm whatever the loss does, after the first steps. Healthy ones (tuning half) go down to 0.06, when they
have only learnt how frequent the classes are."""

SPREAD_NOTE = 0.02
"""Spread at the end of the model below which hardly anything is left that tells samples apart: worth a note."""

SPREAD_NONE = 1e-6
"""Spread below which nothing at all is left of the samples: harm in itself at the end. Float32 rounds to 1e-7."""

SPREAD_DIFFERENT = 0.05
"""Spread over the samples from which a layer tells them apart (a choice)."""

SPREAD_CLEAR = 0.3
"""Spread that the model must have had somewhere before its end, to have lost it (a choice)."""

COLLAPSE_CAUSE_SHARE = 0.5
"""One layer is the cause if it accounts for this share of the fall, in powers of ten (a choice)."""

VALUES_PER_UNIT_MIN = 8
"""Number of values of each unit in one look that are needed to tell whether they differ (a choice)."""


def _collapsed(run: Run) -> Iterator[Finding]:
    spread = run.recent("sample_spread")[:, -1]
    # The noise of a dropout is no difference between samples.
    is_dropout = run.arrays.of_kind(frozenset({"dropout"}))
    seen = np.flatnonzero(np.isfinite(spread) & _are_comparable(run) & ~is_dropout)
    if not len(seen):
        return
    # The answers are those of the last layer with weights: what softmax makes of them is near 1 / classes anyway.
    last = max((i for i, place in enumerate(seen) if run.layers[place].weights), default=len(seen) - 1)
    seen = seen[: last + 1]
    # What nothing that differs flows into, such as a learned prompt, is the same for all samples by design.
    clear = [run.layers[place].name for place in seen if spread[place] >= SPREAD_CLEAR][:1]
    seen = seen[[not any(run.facts.flow.are_apart(run.layers[place].name, other) for other in clear) for place in seen]]
    spreads = spread[seen]
    if len(seen) < 2:
        return
    if spreads[-1] < SPREAD_NOTE and spreads[:-1].max() >= SPREAD_CLEAR:
        yield _at_the_end(run, [run.layers[place] for place in seen], spreads)
        return
    at_first = run.course("sample_spread", 1)[:, 0]
    for before, place in pairwise(seen):
        # What is given to a layer may be constant by design, unless it was not so at first.
        is_new = at_first[place] >= SPREAD_DIFFERENT
        if (
            run.layers[place].kind != "embedding"
            and spread[place] < SPREAD_ALARM
            and spread[before] >= SPREAD_DIFFERENT
            and is_new
            and not run.facts.flow.are_apart(run.layers[before].name, run.layers[place].name)
        ):
            evidence = (
                f"its output differs between samples by only {spread[place]:.1g} of its RMS (the layer before it: "
                f"{spread[before]:.2g}; the median layer: {float(np.median(spreads)):.2g}){harm_of(run)}."
            )
            yield Finding(run.layers[place].name, evidence, COLLAPSED_ADVICE, "note", size=float(spread[before]))


COLLAPSED_ADVICE = "Check the input and weights of this layer, because its output barely depends on its input."


def _at_the_end(run: Run, layers: list[Layer], spreads: np.ndarray) -> Finding:
    """Return the finding of a model whose outputs are nearly the same, at the layer that loses the difference."""
    log = np.log10(np.maximum(spreads, SPREAD_NONE))  # what is less is rounding
    top = int(np.flatnonzero(spreads >= SPREAD_CLEAR)[-1])
    # The level that is not exceeded any more after each layer.
    level = np.maximum.accumulate(log[top:][::-1])[::-1]
    steps = -np.diff(level)
    worst = int(np.argmax(steps))
    is_sudden = steps[worst] >= COLLAPSE_CAUSE_SHARE * steps.sum()
    evidence = (
        f"the outputs of {layers[-1].name} differ between samples by only {spreads[-1]:.1g} of their RMS, but those of "
        f"{layers[top].name} differ by {spreads[top]:.2g}"
    )
    before, lost, lost_spread = layers[top + worst], layers[top + worst + 1], spreads[top + worst + 1]
    if is_sudden:
        evidence += (
            f"; the difference is lost between {before.name} and {lost.name} "
            f"(whose outputs differ by {lost_spread:.1g})"
        )
    else:
        evidence += f"; the difference fades over {len(steps)} layers"
    # Numbers to be hit may differ by a thousandth of their size.
    is_classifier = run.losses.chance is not None
    is_hard = spreads[-1] < SPREAD_NONE or (spreads[-1] < SPREAD_ALARM and run.losses.is_known and is_classifier)
    severity: Severity = "alarm" if is_hard else severity_of(run)
    if not is_sudden:
        advice = (
            "Check for poor initialization and for missing normalization or residual connections; then lower the "
            "learning rate."
        )
    elif lost.weights:
        advice = COLLAPSED_ADVICE
    else:
        advice = f"Check what is computed between {before.name} and this layer."
    name = lost.name if is_sudden else ""
    return Finding(name, f"{evidence}{harm_of(run)}.", advice, severity, size=float(-log[-1]))


def _are_comparable(run: Run) -> np.ndarray:
    units, channels = run.latest.outputs, np.zeros(len(run.layers))
    channels[units.places] = units.widths
    return (channels >= 2) & (run.latest.rows["output"].count >= VALUES_PER_UNIT_MIN * channels)


COLLAPSED = Rule("collapsed", _collapsed, look_at="health/activation_rms")

VANISHING_DECADES_NOTE = 3.0
"""Powers of ten by which the norm of the gradient must fall from the last layers to the first (AutoTrainer: 1e-3)."""

GRADIENT_CHANGE_DECADES_ALARM = 3.5
"""Powers of ten by which the norm of the gradient must fall for an alarm whatever the loss does, after the first steps.
Healthy runs (tuning half) fall by 2.5 in their first steps and by 0.6 later."""

GRADIENT_LAYERS_MIN = 4
"""A model needs at least this many layers for its gradients to have a trend (a choice)."""

FRONT_LAYERS_DIVISOR = 8
"""The gradient must be lost in all first layers: one layer in this many and one more, at least two (a choice)."""

GRADIENT_CAUSE_SHARE = 0.5
"""One layer is the cause if it accounts for this share of the whole change (a choice)."""


@dataclass(frozen=True)
class Course:
    """The norm of the gradient at the output of each layer in series with the last, where it is finite and not 0."""

    places: np.ndarray  # indices in `Run.layers`, in the order of execution, shape (n,)
    norms: np.ndarray  # log10 of the L2 norm, shape (n,)

    @property
    def end(self) -> float:
        """The median of `norms` over the last quarter of the layers, over two layers at least."""
        return median(self.norms[-max(2, len(self.norms) // 4) :])


def course_of(run: Run) -> Course | None:
    """Return the gradient norms at the latest look; None if too few layers have one, or the step was skipped."""
    if run.now.overflowed:
        return None
    gradients = run.latest.rows["grad_output"]
    # Not the RMS: pooling spreads a gradient over many positions, which changes the RMS far more.
    with np.errstate(over="ignore"):
        norms = gradients.rms * np.sqrt(gradients.count)
    places = np.flatnonzero((norms > 0) & (norms < np.inf) & (gradients.nonfinite == 0))
    names = [run.layers[place].name for place in places.tolist()]
    # Layers that run beside each other have gradients of their own.
    is_beside = np.array([run.facts.flow.are_apart(name, names[-1]) for name in names], dtype=bool)
    places = places[~is_beside]
    if len(places) < GRADIENT_LAYERS_MIN:
        return None
    return Course(places, np.log10(norms[places]))


def _vanishing(run: Run) -> Iterator[Finding]:
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
    # Before the front a layer may get next to nothing, such as a rounding error: the fall does not count it.
    steps = np.diff(most[front:])
    place = _cause(steps)
    evidence = f"the gradient norm shrinks by a factor of {factor(fall)} from the last layers to the first, "
    evidence += _how(course, steps, place)
    last = int(course.places[front])
    is_gone = fall >= GRADIENT_CHANGE_DECADES_ALARM and not _have_learnt(run, last)
    is_gone &= run.losses.is_known or _moves_nothing(run, last)
    severity: Severity = "alarm" if is_gone else severity_of(run)
    name = "" if place is None else run.layers[course.places[front + place]].name
    yield Finding(name, f"{evidence}{harm_of(run)}.", _advice(run), severity, size=fall, is_hard=is_gone)


def _have_learnt(run: Run, last: int) -> bool:
    first = [layer for layer in run.layers[: last + 1] if layer.has_matrix]
    return run.losses.is_learning and bool(first) and all(is_done(run, layer) for layer in first)


def _moves_nothing(run: Run, last: int) -> bool:
    """Return True if the step left some weight with a gradient, in the layers up to `last`, exactly as it was."""
    updates, gradients = run.latest.rows["parameter_update"], run.latest.rows["parameter_grad"]
    is_still = (updates.rms == 0) & gradients.reaches & (run.arrays.owner <= last)
    weights, stepped = itertools.compress(run.arrays.weights, is_still), run.now.stepped
    return any(stepped[name].rate for name in weights if name in stepped)


def _advice(run: Run) -> str:
    bounded = activations_of(run, BOUNDED_KINDS)
    if bounded:
        which = " and ".join(bounded)
        he = "use He initialization (nn.init.kaiming_uniform_)"
        return f"Use ReLU or GELU in place of {which}, {he}, and add normalization or residual connections."
    return f"Add normalization or residual connections, and {initialization(run)}."


def _cause(steps: np.ndarray) -> int | None:
    """Return the index of the layer that causes half of the whole change or more; None if there is none."""
    largest = int(np.argmax(steps))
    return largest + 1 if steps[largest] >= GRADIENT_CAUSE_SHARE * steps.sum() else None


def _how(course: Course, steps: np.ndarray, place: int | None) -> str:
    if place is None:
        return f"steadily, by a factor of {factor(float(steps.mean()))} per layer over {len(steps) + 1} layers"
    usual = factor(float(np.median(np.abs(np.diff(course.norms)))))
    return f"by {factor(float(steps[place - 1]))} in this layer alone (median over layers: {usual})"


VANISHING = Rule("vanishing_gradient", _vanishing, look_at="health/gradient_rms")
