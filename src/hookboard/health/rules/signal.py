"""Signals and gradients through the layers: `saturated`, `collapsed`, `vanishing_gradient`, `exploding_gradient`."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hookboard.health.look import Look
from hookboard.health.robust import median
from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.rules.shared import (
    BOUNDED_KINDS,
    activations_of,
    clip_too,
    factor,
    harm_of,
    initialization,
    is_done,
    severity_of,
    source_of,
)
from hookboard.health.run import Run
from hookboard.measure.readings import Reading
from hookboard.measure.row import FIELDS
from hookboard.model.layers import Layer

_MIN, _MAX = map(FIELDS.index, ("min", "max"))

SATURATED_SHARE = 0.97
"""An output is saturated if it is beyond this share of the way from the middle of its range to the end: for tanh beyond
2.1, where it passes 6 % of the gradient (Karpathy).
"""

RANGES = {"Tanh": (-1, 1), "Sigmoid": (0, 1), "Hardtanh": (-1, 1), "Hardsigmoid": (0, 1), "Softsign": (-1, 1)}
"""The range of each bounded activation, by class name; a Hardtanh may be given another one."""

SATURATED_SHARE_NOTE = 0.5
"""Share of saturated outputs from which a layer is reported (DeepDiagnosis)."""

CHAIN_LAYERS_MIN = 3
"""Number of hidden layers that `CHAIN_SATURATED_SHARE_ALARM` needs (a choice)."""

CHAIN_SATURATED_SHARE_ALARM = 0.55
"""Share of saturated outputs that half of the hidden layers must reach from the first look on to be an alarm whatever
the loss does. Healthy runs of the benchmark's tuning half reach 0.47 in one layer."""

SHUT_GATE_RATIO_NOTE = 0.02
"""RMS of the output of an LSTM or GRU, as a share of that of its input (1 at most), below which its gates are shut (a
choice; it begins at about 0.1)."""

SHUT_GATE_RATIO_ALARM = 1e-3
"""RMS of the output of an LSTM or GRU, as a share of that of its input (1 at most), below which nothing gets through:
an alarm whatever the loss does (a choice)."""

GATE_BIAS_SHUT = -4.0
"""A bias of a gate below this keeps it shut: a sigmoid gives 0.02 there."""

GATE_BIAS_MEAN_NOTE = -0.5
"""Mean of the biases of a recurrent layer below which one gate in four has a bias of `GATE_BIAS_SHUT` (-4 / 4, with a
margin)."""


def _saturated(run: Run) -> Iterator[Finding]:
    layers = [layer for layer in run.layers if layer.kind in ("bounded", "recurrent") or layer.type == "Softmax"]
    if not layers:
        return
    last = next((layer.name for layer in reversed(run.layers) if run.now.of(layer.name, "output")), "")
    shares = {layer.name: _share(run, layer) for layer in layers if layer.kind == "bounded"}
    known = {name: share for name, share in shares.items() if share is not None}
    at_start = [_share_at(run.first, layer) for layer in layers if layer.name in known and layer.name != last]
    hidden = [share for name, (share, _) in known.items() if name != last]
    is_chain = (
        len(hidden) >= CHAIN_LAYERS_MIN
        and min(np.median(hidden), np.median([found[0] if found else 0.0 for found in at_start]))
        >= CHAIN_SATURATED_SHARE_ALARM
    )
    before = False
    for layer in layers:
        if layer.name not in known:
            continue
        share, of = known[layer.name]
        is_sick = share >= SATURATED_SHARE_NOTE and not (layer.name == last and not run.losses.is_harmed)
        if is_sick and not before:
            yield _saturated_finding(run, layer, share, of, "alarm" if is_chain else severity_of(run))
        before = is_sick
    for layer in layers:
        if layer.kind == "recurrent":
            yield from _gates(run, layer)


def _share(run: Run, layer: Layer) -> tuple[float, str] | None:
    """Return the share of saturated outputs, or if larger that of saturated units, and what it is a share of."""
    found, reading = _share_at(run.now, layer), run.now.of(layer.name, "output")
    looks = min(run.window, len(run.looks))
    units = run.units(layer.name, looks=looks)
    if found is None or reading is None or units is None:
        return found
    lower, upper = _borders(layer, reading)
    share = float(((units[:, :, _MIN] >= upper).all(axis=0) | (units[:, :, _MAX] <= lower).all(axis=0)).mean())
    of_units = f"of the units of {layer.name} ({layer.type}) stayed below {lower:.3g} or above {upper:.3g}"
    return found if found[0] >= share else (share, f"{of_units} at the last {looks} measurements")


def _share_at(look: Look | None, layer: Layer) -> tuple[float, str] | None:
    """Return the share of a layer's outputs near the ends of its range, estimated from moments without a histogram."""
    reading = None if look is None else look.of(layer.name, "output")
    if reading is None or not reading.moments.count:
        return None
    lower, upper = _borders(layer, reading)
    low, high = _range(layer, reading)
    outputs = f"of the outputs of {layer.name} ({layer.type}) are near the ends of its range of {low:.3g} to {high:.3g}"
    if reading.histogram is not None and len(reading.histogram.counts):
        # A bin with a border inside counts by its centre; then its edge is the border.
        edges, counts = reading.histogram.edges, reading.histogram.counts
        centres = (edges[:-1] + edges[1:]) / 2
        below, above = int((centres <= lower).sum()), int((centres < upper).sum())
        share = float((counts[:below].sum() + counts[above:].sum()) / counts.sum())
        ends = [(edges[0], edges[below])] * (below > 0) + [(edges[above], edges[-1])] * (above < len(counts))
        return share, f"{outputs}: {' or '.join(f'from {start:.3g} to {end:.3g}' for start, end in ends)}"
    # What is not at the ends is taken as evenly spread between them.
    middle, half = (lower + upper) / 2, (upper - lower) / 2 / SATURATED_SHARE
    square = ((reading.moments.mean - middle) ** 2 + reading.moments.deviation**2) / half**2 if half else 0.0
    return max(0.0, (3 * square - 1) / 2), f"{outputs}, as estimated from their mean and standard deviation"


def _borders(layer: Layer, reading: Reading) -> tuple[float, float]:
    """Return the lower and the upper limit beyond which a layer's outputs count as saturated."""
    low, high = _range(layer, reading)
    middle, half = (low + high) / 2, (high - low) / 2
    return middle - SATURATED_SHARE * half, middle + SATURATED_SHARE * half


def _range(layer: Layer, reading: Reading) -> tuple[float, float]:
    if layer.type in RANGES and abs(reading.moments.max) <= 1 and abs(reading.moments.min) <= 1:
        return RANGES[layer.type]
    if layer.type == "Hardtanh":
        return reading.moments.min, reading.moments.max
    return (-1.0 if reading.moments.min < 0 else 0.0), 1.0


def _saturated_finding(run: Run, layer: Layer, share: float, of: str, severity: Severity) -> Finding:
    source = source_of(run, layer)
    evidence = f"{100 * share:.0f}% {of}"
    advice = "Make its input smaller (smaller initial weights and biases, or a lower learning rate), or normalize it."
    module = layer.name if source is None else source.name
    return Finding(module, f"{evidence}{harm_of(run)}.", advice, severity, size=share)


def _gates(run: Run, layer: Layer) -> Iterator[Finding]:
    """Report saturated or shut gates of an LSTM or GRU, whose outputs lie between -1 and 1.

    Saturated: most outputs are near -1 or 1. Shut, or with weights near 0: the output is far smaller than the input.
    Shut: the biases are so negative that gates stay shut.
    """
    reading = run.now.of(layer.name, "output")
    if reading is None or not reading.moments.count:
        return
    advice = "Check how its biases and weights are initialized: gates should start half open, and weights not near 0."
    # Between -1 and 1 the mean of squares is the smaller one: absolute values are as large on average, or larger.
    if reading.moments.rms**2 >= SATURATED_SHARE and reading.moments.max <= 1 and reading.moments.min >= -1:
        evidence = f"its outputs are at the ends of their range, with an RMS of {reading.moments.rms:.2g}"
        yield Finding(layer.name, f"{evidence}{harm_of(run)}.", advice, severity_of(run), size=1.0)
        return
    rms = run.recent("activation_rms")[: run.place(layer.name), -1]
    before = next((value for value in reversed(rms) if value > 0), 0.0)
    given = min(1.0, before)
    if reading.moments.rms < SHUT_GATE_RATIO_NOTE * given:
        evidence = f"its output has an RMS of only {reading.moments.rms:.2g} (the layer before it: {before:.2g})"
        severity: Severity = "alarm" if reading.moments.rms < SHUT_GATE_RATIO_ALARM * given else severity_of(run)
        yield Finding(layer.name, f"{evidence}{harm_of(run)}.", advice, severity, size=0.5)
        return
    for name in layer.weights:
        bias = run.now.of(name, "parameter_before")
        if len(layer.shapes[name]) > 1 or bias is None or not bias.moments.count:
            continue
        if bias.moments.min <= GATE_BIAS_SHUT and bias.moments.mean <= GATE_BIAS_MEAN_NOTE:
            evidence = (
                f"the biases in {name} are as low as {bias.moments.min:.2g}, with a mean of {bias.moments.mean:.2g}: "
                "gates with such biases stay closed"
            )
            yield Finding(layer.name, f"{evidence}{harm_of(run)}.", advice, severity_of(run), size=0.5)
            return


SATURATED = Rule("saturated", _saturated, look_at="health/activation_rms")


SPREAD_ALARM = 1e-3
"""Spread over the samples, as a share of the RMS, below which a layer gives nearly the same output for all samples. At
the end of a classifier it is an alarm whatever the loss does, after the first steps. Healthy classifiers of the
benchmark's tuning half go down to 0.06, when they have only learnt how frequent the classes are."""

SPREAD_NOTE = 0.02
"""Spread at the end of the model below which hardly anything is left that tells samples apart: worth a note."""

SPREAD_NONE = 1e-6
"""Spread below which nothing at all is left of the samples: harm in itself at the end of the model. Rounding of float32
leaves 1e-7."""

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
    seen = seen[[not any(run.facts.flow.are_apart(run.layers[place].name, one) for one in clear) for place in seen]]
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
    """Return the finding of a model that gives nearly the same output for all samples.

    Its module is the layer that loses the difference; "" if the difference fades over several layers. The last of the
    layers' spreads is below `SPREAD_NOTE`, another `SPREAD_CLEAR`.
    """
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
        evidence += f"; it is lost between {before.name} and {lost.name} (whose outputs differ by {lost_spread:.1g})"
    else:
        evidence += f"; the difference fades over {len(steps)} layers"
    # Numbers to be hit may differ by a thousandth of their size.
    is_classifier = run.losses.chance is not None
    is_hard = spreads[-1] < SPREAD_NONE or (spreads[-1] < SPREAD_ALARM and run.losses.is_known and is_classifier)
    severity: Severity = "alarm" if is_hard else severity_of(run)
    name = lost.name if is_sudden else ""
    fading = (
        "Check for poor initialization and for missing normalization or residual connections; then lower the learning "
        "rate."
    )
    between = f"Check what is computed between {before.name} and this layer."
    advice = (COLLAPSED_ADVICE if lost.weights else between) if is_sudden else fading
    return Finding(name, f"{evidence}{harm_of(run)}.", advice, severity, size=float(-log[-1]))


def _are_comparable(run: Run) -> np.ndarray:
    """Return which layers have two or more channels and enough values to compare samples, shape (layers,), bool."""
    units, channels = run.latest.outputs, np.zeros(len(run.layers))
    channels[units.places] = units.widths
    return (channels >= 2) & (run.latest.rows["output"].count >= VALUES_PER_UNIT_MIN * channels)


COLLAPSED = Rule("collapsed", _collapsed, look_at="health/activation_rms")


VANISHING_DECADES_NOTE = 3.0
"""Powers of ten by which the norm of the gradient must fall from the last layers to the first (AutoTrainer: 1e-3)."""

GRADIENT_CHANGE_DECADES_ALARM = 3.5
"""Powers of ten by which the norm of the gradient must fall, or rise, from the last layers to the first for an alarm
whatever the loss does, if that is still so after the first steps: next to nothing arrives. Healthy runs of the
benchmark's tuning half fall by 2.5 in their first steps and by 0.6 later."""

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
"""The gradient must be lost in all of the first layers: one layer in this many and one more, at least two (a
choice)."""

CANCELLING_FACTOR = 10.0
"""Factor by which the gradients of samples may cancel in that of a weight (a choice)."""

GRADIENT_CAUSE_SHARE = 0.5
"""One layer is the cause if it accounts for this share of the whole change (a choice)."""


@dataclass(frozen=True)
class Course:
    """The norm of the gradient at the output of each layer whose gradient is finite and not 0.

    Only layers in series with the last one: those that run beside each other have gradients of their own.

    Args:
        places: the indices of these layers in `Run.layers`, in the order of execution, shape (n,).
        norms: log10 of the L2 norm of the gradient, shape (n,).
        beside: the largest of these norms among the other layers; -inf if there is none.
    """

    places: np.ndarray
    norms: np.ndarray
    beside: float

    @property
    def end(self) -> float:
        """The median of `norms` over the last quarter of the layers, over two layers at least."""
        return median(self.norms[-max(2, len(self.norms) // 4) :])


def course_of(run: Run) -> Course | None:
    """Return the gradient norms at the latest look; None if too few layers have one, or the step was skipped.

    The norm is compared, not the RMS: pooling spreads a gradient over many positions, which changes the RMS far more.
    """
    if run.now.overflowed:
        return None
    gradients = run.latest.rows["grad_output"]
    with np.errstate(over="ignore"):
        norms = gradients.rms * np.sqrt(gradients.count)
    places = np.flatnonzero((norms > 0) & (norms < np.inf) & (gradients.nonfinite == 0))
    names = [run.layers[place].name for place in places.tolist()]
    is_beside = np.array([run.facts.flow.are_apart(name, names[-1]) for name in names], dtype=bool)
    beside, places = np.log10(norms[places[is_beside]]), places[~is_beside]
    if len(places) < GRADIENT_LAYERS_MIN:
        return None
    return Course(places, np.log10(norms[places]), float(beside.max(initial=-np.inf)))


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
    """Return True if the loss has fallen and each layer with a matrix up to `last` has moved and is done."""
    first = [layer for layer in run.layers[: last + 1] if layer.has_matrix]
    return run.losses.is_learning and bool(first) and all(is_done(run, layer) for layer in first)


def _moves_nothing(run: Run, last: int) -> bool:
    """Return True if the latest step was too small to change any element of a weight in the layers up to `last`."""
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
    """Return the index of the layer that causes half of the whole change or more; None if there is none.

    Each step is the change of log10 of the norm from a layer to the next, with the sign that makes the change positive.
    """
    largest = int(np.argmax(steps))
    return largest + 1 if steps[largest] >= GRADIENT_CAUSE_SHARE * steps.sum() else None


def _how(course: Course, steps: np.ndarray, place: int | None) -> str:
    """Return the end of a sentence: "steadily, by ..." if `place` is None, else "by ... in this layer alone ..."."""
    if place is None:
        return f"steadily, by a factor of {factor(float(steps.mean()))} per layer over {len(steps) + 1} layers"
    usual = factor(float(np.median(np.abs(np.diff(course.norms)))))
    return f"by {factor(float(steps[place - 1]))} in this layer alone (median over layers: {usual})"


def _exploding(run: Run) -> Iterator[Finding]:
    course = course_of(run)
    if course is None:
        return
    arriving = _arriving(run, course)
    known = np.isfinite(arriving) if np.isfinite(arriving).any() else np.ones(len(arriving), dtype=bool)
    rises = (np.minimum(course.norms, arriving) - max(course.end, course.beside))[known]
    front = max(2, len(rises) // 4)
    least = median(rises[:front])
    if least < EXPLODING_DECADES_NOTE:
        yield from _growing(run)
        return
    steps = -np.diff(course.norms)
    place = _cause(steps)
    grown = median(course.norms[known][:front] - course.end)
    evidence = f"the gradient norm grows by a factor of {factor(grown)} from the last layers to the first, "
    evidence += _how(course, steps, place)
    advice = f"Check the size of the weights, and normalize the inputs{clip_too(run, ', or clip gradients')}."
    name = "" if place is None else run.layers[course.places[place]].name
    severity: Severity = "alarm" if least >= GRADIENT_CHANGE_DECADES_ALARM and run.losses.is_known else severity_of(run)
    yield Finding(name, f"{evidence}{harm_of(run)}.", advice, severity, size=least)


def _arriving(run: Run, course: Course) -> np.ndarray:
    """Return log10 of the most that each norm of the gradient may be by what it makes of weights; inf if unknown.

    A gradient that meets inputs of 0, such as padding, changes no weight, however large it is. Samples whose gradients
    do not cancel make of it a weight's gradient of (its norm * RMS of the input * root of the inputs of a unit).
    """
    table, gradients = run.arrays, run.latest.rows["parameter_grad"]
    first = table.first_of_each((table.inputs > 0) & (gradients.count > 0))
    norms = np.full(len(table.names), np.nan)
    norms[table.owner[first]] = gradients.rms[first] * np.sqrt(gradients.count[first] / table.inputs[first])
    given = np.append(1.0, run.recent("activation_rms")[:-1, -1])  # what goes into the first layer is usually about 1
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.log10(CANCELLING_FACTOR * norms / given)[course.places]
    return np.where(np.isfinite(most), most, np.inf)


def _growing(run: Run) -> Iterator[Finding]:
    """Report gradients that are far larger in at least half of the layers than they used to be."""
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
        f"gradients in {len(known)} layers are {factor(float(np.median(known)))} times their usual size in this "
        f"run{harm_of(run)}."
    )
    advice = f"Lower the learning rate or warm it up{clip_too(run, ', and clip gradients')}."
    yield Finding("", evidence, advice, severity_of(run), size=float(np.median(known)))


VANISHING = Rule("vanishing_gradient", _vanishing, look_at="health/gradient_rms")
EXPLODING = Rule("exploding_gradient", _exploding, look_at="health/gradient_rms")
