"""`collapsed`: a layer that answers every sample, or every token, alike."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.rule import Rule
from hookboard.health.rules.shared import harm_of, severity_of
from hookboard.health.run import Run
from hookboard.health.verdict import Severity, Symptom

SAME = 1e-3
"""Spread over the samples, as a share of the RMS, under which a layer answers all alike (chosen on the benchmark's
tuning half)."""

EXACTLY = 1e-6
"""Spread under which nothing at all is left of the samples: what reaches the end of the model like this is harm by
itself. Rounding of float32 leaves 1e-7."""

DIFFERENT = 0.05
"""Spread over the samples from which the layer before tells them apart (a choice)."""

ANSWERS = 8
"""Values for each unit in one look that are needed to tell whether they differ (a choice)."""


def _collapsed(run: Run) -> Iterator[Symptom]:
    spread = run.recent("sample_spread")[:, -1]
    seen = np.flatnonzero(np.isfinite(spread) & np.array([_answers(run, layer) for layer in run.layers]))
    if len(seen) < 2:
        return
    for before, place in pairwise(seen):
        layer = run.layers[place]
        if layer.kind == "embedding" or not (spread[place] < SAME and spread[before] >= DIFFERENT):
            continue
        first = run.timeline.of("sample_spread", 1)[place, 0]
        reaches_the_end = bool((spread[seen[seen >= place]] < SAME).all())
        if not reaches_the_end and not first >= DIFFERENT:
            continue  # what it is given may be constant by design
        evidence = (
            f"its output differs between samples by {spread[place]:.1g} of its RMS; the layer before differs by "
            f"{spread[before]:.2g}, usual here: {float(np.median(spread[seen])):.2g}{harm_of(run)}."
        )
        advice = "Look at its weights and its bias: what comes in does not matter to it."
        severity: Severity = severity_of(run) if reaches_the_end else "note"
        if reaches_the_end and spread[place] < EXACTLY:
            severity = "alarm"
        yield Symptom(layer.name, evidence, advice, severity, size=float(spread[before]))


def _answers(run: Run, layer: Layer) -> bool:
    reading = run.now.of(layer.name, "output")
    if reading is None or reading.channels is None or not len(reading.channels):
        return False
    return bool(reading.moments.count >= ANSWERS * len(reading.channels))


COLLAPSED = Rule("collapsed", _collapsed)
