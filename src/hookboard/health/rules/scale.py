"""`activation_scale`: activations that shrink or grow along depth, and layers out of line with their peers."""

import math
from collections.abc import Iterator

import numpy as np

from hookboard.health.look import Look
from hookboard.health.rule import Rule
from hookboard.health.rules.normalization import normalization
from hookboard.health.rules.scales import Scales, scales_of, weight_gain
from hookboard.health.rules.shared import factor, harm_of, initialization, robust_z, severity_of, slope, was_zero
from hookboard.health.run import Run, median_of
from hookboard.health.spikes import median, medians
from hookboard.health.verdict import Severity, Symptom
from hookboard.layers import Kind, Layer
from hookboard.sites import Role

LAYERS = 4
"""Layers that are needed to say what is usual (a choice)."""

GAIN = 1.3
"""Powers of ten by which what a layer does to the scale must differ from what its peers do. Healthy trainings of the
benchmark's tuning half reach 0.9."""

HEAVY = 0.65
"""Powers of ten by which its weights must differ too: otherwise what ran before it is not what goes in."""

FAR = 5.0
"""Robust z-score from which a layer is out of line with its peers (a choice)."""

FLOOR = 0.2
"""The least deviation between peers that is assumed, in powers of ten (a choice: 60 % from layer to layer)."""

COURSE = 2.0
"""Powers of ten by which activations may shrink or grow from the first to the last layer. Healthy trainings of the
benchmark's tuning half reach 1.4."""

STEADY = 0.5
"""Share of the change along depth that one layer may make, where it is steady (a choice)."""

FADES, SWELLS = -4.0, 3.0
"""Powers of ten by which the weights of all layers together may scale a signal, without any norm (a choice). What fades
is an alarm whatever the loss does."""

FADES_EACH, SWELLS_EACH = -0.6, 0.3
"""And in each layer, on average: PyTorch's own initialization loses 0.24 there, He's gains 0.15."""

RECURRENT = 3.0
"""L2 norm of the recurrent weights of a unit from which a recurrent layer feeds back more than it can hold: PyTorch
begins with 0.58, trained layers of the benchmark's tuning half reach 1.4."""

BLOWN_UP = 10.0
"""RMS of the outputs of a recurrent layer, by itself and as a multiple of what goes in, from which it feeds back more
than it can hold: with tanh it is 1 at most (a choice)."""

RECURRENTS: frozenset[Kind] = frozenset({"recurrent"})
NORMS: frozenset[Kind] = frozenset({"norm"})
DRIFTING: frozenset[Kind] = frozenset({"linear", "conv", "norm", "recurrent", "embedding"})
"""Kinds of layers whose outputs have a scale of their own."""

DRIFT = 1.5
"""Powers of ten by which a layer may leave its own scale of the first looks (a choice: a factor of 30)."""

GROWN = 3.0
"""Powers of ten by which most layers together exceed their own scale of the first looks where nothing holds the model
any more: an alarm whatever the loss does. Healthy trainings of the benchmark's tuning half reach 1.0."""


def _activation_scale(run: Run) -> Iterator[Symptom]:
    scales = scales_of(run)
    single = list(_out_of_line(run, scales, scales_of(run, at_start=True)))
    # One layer that is out of line moves all behind it.
    chain = [] if single else [*_along_weights(run, scales), *_along_depth(run, scales)][:1]
    said: set[str] = set()
    for symptom in (*single, *chain, *_recurrent(run), *normalization(run), *_drifted(run)):
        if symptom.module not in said:
            said.add(symptom.module)
            yield symptom


def _out_of_line(run: Run, scales: Scales, first: Scales) -> Iterator[Symptom]:
    """Layers that scale what goes in by another factor than their peers, now or at the first look."""
    for seen, other in ((scales, None), (first, scales)):
        known = np.isfinite(seen.gains)
        if known.sum() < LAYERS:
            continue
        # Two thirds of the way from all layers together: only these can be far from the others.
        middle = median(seen.gains[known])
        for place in np.flatnonzero(known & (np.abs(seen.gains - middle) >= GAIN / 1.5)):
            layer = seen.layers[place]
            others = seen.gains[known & (np.arange(len(known)) != place)]
            off = float(seen.gains[place] - np.median(others))
            if abs(off) < GAIN or abs(robust_z(seen.gains[place], others, FLOOR)) < FAR:
                continue
            heavy = (seen if other is None else other).heaviness(layer)
            if abs(heavy) < HEAVY or heavy * off < 0:
                continue
            when = "" if other is None else " at the first look"
            evidence = (
                f"its output has {factor(seen.gains[place])} times the RMS of what goes in{when} "
                f"({10 ** seen.log[place]:.2g}); usual here: {factor(float(np.median(others)))} times"
            )
            evidence += _initial(run, layer) if other is None else ", and its weights are still out of line"
            advice = "Look at how the weights of this layer are initialized and scaled."
            yield Symptom(layer.name, f"{evidence}{_harm(run)}.", advice, _severity(run), size=abs(off))


def _along_depth(run: Run, scales: Scales) -> Iterator[Symptom]:
    """Activations that shrink or grow steadily from layer to layer."""
    count = len(scales.layers)
    if count <= LAYERS:
        return
    change = median(scales.log[-2:]) - median(scales.log[:2])
    if abs(change) < COURSE:
        return
    step = slope(scales.log)
    if abs(step * (count - 1)) < COURSE or step * change < 0:
        return
    steps = np.diff(scales.log) * np.sign(step)
    if steps.max() > STEADY * abs(change):
        return  # a step, not a slope
    start = int(np.flatnonzero(steps >= abs(step) / 2)[0])
    layer = scales.layers[start]
    what = "shrinks" if step < 0 else "grows"
    evidence = (
        f"from here the RMS of activations {what} in {count} layers from {10 ** scales.log[start]:.2g} to "
        f"{10 ** scales.log[-1]:.2g}, {factor(step)} times in each layer{_initial(run, layer)}{_harm(run)}."
    )
    yield Symptom(layer.name, evidence, _initialize(run), _severity(run), size=abs(change))


def _initialize(run: Run) -> str:
    return f"{initialization(run)}, or add normalization."


def _along_weights(run: Run, scales: Scales) -> Iterator[Symptom]:
    """Weights that let a signal fade or swell, though biases hide it; nothing normalizes it."""
    if len(scales.layers) <= LAYERS or run.arrays.of_kind(NORMS).any():
        return
    whole = float(np.nansum(scales.weights))
    each = whole / len(scales.layers)
    if not ((whole <= FADES and each <= FADES_EACH) or (whole >= SWELLS and each >= SWELLS_EACH)):
        return
    what = "keep" if whole < 0 else "blow a signal up to"
    evidence = (
        f"the weights of {len(scales.layers)} layers {what} {factor(each)} times a signal in "
        f"each, {factor(whole)} times in all, and nothing normalizes it{_harm(run)}."
    )
    yield Symptom("", evidence, _initialize(run), "alarm" if whole < 0 else _severity(run), size=abs(whole))


def _recurrent(run: Run) -> Iterator[Symptom]:
    """Recurrent layers that feed back more than they can hold."""
    for layer in (run.layers[place] for place in np.flatnonzero(run.arrays.of_kind(RECURRENTS))):
        names = [name for name in layer.weights if "weight_hh" in name]
        norm = max((_norm(run.now, layer, name, "parameter") for name in names), default=0.0)
        if norm < RECURRENT:
            yield from _blown_up(run, layer)
            continue
        evidence = (
            f"the recurrent weights of a unit have an L2 norm of {norm:.2g}: what it feeds back grows with each step "
            f"of a sequence; 0.6 to 1 is usual{_harm(run)}."
        )
        advice = "Initialize the recurrent weights as orthogonal matrices, and clip gradients."
        first = run.first or run.now
        began = max(_norm(first, layer, name, "parameter_before") for name in names)
        # What the first step did is not there since the start.
        since = first.step + 1 if run.seen == 1 and began < RECURRENT else None
        yield Symptom(layer.name, evidence, advice, severity_of(run), size=norm, since=since)


def _blown_up(run: Run, layer: Layer) -> Iterator[Symptom]:
    """A recurrent layer without bounds, as one with ReLU: its weights are small, and what it gives is not."""
    output = run.now.numbers(layer.name, "output")
    before = run.layers[: run.place(layer.name)]
    given = next((reading for other in reversed(before) if (reading := run.now.numbers(other.name, "output"))), None)
    if output is None or output.moments.nonfinite:
        return
    usual = 1.0 if given is None or not given.moments.count else max(given.moments.rms, 1.0)
    if not output.moments.rms > BLOWN_UP * usual:
        return
    evidence = (
        f"its output has an RMS of {output.moments.rms:.2g}, {output.moments.rms / usual:.2g} times that of what goes "
        f"in: what it feeds back grows with each step of a sequence{_initial(run, layer)}{_harm(run)}."
    )
    advice = "Initialize the recurrent weights smaller, or use tanh, an LSTM or a GRU; and clip gradients."
    yield Symptom(layer.name, evidence, advice, _severity(run), size=math.log10(output.moments.rms / usual))


def _norm(look: Look, layer: Layer, name: str, role: Role) -> float:
    gain = weight_gain(look, layer, name, role)
    return 0.0 if math.isnan(gain) else 10**gain


def _drifted(run: Run) -> Iterator[Symptom]:
    """The first layer that has left its own scale of the first looks."""
    if len(run.course_steps) < 2 * run.window:
        return
    history = run.course("activation_rms", run.window)
    now = run.recent("activation_rms")[:, -1]
    early = medians(history)
    known = run.arrays.of_kind(DRIFTING) & (now > 0) & (early > 0)
    moved = np.full(len(now), np.nan)
    moved[known] = np.log10(now[known] / early[known])
    places = np.flatnonzero(known)
    if len(places):
        moved[places[-1]] = min(moved[places[-1]], 0.0)  # a head is to grow sure of its answers
    usual = median_of(moved.tolist())
    if usual >= GROWN:
        evidence = f"the RMS of the outputs of most layers is {factor(usual)} times that at the start{_harm(run)}."
        yield Symptom("", evidence, "Lower the learning rate, and look at the sign of the loss.", "alarm", size=usual)
        return
    # In a healthy training activations grow, in some layers more than in others.
    for place in np.flatnonzero((moved <= -DRIFT) | (moved - max(usual, 0.0) >= DRIFT)):
        layer = run.layers[place]
        if was_zero(run, layer):
            continue
        evidence = (
            f"the RMS of its output went from {early[place]:.2g} in the first looks to {now[place]:.2g}; "
            f"usual here: {factor(usual)} times{_harm(run)}."
        )
        advice = "Look at its learning rate and weight decay, and at its weights over time."
        # What normalizes is to keep a scale.
        is_harm = layer.kind == "norm" and moved[place] < 0
        severity: Severity = "alarm" if is_harm else severity_of(run)
        yield Symptom(layer.name, evidence, advice, severity, size=abs(float(moved[place])))
        return


def _initial(run: Run, layer: Layer) -> str:
    """Whether the scale was there at the first look, as the end of a clause."""
    place = run.place(layer.name)
    first, now = run.course("activation_rms", 1)[place, 0], run.recent("activation_rms")[place, -1]
    if not (first > 0 and now > 0):
        return ""
    change = abs(math.log10(now / first))
    return ", as it was initialized" if change < GAIN / 2 else f", after {first:.2g} at the first look"


def _severity(run: Run) -> Severity:
    return "alarm" if run.losses.starts_high else severity_of(run)


def _harm(run: Run) -> str:
    if run.losses.starts_high and not run.losses.is_harmed:
        return f"; the first loss was {run.losses.start:.3g}, that of chance is {run.losses.chance:.3g}"
    return harm_of(run)


ACTIVATION_SCALE = Rule("activation_scale", _activation_scale)
