"""`saturated`: bounded activations and gates at their ends, where they pass no gradient."""

from collections.abc import Iterator

import numpy as np

from hookboard.health.answers import BALANCED
from hookboard.health.look import Look
from hookboard.health.rule import Rule
from hookboard.health.rules.shared import harm_of, severity_of, source_of
from hookboard.health.run import Run
from hookboard.health.verdict import Severity, Symptom
from hookboard.layers import END, RANGES, Layer
from hookboard.measure import FIELDS
from hookboard.recording import Reading

_MIN, _MAX = map(FIELDS.index, ("min", "max"))

SHARE = 0.5
"""Share of saturated outputs from which it is a symptom (DeepDiagnosis)."""

FULL, CHAIN = 0.55, 3
"""Share that half of the hidden layers, of so many at least, must reach from the first look on to be an alarm whatever
the loss does. Healthy trainings of the benchmark's tuning half reach 0.47 in one layer."""

NEAR = 0.1
"""How close to the loss of chance the first loss must be to be a cross entropy, as a share (a choice)."""

SHUT = 0.02
"""RMS of the output of an LSTM or GRU, as a share of that of its input (1 at most), under which its gates are shut (a
choice; it begins at about 0.1)."""

CLOSED = 1e-3
"""The same where nothing gets through: an alarm whatever the loss does (a choice)."""

FORGETS = -4.0
"""A bias of a gate below this keeps it shut: a sigmoid gives 0.02 there."""

GATE = -0.5
"""Mean of the biases of a recurrent layer under which one gate in four has such a bias (-4 / 4, with a margin)."""


def _saturated(run: Run) -> Iterator[Symptom]:
    last = next((layer.name for layer in reversed(run.layers) if run.now.numbers(layer.name, "output")), "")
    shares = {layer.name: _share(run, layer) for layer in run.layers if layer.kind == "bounded"}
    known = {name: share for name, share in shares.items() if share is not None}
    at_start = [_share_at(run.first, layer) for layer in run.layers if layer.name in known and layer.name != last]
    hidden = [share for name, share in known.items() if name != last]
    is_chain = len(hidden) >= CHAIN and min(np.median(hidden), np.median([s or 0.0 for s in at_start])) >= FULL
    before = False
    for layer in run.layers:
        share = known.get(layer.name)
        if share is None:
            continue
        is_sick = share >= SHARE and not (layer.name == last and not run.losses.is_harmed)
        if is_sick and not before:
            others = [other for name, other in known.items() if name != layer.name]
            yield _symptom(run, layer, share, others, "alarm" if is_chain else severity_of(run))
        before = is_sick
    for layer in run.layers:
        if layer.kind == "recurrent":
            yield from _gates(run, layer)
        elif layer.type == "Softmax" and layer.name == last:
            yield from _softmax_twice(run, layer)


def _share(run: Run, layer: Layer) -> float | None:
    """The share of outputs at the ends of the range, or of units that stay at one end; the larger one."""
    share, reading = _share_at(run.now, layer), run.now.of(layer.name, "output")
    units = run.units(layer.name, looks=min(run.window, len(run.looks)))
    if share is None or reading is None or units is None:
        return share
    low, high = _range(layer, reading)
    middle, half = (low + high) / 2, (high - low) / 2
    at_high = (units[:, :, _MIN] >= middle + END * half).all(axis=0)
    at_low = (units[:, :, _MAX] <= middle - END * half).all(axis=0)
    return max(share, float((at_high | at_low).mean()))


def _share_at(look: Look | None, layer: Layer) -> float | None:
    """The share of outputs at the ends of the range; without a histogram it is estimated from the deviation."""
    reading = None if look is None else look.of(layer.name, "output")
    if reading is None or not reading.moments.count:
        return None
    low, high = _range(layer, reading)
    middle, half = (low + high) / 2, (high - low) / 2
    if reading.histogram is not None and len(reading.histogram.counts):
        edges, counts = reading.histogram.edges, reading.histogram.counts
        centres = (edges[:-1] + edges[1:]) / 2
        return float(counts[np.abs(centres - middle) >= END * half].sum() / counts.sum())
    # What is not at the ends is taken as evenly spread between them.
    square = ((reading.moments.mean - middle) ** 2 + reading.moments.deviation**2) / half**2 if half else 0.0
    return max(0.0, (3 * square - 1) / 2)


def _range(layer: Layer, reading: Reading) -> tuple[float, float]:
    if layer.type in RANGES and abs(reading.moments.max) <= 1 and abs(reading.moments.min) <= 1:
        return RANGES[layer.type]
    if layer.type == "Hardtanh":
        return reading.moments.min, reading.moments.max
    return (-1.0 if reading.moments.min < 0 else 0.0), 1.0


def _symptom(run: Run, layer: Layer, share: float, others: list[float], severity: Severity) -> Symptom:
    source = source_of(run, layer)
    usual = f"; of other layers of the kind {100 * min(others):.0f} to {100 * max(others):.0f} %" if others else ""
    evidence = f"{100 * share:.0f} % of the outputs of {layer.name} ({layer.type}) lie at the ends of its range{usual}"
    advice = "Make what goes in smaller: weights and bias at the start, the learning rate later; or normalize it."
    module = layer.name if source is None else source.name
    return Symptom(module, f"{evidence}{harm_of(run)}.", advice, severity, size=share)


def _softmax_twice(run: Run, layer: Layer) -> Iterator[Symptom]:
    """A softmax before a loss that takes one itself.

    Two things tell it from the likelihood and from a squared error: the gradients of each sample add up to 0, and the
    first loss is that of chance.
    """
    gradient, chance, start = run.now.of(layer.name, "grad_output"), run.losses.chance, run.losses.start
    if gradient is None or not gradient.moments.rms or not chance or abs(start - chance) > NEAR * chance:
        return
    if abs(gradient.moments.mean) > BALANCED * gradient.moments.rms:
        return
    evidence = (
        f"the gradient of its answers adds up to 0 for each sample (its mean is {abs(gradient.moments.mean):.1g}, its "
        f"RMS {gradient.moments.rms:.1g}): a softmax of the loss follows, which sees nothing beyond 0 to 1"
    )
    advice = "Leave out this softmax: CrossEntropyLoss takes one itself."
    yield Symptom(layer.name, f"{evidence}{harm_of(run)}.", advice, "alarm", size=1.0)


def _gates(run: Run, layer: Layer) -> Iterator[Symptom]:
    """LSTM and GRU give o * tanh(c), or a mean of tanh: within -1 and 1."""
    reading = run.now.of(layer.name, "output")
    if reading is None or not reading.moments.count:
        return
    advice = "Look at how its biases and weights are initialized: gates want to begin half open."
    # Between -1 and 1 the mean of squares is the smaller one: absolute values are as large on average, or larger.
    if reading.moments.rms**2 >= END and reading.moments.max <= 1 and reading.moments.min >= -1:
        evidence = f"its outputs lie at the ends of their range: their RMS is {reading.moments.rms:.2g}"
        yield Symptom(layer.name, f"{evidence}{harm_of(run)}.", advice, severity_of(run), size=1.0)
        return
    rms = run.recent("activation_rms")[: run.place(layer.name), -1]
    given = next((min(1.0, value) for value in reversed(rms) if value > 0), 0.0)
    if reading.moments.rms < SHUT * given:
        evidence = f"its output has an RMS of {reading.moments.rms:.2g}, what goes in {given:.2g}: its gates are shut"
        severity: Severity = "alarm" if reading.moments.rms < CLOSED * given else severity_of(run)
        yield Symptom(layer.name, f"{evidence}{harm_of(run)}.", advice, severity, size=0.5)
        return
    for name in layer.weights:
        bias = run.now.of(name, "parameter")
        if len(layer.shapes[name]) > 1 or bias is None or not bias.moments.count:
            continue
        if bias.moments.min <= FORGETS and bias.moments.mean <= GATE:
            evidence = (
                f"the biases in {name} go down to {bias.moments.min:.2g}, with a mean of {bias.moments.mean:.2g}: "
                f"gates with such a bias stay shut"
            )
            yield Symptom(layer.name, f"{evidence}{harm_of(run)}.", advice, severity_of(run), size=0.5)
            return


SATURATED = Rule("saturated", _saturated)
