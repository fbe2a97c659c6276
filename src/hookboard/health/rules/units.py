"""`dead_units` and `symmetric_units`: units that no sample activates, and units that are copies of each other."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hookboard.health.arrays import SILENT_AT_ZERO_KINDS, Units, onsets
from hookboard.health.look import every_unit
from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.rules.shared import (
    counted,
    get_zeros,
    percent_range,
    source_of,
    unit_rows,
    usual_gradient,
    weight_of,
)
from hookboard.health.run import Run
from hookboard.measure.row import FIELDS, Reading, channel_stride
from hookboard.model.layers import NORM_KINDS, Kind, Layer

_COUNT, _MEAN, _DEVIATION, _ZEROS = map(FIELDS.index, ("count", "mean", "deviation", "zeros"))
_MAX, _MIN = map(FIELDS.index, ("max", "min"))
_COMPARED_FIELDS = ("max", "min", "mean", "deviation")
_COMPARED = list(map(FIELDS.index, _COMPARED_FIELDS))


@dataclass(frozen=True)
class Dead:
    """The dead units of one layer."""

    at: Layer  # the rectifier or dropout whose outputs are 0; where the activation is a function, the layer before it
    source: Layer  # whose weights and biases make the units dead
    dead: int
    units: int  # the measured ones, without those whose weights are all 0
    since: np.ndarray  # the step since which each dead unit has been silent, sorted, shape (dead,)
    width: int
    is_sample: bool  # if only every k-th unit was measured

    @property
    def share(self) -> float:
        """The share of dead units."""
        return self.dead / self.units

    @property
    def in_words(self) -> str:
        """The number of dead units in words, as "3 of 8 units"."""
        return counted(self.dead, self.units, "units", self.width if self.is_sample else None)


def dead_of(
    at: Layer, source: Layer, dead: np.ndarray, counts: np.ndarray, since: np.ndarray, width: int
) -> Dead | None:
    """Make a `Dead` from arrays over the measured units, each of shape (units,); None if no unit counts."""
    if not counts.any():
        return None
    return Dead(at, source, int(dead.sum()), int(counts.sum()), np.sort(since[dead]), width, len(counts) < width)


def is_finite(run: Run, layer: Layer) -> bool:
    """Return True if the layer gave an output at the latest look, and all of it is finite."""
    outputs, place = run.latest.rows["output"], run.place(layer.name)
    return bool(outputs.is_there[place] and not outputs.nonfinite[place])


def has_no_weights(run: Run, layer: Layer, width: int, every: int) -> np.ndarray | None:
    """Return which of units 0, every, 2 * every ... have only zeros as weights; None if not measured."""
    # Of a pruned layer it is unknown, so any unit may.
    if any(name.endswith("_orig") for name in layer.weights):
        return np.ones(len(range(0, width, every)), dtype=bool)
    rows = weight_of(run, layer, width, every)
    if rows is None and layer.kind == "norm":
        before = source_of(run, layer, width)
        rows = weight_of(run, before, width, every) if before is not None else None
    # A row of NaN alone has no values that count, and is not 0.
    return None if rows is None else np.asarray((rows[:, _ZEROS] >= rows[:, _COUNT]) & (rows[:, _COUNT] > 0))


def has_its_own_activation(run: Run, layer: Layer) -> bool:
    """Return True if the next layer is an activation whose output shows which units of this layer are dead."""
    place, outputs = run.place(layer.name), run.latest.rows["output"]
    following = run.layers[place + 1] if place + 1 < len(run.layers) else None
    if following is None or following.kind not in ("rectifier", "bounded"):
        return False
    if following.kind == "bounded" or not outputs.is_there[place : place + 2].all():
        return True
    # A rectifier that several layers share, as in torchvision's ResNets, has seen more than this one.
    return bool(outputs.count[place] >= outputs.count[place + 1])


def is_used(run: Run, layer: Layer, units: int) -> bool:
    """Return True if a later layer seems to take the output of this one: it has as many inputs as this has units."""
    # Nothing takes the output of the last layer, whose units may be silent because their class never occurs.
    later = [(other, shape) for other in run.layers[run.place(layer.name) + 1 :] for shape in other.shapes.values()]
    if any(shape == (units,) and other.kind in NORM_KINDS for other, shape in later):
        return True
    takes = [shape[1] for _, shape in later if len(shape) > 1]
    return units in takes or (layer.kind != "linear" and any(size % units == 0 for size in takes))


DEAD_SHARE_ALARM = 0.9
"""Share of dead units from which a layer is as good as dead: an alarm unless the loss falls. With two thirds dead, one
of 16 channels still learns the digits as well as any (seen on the tuning half)."""

DEAD_SHARE_ALARM_IF_HARMED = 0.75
"""Share of dead units that is an alarm if the loss shows harm. Deep in a net where hardly any signal arrives, units are
on or off for all samples by chance: up to 55 % are off in runs that are merely slow (seen on the tuning half)."""

DEAD_SHARE_CALLED = 0.5
"""Where the activation is a function, this share of dead units is worth a note (a choice)."""

BIAS_DEVIATIONS = 1.0
"""The biases are to blame for units that are dead from the start if their mean lies this many standard deviations of
the layer's outputs below 0: then five in six outputs are negative (a choice)."""

DEAD_SHARE_NOTE = 0.25
"""Share of dead units that is worth a note. Healthy narrow layers start with 5 to 20 % (seen on the tuning half)."""

SILENT_VALUES_MIN = 128
"""Number of values that a unit must have given, all silent, before it counts as dead: a unit that one sample in 50
activates is silent for this many in 8 of 100 cases (a choice)."""

SILENT_VALUES_MIN_WHOLE_LAYER = 32
"""`SILENT_VALUES_MIN` where all units of a layer are silent: that does not happen by chance as easily (a choice)."""

DEAD_UNITS_MIN = 2
"""A layer is reported if at least this many units are dead (a choice)."""

LAYER_UNITS_MIN = 4
"""A layer needs at least this many units for a share of them to be meaningful (a choice)."""

ARRIVING_GRADIENT_RATIO = 1e-4
"""A gradient below this share of the usual one does not arrive, where pre-activations are below `DEEP_PREACTIVATION`:
after GELU at -5 it is 1e-5 of the usual. Elsewhere it must be 0 but for rounding, as after ReLU."""

ZERO_GRADIENT_RATIO = 1e-12
"""Share of the model's usual gradient that counts as 0."""

DEEP_PREACTIVATION = -3.0
"""Pre-activation at which GELU and SiLU give almost nothing."""

FAINT_INPUT_SPREAD = 0.02
"""Spread of an input, as a share of its RMS, below which a unit is on or off for nearly all by chance (a choice)."""

CONSTANT_INPUT_SPREAD = 1e-5
"""Spread of a constant: something before is dead, and half of the units negative by chance. Float32 rounds to 1e-7."""


def _dead_units(run: Run) -> Iterator[Finding]:
    lasting, parts = _lasting(run), run.silence.parts
    layers = [layer for layer in run.layers if layer.name in parts and lasting[parts[layer.name]].any()]
    at_zero = [layer for layer in layers if layer.kind in SILENT_AT_ZERO_KINDS]
    exact = [dead for layer in at_zero if (dead := _dead_after(run, layer, lasting))]
    named = {dead.source.name for dead in exact if dead.share > DEAD_SHARE_NOTE}
    others = [layer for layer in layers if layer.kind not in SILENT_AT_ZERO_KINDS and layer.name not in named]
    called = [dead for layer in others if (dead := _dead_before_a_function(run, layer, lasting))]
    said: set[str] = set()
    noted = []
    for dead in sorted([*exact, *called], key=lambda dead: -dead.share):
        severity = _severity(run, dead)
        if severity is None or dead.source.name in said or _is_given_a_constant(run, dead):
            continue
        said.add(dead.source.name)
        if severity == "note":
            noted.append(dead)
        else:
            yield _dead_finding(run, dead, severity, lasting)
    if noted:  # one note is enough: of several layers it is at the first
        first = min(noted, key=lambda dead: run.place(dead.source.name))
        yield _dead_finding(run, first, "note", lasting)


def _usual(run: Run, dead: Dead, lasting: np.ndarray) -> list[float]:
    if dead.at.kind in SILENT_AT_ZERO_KINDS:
        alike = [layer for layer in run.layers if layer.kind == dead.at.kind]
        exact = [other for layer in alike if (other := _dead_after(run, layer, lasting))]
        return [other.share for other in exact if other.source is not dead.source]
    peers = run.peers(dead.at)
    return [other.share for layer in peers if (other := _dead_before_a_function(run, layer, lasting))]


def _is_given_a_constant(run: Run, dead: Dead) -> bool:
    """Return True if a dead layer has nearly the same input or output for all samples: the cause lies before it."""
    place = run.place(dead.source.name)
    if place and run.recent("sample_spread")[place - 1, -1] < FAINT_INPUT_SPREAD:
        return True
    rms, spread = (run.recent(quantity)[place, -1] for quantity in ("activation_rms", "sample_spread"))
    return (dead.source is not dead.at and rms == 0) or bool(spread < CONSTANT_INPUT_SPREAD)


def _severity(run: Run, dead: Dead) -> Severity | None:
    # Before a function, that units are silent is concluded, not seen: a few of them come back (seen in a healthy ViT).
    least = DEAD_SHARE_NOTE if dead.at.kind in SILENT_AT_ZERO_KINDS else DEAD_SHARE_CALLED
    if dead.share <= least or dead.dead < DEAD_UNITS_MIN or (dead.units < LAYER_UNITS_MIN and dead.share < 1):
        return None
    is_frozen = bool(dead.source.weights) and not dead.source.trainable
    if run.losses.is_well and dead.share < DEAD_SHARE_CALLED and dead.at.kind != "dropout":
        return None  # a rectifier is meant to be 0 for some
    is_harm = _is_gone(run, dead) or (dead.share >= DEAD_SHARE_ALARM_IF_HARMED and run.losses.is_harmed)
    return "alarm" if is_harm and not is_frozen else "note"


LARGE_STEP_RATIO = 0.01
"""Update ratio from which a step may have killed a unit (a choice: 0.001 is usual)."""


def _is_gone(run: Run, dead: Dead) -> bool:
    is_idle = run.losses.is_known and not run.losses.is_learning
    return dead.share == 1 or (dead.share >= DEAD_SHARE_ALARM and is_idle)


def _dead_finding(run: Run, dead: Dead, severity: Severity, lasting: np.ndarray) -> Finding:
    usual = _usual(run, dead, lasting)
    # Of a layer that is as good as dead, half of the units may have been dead from the start, as with one input.
    limit = DEAD_SHARE_ALARM if dead.share >= DEAD_SHARE_ALARM else DEAD_SHARE_NOTE
    since = int(dead.since[min(math.floor(limit * dead.units), dead.dead - 1)])
    onset, when = onsets(dead.since, since)
    if dead.share >= DEAD_SHARE_ALARM:
        onset = since
    where = "" if dead.at is dead.source else f" {'in' if dead.is_sample else 'of'} {dead.at.name} ({dead.at.type})"
    whole = f"{dead.in_words}{where}"
    if dead.at.kind in SILENT_AT_ZERO_KINDS:
        what = f"{whole} have been 0 at every measurement {when}"
    else:
        what = f"{whole} have not been above 0 at any measurement {when}, and no gradient reaches them"
    others = "; no similar layer has dead units" if usual else ""
    if any(usual):
        others = f"; in similar layers, {percent_range(usual)} are dead"
    first = run.first.step if run.first is not None else 0
    if dead.at.kind == "dropout":
        advice = "Lower the rate of this dropout layer."
    elif onset <= first:
        advice = _advice_at_start(run, dead)
    else:
        advice = _advice_on_steps(run, dead, onset)
    name, is_hard = dead.source.name, _is_gone(run, dead)
    return Finding(name, f"{what}{others}.", advice, severity, size=dead.share, since=since, is_hard=is_hard)


def _advice_on_steps(run: Run, dead: Dead, onset: int) -> str:
    until = np.array(run.course_steps) <= onset
    ratios = run.course("update_ratio")[run.place(dead.source.name)][until]
    largest = float(np.nanmax(ratios)) if np.isfinite(ratios).any() else math.nan
    if largest >= LARGE_STEP_RATIO:
        return (
            f"Lower the learning rate or warm it up, because by step {onset} a single step had changed these "
            f"weights by {largest:.0%}."
        )
    return f"Check the inputs of this layer up to step {onset}; LeakyReLU or GELU would keep such units alive."


def _advice_at_start(run: Run, dead: Dead) -> str:
    flat = [name for name in dead.source.weights if len(dead.source.shapes.get(name, ())) == 1]
    biases = [name for name in flat if len(flat) == 1 or name.endswith("bias")]  # a norm has a gain too
    bias = run.first.of(biases[0], "parameter_before") if run.first and len(biases) == 1 else None
    source = run.first.of(dead.source.name, "output") if run.first else None
    if bias is None or source is None:
        return "Check how this layer is initialized (its bias first), then the scale of its input."
    if bias.moments.mean <= -BIAS_DEVIATIONS * source.moments.deviation:
        return f"Initialize the biases of this layer to 0, because their mean is {bias.moments.mean:.3g}."
    return (
        "Check how this layer is initialized and the scale of its input; LeakyReLU or GELU would keep such units alive."
    )


def _dead_after(run: Run, layer: Layer, lasting: np.ndarray) -> Dead | None:
    """Return the dead units of a rectifier or dropout by its zeros; None if not measured, not finite, or all pruned."""
    silence, part = run.silence, run.silence.parts.get(layer.name)
    if part is None or not is_finite(run, layer):
        return None
    dead, width = lasting[part], silence.layers[layer.name][0]
    source = source_of(run, layer, width)
    if layer.kind == "dropout":
        # What was 0 before the dropout is not its doing.
        exact = [other for other in run.layers[: run.place(layer.name)] if other.kind == "rectifier"]
        before = exact[-1] if exact else source
        if before is not None and silence.layers.get(before.name, (0,))[0] == width:
            dead = dead & (silence.looks[silence.parts[before.name]] == 0)
        source = layer
    pruned = has_no_weights(run, source or layer, width, channel_stride(width))
    counts = np.ones(len(dead), dtype=bool) if pruned is None else ~pruned
    return dead_of(layer, source or layer, dead & counts, counts, silence.since[part], width)


def _dead_before_a_function(run: Run, layer: Layer, lasting: np.ndarray) -> Dead | None:
    """Return units never above 0 that no gradient reaches, where functions, not seen, activate; None if unknown."""
    part = run.silence.parts.get(layer.name)
    if part is None or part.stop - part.start < LAYER_UNITS_MIN or not is_finite(run, layer):
        return None
    dead, since, width = lasting[part], run.silence.since[part], run.silence.layers[layer.name][0]
    if np.count_nonzero(dead) < DEAD_UNITS_MIN or has_its_own_activation(run, layer):
        return None
    if layer.kind == "norm" and dead.all() and get_zeros(run)[run.place(layer.name)] and usual_gradient(run) > 0:
        return dead_of(layer, layer, dead, dead, since, width)
    weights = [name for name in layer.trainable if len(layer.shapes[name]) > 1]
    if len(weights) != 1:
        return None
    shape = layer.shapes[weights[0]]
    every = every_unit(shape)  # of a large weight fewer units are measured than of the output
    step = every // channel_stride(width)
    pruned, dead, since = has_no_weights(run, layer, width, every), dead[::step], since[::step]
    counts = np.ones(len(since), dtype=bool) if pruned is None else ~pruned
    silent = dead & counts
    most = dead_of(layer, layer, silent, counts, since, width)  # unless a gradient reaches some of them
    if most is None or _severity(run, most) is None or not is_used(run, layer, width):
        return None
    if unit_rows(run.now.of(weights[0], "parameter_grad"), shape, width, every) is None:
        return None
    cut = _gets_no_gradient(run, layer, weights[0])
    return None if cut is None else dead_of(layer, layer, silent & cut, counts, since, width)


def _looks(run: Run) -> int:
    """Return the number of looks for which a unit must be silent to count as dead: half a window, at least 2."""
    return max(2, run.window // 2)


def _lasting(run: Run) -> np.ndarray:
    """Return which units count as dead, by `run.silence`: silent at enough looks and values, fewer if all are."""
    silence, lasting = run.silence, run.silence.lasting(_looks(run))
    all_of_them = lasting & (silence.samples >= SILENT_VALUES_MIN_WHOLE_LAYER)
    is_whole = np.logical_and.reduceat(all_of_them, silence.starts) & (silence.counts >= LAYER_UNITS_MIN)
    return np.asarray((lasting & (silence.samples >= SILENT_VALUES_MIN)) | np.repeat(is_whole, silence.counts))


def _gets_no_gradient(run: Run, layer: Layer, weight: str) -> np.ndarray | None:
    """Return which units get no gradient of this weight at the latest looks, shape (units,), bool; None if unknown."""
    usual = usual_gradient(run)
    rows = run.units(weight, "parameter_grad", _looks(run))
    if rows is None or not usual > 0:
        return None
    sizes = np.hypot(rows[:, :, _MEAN], rows[:, :, _DEVIATION]).max(axis=0)
    units = run.units(layer.name, looks=_looks(run))
    is_deep = units is not None and bool((units[:, :, _MAX].max(axis=0) <= DEEP_PREACTIVATION).mean() > DEAD_SHARE_NOTE)
    return np.asarray(sizes <= (ARRIVING_GRADIENT_RATIO if is_deep else ZERO_GRADIENT_RATIO) * usual)


DEAD_UNITS = Rule("dead_units", _dead_units, look_at="health/dead_fraction")

SYMMETRY_ADVICE = (
    "Initialize its weights with random numbers, and look for weights that are copies or set to a constant."
)

MAY_BE_EQUAL_KINDS: frozenset[Kind] = NORM_KINDS | {"embedding"}  # whose units may be equal
UNIT_KINDS: frozenset[Kind] = frozenset({"linear", "conv", "recurrent"})  # whose weights have a row for each unit

TWIN_SHARE_ALARM = 0.5
"""Share of units with a twin above which it is an alarm: the layer is worth less than half of its size (a choice)."""

TWIN_WEIGHT_TOLERANCE = 1e-5
"""Units have the same weights if no number differs by this share of its size: about 100 roundings of float32."""

TWIN_GRADIENT_TOLERANCE = 1e-3
"""`TWIN_WEIGHT_TOLERANCE` for gradients, where sums over a batch cancel."""

TWIN_OUTPUT_TOLERANCE = 1e-3
"""`TWIN_WEIGHT_TOLERANCE` for outputs around their mean."""


def _symmetric_units(run: Run) -> Iterator[Finding]:
    """Report the first layer of each severity: where all weights are alike, all layers show the finding."""
    found = [finding for place in _suspects(run) if (finding := _in_layer(run, run.layers[place]))]
    for severity in ("alarm", "note"):
        several = [finding for finding in found if finding.severity == severity]
        if several:
            noun = "layer" if len(several) == 2 else "layers"
            others = f" The same is true of {len(several) - 1} later {noun}." if len(several) > 1 else ""
            yield replace(several[0], evidence=several[0].evidence + others)


def _suspects(run: Run) -> list[int]:
    """Return the places of layers with a trainable weight that may have equal units, for `_in_layer` to examine."""
    table, weights = run.arrays, run.latest.weights
    is_judged = (table.is_trainable & ~table.of_kind(MAY_BE_EQUAL_KINDS)[table.owner])[weights.places]
    is_suspect = np.zeros(len(table.weights), dtype=bool)
    is_suspect[weights.places[_with_close_units(weights, is_judged)]] = True
    return sorted(set(table.owner[is_suspect].tolist()))


def _with_close_units(weights: Units, is_judged: np.ndarray) -> np.ndarray:
    """Return indices into `weights.places`: the judged weights in which two units are close in each compared field."""
    low, high = weights.columns["min"], weights.columns["max"]
    largest = np.maximum.reduceat(np.maximum(np.abs(low), np.abs(high)), weights.starts)
    owner = np.repeat(np.arange(len(largest)), weights.counts)
    found = np.flatnonzero((is_judged & np.isfinite(largest))[owner])
    largest = np.where(largest > 0, largest, 1.0)
    for field in _COMPARED_FIELDS:
        # Each weight in a range of its own, and all of them sorted at once.
        scaled = weights.columns[field][found] / largest[owner[found]] + 4.0 * owner[found]
        order = np.argsort(scaled)
        # Wide enough for all that are equal after `_rounded`.
        close = np.flatnonzero(np.diff(scaled[order]) <= 2.01 * TWIN_WEIGHT_TOLERANCE)
        is_near = np.zeros(len(found), dtype=bool)
        is_near[order[close]] = is_near[order[close + 1]] = True
        found = found[is_near]
        if not len(found):
            break
    return np.unique(owner[found])


def _in_layer(run: Run, layer: Layer) -> Finding | None:
    for name in sorted(layer.trainable):
        weight, gradient = run.now.of(name, "parameter_before"), run.now.of(name, "parameter_grad")
        if weight is None or gradient is None or weight.channels is None or gradient.channels is None:
            continue
        if layer.kind not in UNIT_KINDS and sum(size > 1 for size in layer.shapes.get(name, ())) == 1:
            continue  # a scale for each channel: it has no units
        outputs = _outputs_of(run, layer, name, weight)
        began_equal = _was_constant(run, name, weight.width)
        is_judged = weight.width == gradient.width
        twins = _twins(weight.channels, gradient.channels, outputs, began_equal) if is_judged else 0
        if twins:
            return _symmetric_finding(layer, name, twins, len(weight.channels), outputs is not None)
    return None


def _was_constant(run: Run, name: str, units: int) -> bool:
    """Return True if all elements of a weight, two or more for each unit, were equal at first and not 0."""
    before = None if run.first is None else run.first.of(name, "parameter_before")
    if before is None or before.moments.count < 2 * units or not before.moments.mean:
        return False
    return before.moments.deviation <= TWIN_WEIGHT_TOLERANCE * abs(before.moments.mean)


def _outputs_of(run: Run, layer: Layer, name: str, weight: Reading) -> np.ndarray | None:
    """Return a layer's latest output statistics for each measured unit of a weight; None if of others, or unknown."""
    output = run.now.of(layer.name, "output")
    if output is None or output.channels is None or output.width != weight.width:
        return None
    part = output.channels[:: max(1, every_unit(layer.shapes.get(name, ())) // channel_stride(output.width))]
    is_known = len(part) == len(weight.channels if weight.channels is not None else ())
    return part if is_known and np.isfinite(part[:, _COMPARED]).all() else None


def _twins(weights: np.ndarray, gradients: np.ndarray, outputs: np.ndarray | None, began_equal: bool) -> int:
    """Return how many units have the same weights, gradient and outputs (None: unknown) as another unit."""
    if not (np.isfinite(weights[:, _COMPARED]).all() and np.isfinite(gradients[:, _COMPARED]).all()):
        return 0
    is_zero = weights[:, _ZEROS] >= weights[:, _COUNT]
    has_gradient = gradients[:, _COMPARED].any(axis=1)
    is_constant = began_equal | (weights[:, _DEVIATION] <= TWIN_WEIGHT_TOLERANCE * np.abs(weights[:, _MEAN]))
    # These numbers do not tell the order of elements: all rows of an identity matrix are alike. So without a gradient
    # only equal elements that are not 0 count, or zeros if all units have only zeros: single ones are pruned.
    found = np.flatnonzero((~is_zero & is_constant) | has_gradient | is_zero.all())
    if len(found) < 2:
        return 0
    both = [
        _rounded(weights[found][:, _COMPARED], TWIN_WEIGHT_TOLERANCE),
        _rounded(gradients[found][:, _COMPARED], TWIN_GRADIENT_TOLERANCE),
    ]
    if outputs is not None:
        rows = outputs[found]
        around = np.stack([rows[:, _DEVIATION], *(rows[:, end] - rows[:, _MEAN] for end in (_MAX, _MIN))], axis=1)
        both.append(_rounded(around, TWIN_OUTPUT_TOLERANCE))
    equal = Counter(row.tobytes() for row in np.hstack(both) + 0.0)  # -0.0 is 0.0
    return sum(size for size in equal.values() if size > 1)


def _rounded(rows: np.ndarray, share: float) -> np.ndarray:
    """Round each row to a share of its size, so that nearly equal rows become equal; the last column is its decade."""
    size = np.abs(rows).max(axis=1, keepdims=True)
    decade = np.floor(np.log10(size, where=size > 0, out=np.full_like(size, -300.0)))
    return np.hstack([np.round(rows / (share * 10.0**decade)), decade])


def _symmetric_finding(layer: Layer, name: str, twins: int, units: int, has_outputs: bool) -> Finding:
    share, width = twins / units, layer.shapes[name][0] if name in layer.shapes else units
    evidence = (
        f"{counted(twins, units, 'units', width if units < width else None)} of {name} have the same weights and "
        f"gradient as another unit{', and the same outputs' if has_outputs else ''} (by mean, standard deviation, "
        "minimum and maximum), so they stay identical."
    )
    return Finding(layer.name, evidence, SYMMETRY_ADVICE, "alarm" if share > TWIN_SHARE_ALARM else "note", size=share)


SYMMETRIC_UNITS = Rule("symmetric_units", _symmetric_units, look_at="health/gradient_rms")
