"""`collapsed`: a layer, or a whole model, that answers every sample, or every token, alike."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hookboard.health.rule import Rule
from hookboard.health.rules.shared import harm_of, severity_of
from hookboard.health.run import Run
from hookboard.health.verdict import Severity, Symptom
from hookboard.layers import Layer

SAME = 1e-3
"""Spread over the samples, as a share of the RMS, under which a layer answers all alike. At the end of a classifier it
is an alarm whatever the loss does, after the first steps. Healthy ones of the benchmark's tuning half go down to 0.06,
when they have learnt how frequent the classes are and nothing else."""

FAINT = 0.02
"""Spread at the end of the model under which hardly anything is left of what tells samples apart: worth a note."""

EXACTLY = 1e-6
"""Spread under which nothing at all is left of the samples: what reaches the end of the model like this is harm by
itself. Rounding of float32 leaves 1e-7."""

DIFFERENT = 0.05
"""Spread over the samples from which a layer tells them apart (a choice)."""

CLEAR = 0.3
"""Spread that the model must have had somewhere before its end, to have lost it (a choice)."""

SUDDEN = 0.5
"""One layer is the cause if it accounts for this share of the fall, in powers of ten (a choice)."""

ANSWERS = 8
"""Values for each unit in one look that are needed to tell whether they differ (a choice)."""


def _collapsed(run: Run) -> Iterator[Symptom]:
    spread = run.recent("sample_spread")[:, -1]
    seen = np.flatnonzero(np.isfinite(spread) & _answer(run))
    if not len(seen):
        return
    # The answers are those of the last layer with weights: what softmax makes of them is near 1 / classes anyway.
    last = max((i for i, place in enumerate(seen) if run.layers[place].weights), default=len(seen) - 1)
    seen = seen[: last + 1]
    course = spread[seen]
    if len(seen) < 2:
        return
    if course[-1] < FAINT and course[:-1].max() >= CLEAR:
        yield _at_the_end(run, [run.layers[place] for place in seen], course)
        return
    at_first = run.course("sample_spread", 1)[:, 0]
    for before, place in pairwise(seen):
        # What is given to a layer may be constant by design, unless it was not so at first.
        is_new = at_first[place] >= DIFFERENT
        if run.layers[place].kind != "embedding" and spread[place] < SAME and spread[before] >= DIFFERENT and is_new:
            evidence = (
                f"its output differs between samples by {spread[place]:.1g} of its RMS; the layer before differs by "
                f"{spread[before]:.2g}, usual here: {float(np.median(course)):.2g}{harm_of(run)}."
            )
            yield Symptom(run.layers[place].name, evidence, ADVICE, "note", size=float(spread[before]))


ADVICE = "Look at what this layer is given, and at its weights and its bias: what comes in does not matter to it."


def _at_the_end(run: Run, layers: list[Layer], course: np.ndarray) -> Symptom:
    """The model answers all samples alike. Where that begins: at the layer that makes most of it, if one does."""
    log = np.log10(np.maximum(course, np.finfo(np.float32).tiny))
    top = int(np.flatnonzero(course >= CLEAR)[-1])
    # The level that is not exceeded any more behind each layer.
    level = np.maximum.accumulate(log[top:][::-1])[::-1]
    steps = -np.diff(level)
    worst = int(np.argmax(steps))
    is_sudden = steps[worst] >= SUDDEN * steps.sum()
    evidence = (
        f"what the model answers differs between samples by {course[-1]:.1g} of its RMS, "
        f"what {layers[top].name} gives by {course[top]:.2g}"
    )
    if is_sudden:
        evidence += f"; it is lost in this layer, behind which it is {course[top + worst + 1]:.1g}"
    else:
        evidence += f"; it fades over {len(steps)} layers"
    # Numbers to be hit may differ by a thousandth of their size.
    is_classifier = run.losses.chance is not None
    is_hard = course[-1] < EXACTLY or (course[-1] < SAME and run.losses.is_known and is_classifier)
    severity: Severity = "alarm" if is_hard else severity_of(run)
    name = layers[top + worst + 1].name if is_sudden else ""
    advice = ADVICE if is_sudden else "Look for missing shortcuts, a rate that is too high, and how weights begin."
    return Symptom(name, f"{evidence}{harm_of(run)}.", advice, severity, size=float(-log[-1]))


def _answer(run: Run) -> np.ndarray:
    """Which layers give enough values to compare, of two channels or more: a single number may lie far from 0."""
    outputs = run.latest.rows("output")
    channels = np.zeros(len(run.layers))
    channels[outputs.units.places] = outputs.units.widths
    return (channels >= 2) & (outputs.count >= ANSWERS * channels)


COLLAPSED = Rule("collapsed", _collapsed)
