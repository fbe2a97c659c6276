"""Rules about the signal on its way forward: its scale from layer to layer, and whether it tells samples apart."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.rule import Rule
from hookboard.health.rules.shared import factor, harm_of, robust_z, severity_of, slope, was_zero
from hookboard.health.run import Run, median_of
from hookboard.health.verdict import Symptom
from hookboard.measure import FIELDS

_COUNT = FIELDS.index("count")

LAYERS = 4
"""Layers of a kind that are needed to say what is usual (a choice)."""

GAIN = 1.3
"""Powers of ten by which what a layer does to the scale must differ from what its peers do (chosen on the benchmark's
tuning half)."""

FAR = 5.0
"""Robust z-score from which a layer is out of line with its peers."""

FLOOR = 0.2
"""The least deviation between peers that is assumed, in powers of ten: 60 % from layer to layer are usual."""

COURSE = 2.0
"""Powers of ten by which activations may shrink or grow from the first to the last layer (chosen on the benchmark's
tuning half; PyTorch's own initialization of linear layers loses one)."""

STEADY = 0.5
"""Share of the change along depth that one layer may make, where it is steady (a choice)."""

DRIFT = 1.5
"""Powers of ten by which a layer may leave its own scale of the first looks, beyond what its peers do (a choice)."""

SAME = 1e-3
"""Spread over the samples, as a share of the RMS, under which a layer answers all alike (chosen on the benchmark's
tuning half)."""

DIFFERENT = 0.05
"""Spread over the samples from which the layer before tells them apart (a choice)."""

ANSWERS = 8
"""Values for each unit in one look that are needed to tell whether they differ (a choice)."""


@dataclass(frozen=True)
class Scales:
    """The scale of the layers with weights that do arithmetic: linear and convolutional ones.

    Args:
        layers: those with an output that is not 0, in the order of execution.
        log: log10 of the RMS of their outputs, shape (layers,).
        gains: log10 of the RMS of their outputs over that of what ran just before; NaN where nothing did.
        weights: log10 of the RMS of their weights times the root of how many inputs each unit has; NaN if not known.
    """

    layers: list[Layer]
    log: np.ndarray
    gains: np.ndarray
    weights: np.ndarray


def scales_of(run: Run) -> Scales:
    """The scales at the latest look. Layers whose weights began at 0 are left out: they are to grow."""
    rms = run.recent("activation_rms")[:, -1]
    layers, log, gains, weights = [], [], [], []
    before = math.nan
    for layer, value in zip(run.layers, rms, strict=True):
        if not np.isfinite(value) or was_zero(run, layer):
            continue
        if layer.kind in ("linear", "conv") and value > 0:
            layers.append(layer)
            log.append(math.log10(value))
            gains.append(math.log10(value / before) if before > 0 else math.nan)
            weights.append(_weight_gain(run, layer))
        before = value
    return Scales(layers, np.array(log), np.array(gains), np.array(weights))


def _weight_gain(run: Run, layer: Layer) -> float:
    for name in layer.weights:
        reading, shape = run.now.of(name, "parameter"), layer.shapes[name]
        if len(shape) > 1 and reading is not None and reading.moments.rms > 0:
            return math.log10(reading.moments.rms * math.sqrt(math.prod(shape[1:])))
    return math.nan


def _activation_scale(run: Run) -> Iterator[Symptom]:
    scales = scales_of(run)
    said: set[str] = set()
    single = list(_out_of_line(run, scales))
    # One layer that is out of line moves all behind it.
    for symptom in (*single, *([] if single else _along_depth(run, scales)), *_drifted(run)):
        if symptom.module not in said:
            said.add(symptom.module)
            yield symptom


def _out_of_line(run: Run, scales: Scales) -> Iterator[Symptom]:
    """Layers that scale what goes in by another factor than their peers."""
    known = np.isfinite(scales.gains)
    if known.sum() < LAYERS:
        return
    for place in np.flatnonzero(known):
        others = scales.gains[known & (np.arange(len(known)) != place)]
        off = float(scales.gains[place] - np.median(others))
        if abs(off) < GAIN or abs(robust_z(scales.gains[place], others, FLOOR)) < FAR:
            continue
        heavy = scales.weights[place] - median_of(np.delete(scales.weights, place))
        if abs(heavy) < GAIN / 2 or heavy * off < 0:
            continue  # what ran before it is not what goes in
        layer = scales.layers[place]
        evidence = (
            f"its output has {factor(scales.gains[place])} times the RMS of what goes in "
            f"({10 ** scales.log[place]:.2g}); usual here: {factor(float(np.median(others)))} times"
            f"{_initial(run, layer)}{harm_of(run)}."
        )
        advice = "Look at how the weights of this layer are initialized and scaled."
        yield Symptom(layer.name, evidence, advice, severity_of(run), size=abs(off))


def _along_depth(run: Run, scales: Scales) -> Iterator[Symptom]:
    """Activations that shrink or grow steadily from layer to layer."""
    count = len(scales.layers)
    if count <= LAYERS:
        return
    step = slope(scales.log)
    change = float(np.median(scales.log[-2:]) - np.median(scales.log[:2]))
    if abs(step * (count - 1)) < COURSE or abs(change) < COURSE or step * change < 0:
        return
    steps = np.diff(scales.log) * np.sign(step)
    if steps.max() > STEADY * abs(change):
        return  # a step, not a slope
    start = int(np.flatnonzero(steps >= abs(step) / 2)[0])
    layer = scales.layers[start]
    what = "shrinks" if step < 0 else "grows"
    evidence = (
        f"from here the RMS of activations {what} in {count} layers from {10 ** scales.log[start]:.2g} to "
        f"{10 ** scales.log[-1]:.2g}, {factor(step)} times in each layer{_initial(run, layer)}{harm_of(run)}."
    )
    advice = "Initialize for the activation in use (He for ReLU, Xavier for tanh), or add normalization."
    yield Symptom(layer.name, evidence, advice, severity_of(run), size=abs(change))


def _drifted(run: Run) -> Iterator[Symptom]:
    """The first layer that has left its own scale of the first looks."""
    history = run.timeline.of("activation_rms")
    if history.shape[1] < 2 * run.window:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log10(np.where(history > 0, history, np.nan))
        now = np.log10(run.recent("activation_rms")[:, -1])
    early = np.array([median_of(values) for values in log[:, : run.window]])
    kinds = np.array([layer.kind in ("linear", "conv", "norm", "recurrent", "embedding") for layer in run.layers])
    moved = np.where(kinds & np.isfinite(now), now - early, np.nan)
    usual = median_of(moved)
    off = moved - usual
    last = next((place for place in range(len(run.layers) - 1, -1, -1) if np.isfinite(moved[place])), 0)
    off[last] = min(off[last], 0.0)  # a head is to grow sure of its answers
    for place in np.flatnonzero(np.abs(off) >= DRIFT):
        layer = run.layers[place]
        if was_zero(run, layer) or abs(robust_z(moved[place], np.delete(moved, place), FLOOR)) < FAR:
            continue
        evidence = (
            f"the RMS of its output went from {10 ** early[place]:.2g} in the first looks to {10 ** now[place]:.2g}; "
            f"other layers changed {factor(usual)} times{harm_of(run)}."
        )
        advice = "Look at its learning rate and weight decay, and at its weights over time."
        yield Symptom(layer.name, evidence, advice, severity_of(run), size=abs(float(off[place])))
        return


def _initial(run: Run, layer: Layer) -> str:
    """Whether the scale was there at the first look, as the end of a clause."""
    place = run.place(layer.name)
    first = run.timeline.of("activation_rms")[place, 0]
    now = run.recent("activation_rms")[place, -1]
    if not (first > 0 and now > 0):
        return ""
    change = abs(math.log10(now / first))
    return ", as it was initialized" if change < GAIN / 2 else f", after {first:.2g} at the first look"


def _collapsed(run: Run) -> Iterator[Symptom]:
    spread = run.recent("sample_spread")[:, -1]
    seen = np.flatnonzero(np.isfinite(spread) & np.array([_answers(run, layer) for layer in run.layers]))
    if len(seen) < 2:
        return
    for before, place in pairwise(seen):
        layer = run.layers[place]
        if layer.kind == "embedding" or not (spread[place] < SAME and spread[before] >= DIFFERENT):
            continue
        first = run.timeline.of("sample_spread")[place, 0]
        reaches_the_end = bool((spread[seen[seen >= place]] < SAME).all())
        if not reaches_the_end and not first >= DIFFERENT:
            continue  # what it is given may be constant by design
        evidence = (
            f"its output differs between samples by {spread[place]:.1g} of its RMS; the layer before differs by "
            f"{spread[before]:.2g}, usual here: {float(np.median(spread[seen])):.2g}{harm_of(run)}."
        )
        advice = "Look at its weights and its bias: what comes in does not matter to it."
        severity = severity_of(run) if reaches_the_end else "note"
        yield Symptom(layer.name, evidence, advice, severity, size=float(spread[before]))


def _answers(run: Run, layer: Layer) -> bool:
    reading = run.now.of(layer.name, "output")
    if reading is None or reading.channels is None or not len(reading.channels):
        return False
    return bool(np.median(reading.channels[:, _COUNT]) >= ANSWERS)


ACTIVATION_SCALE = Rule("activation_scale", _activation_scale)
COLLAPSED = Rule("collapsed", _collapsed)
