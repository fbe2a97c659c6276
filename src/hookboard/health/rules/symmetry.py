"""`symmetric_units`: units of one layer that are copies of each other, and stay so."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hookboard.health.look import Look
from hookboard.health.rule import Rule
from hookboard.health.rules.shared import counted, harm_of, severity_of
from hookboard.health.run import Run
from hookboard.health.table import Units
from hookboard.health.verdict import Severity, Symptom
from hookboard.layers import Kind, Layer
from hookboard.measure import FIELDS

_COUNT, _MEAN, _ZEROS = map(FIELDS.index, ("count", "mean", "zeros"))
_COMPARED = list(map(FIELDS.index, ("max", "min", "mean", "deviation")))

ADVICE = "Initialize its weights with random numbers, and look for weights that are copied or set to a constant."

UNJUDGED: frozenset[Kind] = frozenset({"embedding", "norm"})
"""Kinds of layers whose units may be equal."""

HALF = 0.5
"""Share of units with a twin above which it is an alarm: the layer is worth less than half of its size (a choice)."""

FEWEST = 4
"""Units that a layer must have for a constant weight to be an alarm whatever the loss does (a choice)."""

PARTED = 0.5
"""Units that began as one have parted where they differ by this share of what independent random weights of their size
do (a choice)."""

ALIKE = 1e-5
"""Two units have the same weights if no number of theirs differs by more than this share of its size: about 100
roundings of float32."""

ALIKE_GRADIENT = 1e-3
"""The same for gradients, where sums over a batch cancel."""


def _symmetric_units(run: Run) -> Iterator[Symptom]:
    """The first layer of each severity: where all weights are alike, all layers are sick."""
    found = [symptom for place in _suspects(run) if (symptom := _in_layer(run, run.layers[place]))]
    for severity in ("alarm", "note"):
        several = [symptom for symptom in found if symptom.severity == severity]
        if several:
            others = f" The same in {len(several) - 1} layers behind it." if len(several) > 1 else ""
            yield replace(several[0], evidence=several[0].evidence + others)


def _suspects(run: Run) -> list[int]:
    """The places of all layers whose weights may have twins, or were constant at first: hardly any is looked at."""
    table, weights = run.arrays, run.latest.rows("parameter").units
    is_judged = (table.is_trainable & ~table.of_kind(UNJUDGED)[table.owner])[weights.places]
    is_suspect = np.zeros(len(table.weights), dtype=bool)
    is_suspect[weights.places[_with_close_units(weights, is_judged)]] = True
    before = run.initial.rows("parameter_before")
    is_constant = (before.deviation <= ALIKE * np.abs(before.mean)) & (before.mean != 0)
    is_suspect[weights.places] |= is_judged & is_constant[weights.places]
    return sorted(set(table.owner[is_suspect].tolist()))


def _with_close_units(weights: Units, is_judged: np.ndarray) -> np.ndarray:
    """The numbers of the weights with units of which each number is close to that of another unit, as twins' are.

    Twins differ by less than two roundings of the largest number there is.

    Args:
        weights: the units of all weights.
        is_judged: which weights are meant, shape (weights,).
    """
    low, high = weights.column("min"), weights.column("max")
    largest = weights.each(np.maximum, np.maximum(np.abs(low), np.abs(high)))
    owner = np.repeat(np.arange(len(largest)), weights.counts)
    found = np.flatnonzero((is_judged & np.isfinite(largest))[owner])
    largest = np.where(largest > 0, largest, 1.0)
    for field in _COMPARED:
        # Each weight in a range of its own, and all of them sorted at once.
        scaled = weights.rows[found, field] / largest[owner[found]] + 4.0 * owner[found]
        order = np.argsort(scaled)
        close = np.flatnonzero(np.diff(scaled[order]) <= 2.01 * ALIKE)
        is_near = np.zeros(len(found), dtype=bool)
        is_near[order[close]] = is_near[order[close + 1]] = True
        found = found[is_near]
        if not len(found):
            break
    return np.unique(owner[found])


def _in_layer(run: Run, layer: Layer) -> Symptom | None:
    for name in sorted(layer.trainable):
        weight, gradient = run.now.numbers(name, "parameter"), run.now.numbers(name, "parameter_grad")
        if weight is None or gradient is None or weight.channels is None or gradient.channels is None:
            continue
        twins = _twins(weight.channels, gradient.channels) if weight.width == gradient.width else 0
        if twins:
            return _symmetric_symptom(layer, name, twins, len(weight.channels))
        if (value := _constant_at_first(run, name, weight.width)) is not None:
            return _constant_symptom(run, layer, name, value)
    return None


def _constant_at_first(run: Run, name: str, units: int) -> float | None:
    """The value that all elements of a weight had before the first measured step; None if they differed, or were 0."""
    before = None if run.first is None else run.first.numbers(name, "parameter_before")
    if before is None or before.moments.count < 2 * units or not before.moments.mean:
        return None
    is_constant = before.moments.deviation <= ALIKE * abs(before.moments.mean)
    return before.moments.mean if is_constant else None


def _constant_symptom(run: Run, layer: Layer, name: str, value: float) -> Symptom:
    course = [(look.step, _parted(look, name)) for look in (run.first or run.now, *run.looks)]
    now = course[-1][1]
    evidence = (
        f"all elements of {name} were {value:.3g} at the start: its units begin as one, and take long to part; now "
        f"they differ by {100 * now:.2g} % of what random ones do"
    )
    until = max(step for step, share in course if step == course[0][0] or share < PARTED) if now >= PARTED else None
    shape = layer.shapes[name]
    # Nobody fills weights of units with several inputs like this on purpose; a filter for each channel may be a mean.
    is_matrix = len(shape) > 1 and shape[1] > 1 and shape[0] >= FEWEST
    is_hard = is_matrix and layer.kind in ("linear", "conv", "recurrent")
    severity: Severity = "alarm" if is_hard else severity_of(run)
    return Symptom(layer.name, f"{evidence}{harm_of(run)}.", ADVICE, severity, size=HALF, until=until)


def _parted(look: Look, name: str) -> float:
    """How much the units of a weight differ, as a share of what independent random ones do; NaN if not measured.

    The means of n such elements deviate by a share of 1 / sqrt(n) of the size of one.
    """
    weight = look.numbers(name, "parameter")
    if weight is None or weight.channels is None or not weight.moments.rms > 0:
        return math.nan
    means, counts = weight.channels[:, _MEAN], weight.channels[:, _COUNT]
    return float(np.std(means) * math.sqrt(np.median(counts)) / weight.moments.rms)


def _twins(weights: np.ndarray, gradients: np.ndarray) -> int:
    """How many units have the weights and the gradient of another unit.

    Units without any weight count only where the whole layer has none: single ones are pruned.
    """
    if not (np.isfinite(weights[:, _COMPARED]).all() and np.isfinite(gradients[:, _COMPARED]).all()):
        return 0
    is_zero = weights[:, _ZEROS] >= weights[:, _COUNT]
    found = np.flatnonzero(~is_zero | gradients[:, _COMPARED].any(axis=1) | is_zero.all())
    if len(found) < 2:
        return 0
    both = [_rounded(weights[found][:, _COMPARED], ALIKE), _rounded(gradients[found][:, _COMPARED], ALIKE_GRADIENT)]
    equal = Counter(row.tobytes() for row in np.hstack(both) + 0.0)  # -0.0 is 0.0
    return sum(size for size in equal.values() if size > 1)


def _rounded(rows: np.ndarray, share: float) -> np.ndarray:
    """The numbers of each unit in units of a share of its own size, and that size as a power of ten."""
    size = np.abs(rows).max(axis=1, keepdims=True)
    decade = np.floor(np.log10(size, where=size > 0, out=np.full_like(size, -300.0)))
    return np.hstack([np.round(rows / (share * 10.0**decade)), decade])


def _symmetric_symptom(layer: Layer, name: str, twins: int, units: int) -> Symptom:
    share, width = twins / units, layer.shapes[name][0] if name in layer.shapes else units
    evidence = (
        f"{counted(twins, units, 'units', width if units < width else None)} of {name} have the weights and the "
        f"gradient of another unit, so they stay equal; units of other layers differ."
    )
    return Symptom(layer.name, evidence, ADVICE, "alarm" if share > HALF else "note", size=share)


SYMMETRIC_UNITS = Rule("symmetric_units", _symmetric_units)
