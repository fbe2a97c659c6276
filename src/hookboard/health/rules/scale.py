"""`activation_scale`: activations that shrink or grow along depth or in time, layers out of line, attention."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from hookboard.health.look import Look
from hookboard.health.robust import median, median_of, medians, robust_z, slope
from hookboard.health.rule import Finding, Rule
from hookboard.health.rules.shared import (
    Scales,
    factor,
    harm_of,
    initialization,
    scales_of,
    severity_of,
    was_zero,
)
from hookboard.health.run import Run
from hookboard.measure.row import FIELDS
from hookboard.model.layers import NORM_KINDS, Kind, Layer

LARGE_LOGIT = 100.0
"""A logit from which a head's attention may be too sharp: where Kimi K2 ("Open agentic intelligence", 2025) clips."""

LOGIT_GROWTH_FACTOR = 3.0
"""Factor by which the largest logit must exceed that of the first look (a choice)."""

ENTROPY_SHARE_LEFT = 0.5
"""Share of a head's entropy at the first look to which it must have fallen (a choice): what is added to all logits of a
query changes nothing but their size."""

COLLAPSED_ENTROPY = 0.01
"""Entropy, in nats, up to which a head looks at one key (a choice): it has more than 0.998 of the weight."""

ADVICE = "Normalize queries and keys (QK norm) or clip the logits, and check the attention scale and the learning rate."

_MEAN, _MAX, _COUNT = map(FIELDS.index, ("mean", "max", "count"))


def attention(run: Run) -> Iterator[Finding]:
    """Report attention with a head whose logits grow while its entropy falls, or whose heads all look at one key."""
    first = run.first or run.now
    for name in run.now.readings.places.names("attention_entropy"):
        logits, entropies = _of_heads(run.now, name)
        logits_before, entropies_before = _of_heads(first, name)
        if len(logits) != len(entropies) or len(logits_before) not in (1, len(logits)):
            continue
        grown = (logits >= LARGE_LOGIT) & (logits >= LOGIT_GROWTH_FACTOR * logits_before)
        grown &= entropies <= ENTROPY_SHARE_LEFT * entropies_before
        if grown.any():
            head = int(np.argmax(np.where(grown, logits, 0)))
            before = [float(np.broadcast_to(start, logits.shape)[head]) for start in (logits_before, entropies_before)]
            evidence = (
                f"its largest attention logit rose from {before[0]:.3g} at the first measurement to "
                f"{logits[head]:.3g} in head {head}, whose entropy fell from {before[1]:.2g} to "
                f"{entropies[head]:.2g}{harm_of(run)}."
            )
            yield Finding(name, evidence, ADVICE, severity_of(run), size=float(np.log10(logits[head] / LARGE_LOGIT)))
        elif entropies.max() <= COLLAPSED_ENTROPY and (
            run.losses.is_harmed or entropies_before.max() <= COLLAPSED_ENTROPY
        ):
            who = "its only head" if len(entropies) == 1 else f"each of its {len(entropies)} heads"
            evidence = (
                f"{who} attends to a single key: the entropy of its attention is at most {entropies.max():.2g}, with "
                f"logits up to {logits.max():.3g}{harm_of(run)}."
            )
            yield Finding(name, evidence, ADVICE, severity_of(run))


def _of_heads(look: Look, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest logit and the mean entropy (NaN for fewer than two keys) of each head, or of all as one."""
    logit, entropy = look.of(name, "attention_logit"), look.of(name, "attention_entropy")
    if logit is None or entropy is None:
        return np.array([np.nan]), np.array([np.nan])
    rows = [np.array([one.moments]) if one.channels is None else one.channels for one in (logit, entropy)]
    return rows[0][:, _MAX], np.where(rows[1][:, _COUNT] > 0, rows[1][:, _MEAN], np.nan)


PEER_LAYERS_MIN = 4
"""Number of layers that are needed to say what is usual (a choice)."""

LAYER_GAIN_DECADES = 1.3
"""Powers of ten between a layer's gain (output over input) and its peers'. Healthy runs (tuning half) reach 0.9."""

WEIGHT_GAIN_DECADES = 0.65
"""Powers of ten by which its weights' gain must differ too: otherwise the layer that ran before is not its input."""

OUT_OF_LINE_Z = 5.0
"""Robust z-score from which a layer is out of line with its peers (a choice)."""

PEER_SPREAD_FLOOR_DECADES = 0.2
"""Floor of the deviation between peers, in powers of ten (a choice: 60 % from layer to layer)."""

DEPTH_CHANGE_DECADES = 2.0
"""Powers of ten by which activations may change from first to last layer. Healthy runs (tuning half) reach 1.4."""

STEADY_LAYER_SHARE = 0.5
"""Share of the change along depth up to which a single layer may contribute, if the change is steady (a choice)."""

DRIFTING_KINDS: frozenset[Kind] = NORM_KINDS | {"linear", "conv", "recurrent", "embedding"}
"""Kinds of layers whose outputs have a scale of their own."""

DRIFT_DECADES = 1.5
"""Powers of ten by which a layer may depart from the scale it had in the first looks (a choice: a factor of 30)."""

MODEL_DRIFT_DECADES = 3.0
"""Powers of ten by which most layers outgrow their first looks: always an alarm. Healthy (tuning half): up to 1.0."""


def _activation_scale(run: Run) -> Iterator[Finding]:
    scales = scales_of(run)
    single = list(_out_of_line(run, scales, scales_of(run, at_start=True)))
    # One layer that is out of line moves all later ones.
    chain = [] if single else [*_along_depth(run, scales)]
    said: set[str] = set()
    for finding in (*single, *chain, *attention(run), *_drifted(run)):
        if finding.module not in said:
            said.add(finding.module)
            yield finding


def _out_of_line(run: Run, scales: Scales, first: Scales) -> Iterator[Finding]:
    """Report layers whose gain, output over input, is far from that of other layers, now or at the first look."""
    for seen, other in ((scales, None), (first, scales)):
        known = np.isfinite(seen.gains)
        if known.sum() < PEER_LAYERS_MIN:
            continue
        # Two thirds of the way from all layers together: only these can be far from the others.
        middle = median(seen.gains[known])
        for place in np.flatnonzero(known & (np.abs(seen.gains - middle) >= LAYER_GAIN_DECADES / 1.5)):
            layer = seen.layers[place]
            others = seen.gains[known & (np.arange(len(known)) != place)]
            usual = median(others)
            off = float(seen.gains[place] - usual)
            if (
                abs(off) < LAYER_GAIN_DECADES
                or abs(robust_z(seen.gains[place], others, PEER_SPREAD_FLOOR_DECADES)) < OUT_OF_LINE_Z
            ):
                continue
            heavy = (seen if other is None else other).heaviness(layer)
            if abs(heavy) < WEIGHT_GAIN_DECADES or heavy * off < 0:
                continue
            began = _gain_at_first(first, layer)
            # It is where it was, and the others have gone: they are what is out of line.
            if other is None and abs(began - seen.gains[place]) < LAYER_GAIN_DECADES / 2 and _was_in_line(first, layer):
                continue
            rms = "the RMS of its output is" if other is None else "at the first measurement, the RMS of its output was"
            evidence = (
                f"{rms} {10 ** seen.log[place]:.2g}, which is {factor(seen.gains[place])} times that of the layer "
                f"before it (median of the other layers: {factor(usual)} times)"
            )
            evidence += _initial(run, layer) if other is None else ", and the scale of its weights is still unusual"
            has_changed = other is None and abs(began - seen.gains[place]) >= LAYER_GAIN_DECADES / 2
            advice = (
                "This was not so at first, so check the learning rate of this layer."
                if has_changed
                else "Check how the weights of this layer are initialized and scaled."
            )
            yield Finding(layer.name, f"{evidence}{harm_of(run)}.", advice, severity_of(run), size=abs(off))


def _gain_at_first(first: Scales, layer: Layer) -> float:
    return next((float(gain) for gain, each in zip(first.gains, first.layers, strict=True) if each is layer), math.nan)


def _was_in_line(first: Scales, layer: Layer) -> bool:
    others = [gain for gain, other in zip(first.gains, first.layers, strict=True) if other is not layer]
    return abs(_gain_at_first(first, layer) - median_of(others)) < LAYER_GAIN_DECADES


def _along_depth(run: Run, scales: Scales) -> Iterator[Finding]:
    """Report activations that shrink or grow steadily from layer to layer, of those in series with the last one."""
    are_in_series = [not run.facts.flow.are_apart(layer.name, scales.layers[-1].name) for layer in scales.layers]
    log, count = scales.log[are_in_series], sum(are_in_series)
    if count <= PEER_LAYERS_MIN:
        return
    change = median(log[-2:]) - median(log[:2])
    if abs(change) < DEPTH_CHANGE_DECADES:
        return
    step = slope(log)
    if abs(step * (count - 1)) < DEPTH_CHANGE_DECADES or step * change < 0:
        return
    steps = np.diff(log) * np.sign(step)
    if steps.max() > STEADY_LAYER_SHARE * abs(change):
        return  # a step, not a slope
    start = int(np.flatnonzero(steps >= abs(step) / 2)[0])
    layer = list(itertools.compress(scales.layers, are_in_series))[start]
    what = "shrinks" if step < 0 else "grows"
    evidence = (
        f"from here on, the RMS of activations {what} over {count} layers from {10 ** log[start]:.2g} to "
        f"{10 ** log[-1]:.2g}, by a factor of {factor(step)} per layer{_initial(run, layer)}{harm_of(run)}."
    )
    advice = f"{initialization(run)}, or add normalization."
    yield Finding(layer.name, evidence, advice, severity_of(run), size=abs(change))


def _drifted(run: Run) -> Iterator[Finding]:
    """Report the model if most outputs far outgrew their first scale, otherwise the first layer that left its own."""
    if len(run.course_steps) < 2 * run.window:
        return
    history = run.course("activation_rms", run.window)
    now = run.recent("activation_rms")[:, -1]
    early = medians(history)
    known = run.arrays.of_kind(DRIFTING_KINDS) & (now > 0) & (early > 0)
    moved = np.full(len(now), np.nan)
    moved[known] = np.log10(now[known] / early[known])
    places = np.flatnonzero(known)
    if len(places):
        moved[places[-1]] = min(moved[places[-1]], 0.0)  # a head is to grow sure of its answers
    usual = median_of(moved.tolist())
    if usual >= MODEL_DRIFT_DECADES:
        evidence = f"the outputs of most layers have grown to {factor(usual)} times their initial RMS{harm_of(run)}."
        yield Finding("", evidence, "Lower the learning rate, and check the sign of the loss.", "alarm", size=usual)
        return
    # In a healthy training activations grow, in some layers more than in others.
    for place in np.flatnonzero((moved <= -DRIFT_DECADES) | (moved - max(usual, 0.0) >= DRIFT_DECADES)):
        layer = run.layers[place]
        # What is learnt may have any scale, unless the loss shows harm; but a norm is not to shrink.
        has_faded = layer.kind == "norm" and moved[place] < 0
        if was_zero(run, layer) or not (has_faded or run.losses.is_harmed):
            continue
        evidence = (
            f"the RMS of its output changed from {early[place]:.2g} in the first measurements to {now[place]:.2g} (by "
            f"a factor of {factor(usual)} in the median layer){harm_of(run)}."
        )
        advice = "Check its learning rate, and how its weights change over time."
        yield Finding(layer.name, evidence, advice, "alarm", size=abs(float(moved[place])))
        return


def _initial(run: Run, layer: Layer) -> str:
    """Return ", as at initialization" if the scale of the layer's output has hardly changed, else its first RMS."""
    place = run.place(layer.name)
    first, now = run.course("activation_rms", 1)[place, 0], run.recent("activation_rms")[place, -1]
    if not (first > 0 and now > 0):
        return ""
    change = abs(math.log10(now / first))
    if change < LAYER_GAIN_DECADES / 2:
        return ", as at initialization"
    return f"; this layer's RMS was {first:.2g} at the first measurement"


ACTIVATION_SCALE = Rule("activation_scale", _activation_scale, look_at="health/activation_rms")
