"""Layers that are to keep a scale and do not: norms with other statistics or lost gains, and heavy dropout."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.rules.shared import harm_of, severity_of
from hookboard.health.run import Run, median_of
from hookboard.health.verdict import Severity, Symptom
from hookboard.measure import FIELDS

_DEVIATION = FIELDS.index("deviation")

LOW, OFF = 0.67, 1.1
"""How many times its gain, at most or at least, the deviation of a batch norm's channels must be in half of the norms
to be worth a note. With the statistics of the batch it is 1, and less only where epsilon outweighs them."""

FAR_OFF = 2.5
"""From where on it is an alarm whatever the loss does."""

CONSTANT = 1e-3
"""Channels that vary by less than this share of the one that varies most do not count: nothing comes in."""

LOST = 0.2
"""Share of their first size to which gains must fall. In healthy trainings of the benchmark's tuning half 0.64 is
left of the one that falls most."""

FAST = 0.01
"""And by at least this share in each step: a weight decay of 5e-4 at a rate of 0.1 takes 0.00005 (a choice)."""

DROPPED = 0.9
"""The share of values that a dropout must drop to be worth a note: 0.5 is usual, 0.8 the most in use."""


def normalization(run: Run) -> Iterator[Symptom]:
    """Batch norms that do not normalize, and the first dropout that leaves hardly anything."""
    norms = [layer for layer in run.layers if "BatchNorm" in layer.type]
    yield from _gains_lost(run, norms)
    shares = {layer.name: share for layer in norms if (share := _normalized(run, layer)) is not None}
    off = [layer for layer in norms if layer.name in shares and not _is_usual(shares[layer.name])]
    # In evaluation mode all of them are off, each as far as its running statistics are.
    if len(off) >= len(shares) / 2 > 0:
        yield _unnormalized(run, norms[0], off, shares)
    dropouts = (_heavy_dropout(run, place) for place, layer in enumerate(run.layers) if layer.kind == "dropout")
    heavy = [symptom for symptom in dropouts if symptom is not None]
    if len(heavy) > 1:  # what one after the other leaves is their product
        heavy[0] = replace(heavy[0], severity="alarm", evidence=f"{heavy[0].evidence} So do {len(heavy) - 1} others.")
    yield from heavy[:1]


def _gains_lost(run: Run, norms: list[Layer]) -> Iterator[Symptom]:
    """Gains that go towards 0, faster than any usual decay takes them there."""
    steps, places = np.array(run.timeline.steps), [run.place(layer.name) for layer in norms]
    gains = run.timeline.of("weight_rms")[places] if places else np.empty((0, len(steps)))
    gains = gains[gains[:, 0] > 0]
    if not len(gains) or len(steps) < 2:
        return
    left = np.array([median_of(column) for column in (gains / gains[:, :1]).T])
    lowest = int(np.nanargmin(left))  # in the first column it is 1
    fell = -math.log(left[lowest]) if left[lowest] else math.inf
    if not left[lowest] < LOST or fell < FAST * (steps[lowest] - steps[0]):
        return
    evidence = (
        f"the gains of batch norms went down to {left[lowest]:.2g} of what they were, in {steps[lowest] - steps[0]} "
        f"steps: what they give, and the gradient that they pass on, goes down with them{harm_of(run)}."
    )
    advice = "Look at the weight decay: gains and biases want none."
    start = int(np.argmax(left < 1 / OFF))
    yield Symptom(norms[0].name, evidence, advice, "alarm", size=fell / math.log(10), since=int(steps[start]))


def takes_the_batch(run: Run, layer: Layer) -> bool:
    """Whether a batch norm gives what the statistics of the batch make of it, as far as can be told."""
    share = _normalized(run, layer)
    return share is not None and _is_usual(share)


def _is_usual(share: float) -> bool:
    return LOW < share < OFF


def _normalized(run: Run, layer: Layer) -> float | None:
    """The deviation of the channels of a batch norm, as a share of its gain; None if it cannot be told."""
    output = run.now.numbers(layer.name, "output")
    gain = next(
        (run.now.numbers(name, "parameter_before") or run.now.numbers(name, "parameter") for name in layer.weights),
        None,
    )
    if output is None or output.channels is None or gain is None or not gain.moments.rms:
        return None
    deviation = output.channels[:, _DEVIATION]
    least = CONSTANT * deviation.max()
    alive = deviation if deviation.min() > least else deviation[deviation > least]
    if output.moments.nonfinite or len(alive) < len(deviation) / 2:
        return None
    return math.sqrt(float(alive @ alive) / len(alive)) / gain.moments.rms


def _unnormalized(run: Run, layer: Layer, off: list[Layer], shares: dict[str, float]) -> Symptom:
    is_far = any(other.trainable and not 1 / FAR_OFF < shares[other.name] < FAR_OFF for other in off)
    severity: Severity = "alarm" if is_far else severity_of(run)
    found = [shares[other.name] for other in off]
    evidence = (
        f"channels deviate by {min(found):.2g} to {max(found):.2g} times their gain in {len(off)} of {len(shares)} "
        f"batch norms; normalized by the statistics of the batch it is 1 exactly: they use others{harm_of(run)}."
    )
    advice = "Look whether they are in evaluation mode while training, and whether their statistics fit the data."
    return Symptom(layer.name, evidence, advice, severity, size=max(abs(float(np.log10(share))) for share in found))


def _heavy_dropout(run: Run, place: int) -> Symptom | None:
    layer = run.layers[place]
    output = run.now.numbers(layer.name, "output")
    given = run.now.numbers(run.layers[place - 1].name, "output") if place else None
    if output is None or given is None or output.moments.count != given.moments.count:
        return None
    left = given.moments.count - given.moments.zeros
    dropped = 1 - (output.moments.count - output.moments.zeros) / left if left else 0.0
    if not DROPPED <= dropped < 1:
        return None
    evidence = f"it drops {100 * dropped:.0f} % of what it is given, and scales the rest by {1 / (1 - dropped):.2g}"
    return Symptom(layer.name, f"{evidence}{harm_of(run)}.", "Lower its rate.", severity_of(run), size=dropped)
