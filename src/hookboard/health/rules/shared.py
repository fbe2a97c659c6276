"""Helpers of several rules: layers before another one, rows of a weight, gradients, scales, severity."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hookboard.health.look import Look, every_unit
from hookboard.health.losses import LossCurve
from hookboard.health.robust import median, median_of
from hookboard.health.rule import Severity
from hookboard.health.run import Run
from hookboard.measure.row import Reading
from hookboard.model.layers import Kind, Layer

WHOLE_MODEL_SHARE = 0.8
"""What holds for this share of the layers is reported once, for the whole model (a choice)."""

BOUNDED_KINDS: frozenset[Kind] = frozenset({"bounded"})
UNBOUNDED_KINDS: frozenset[Kind] = frozenset({"rectifier", "smooth"})

SCALE_TARGETS = "subtract the mean of the training targets and divide by their standard deviation"
"""The advice for targets of a regression that are not scaled."""


def are_targets_unscaled(run: Run) -> bool:
    """Return True if it was found that the step compares outputs with targets that are not scaled."""
    return any(found.rule == "targets" and found.advice == SCALE_TARGETS for found in run.facts.findings)


def activations_of(run: Run, kinds: frozenset[Kind]) -> list[str]:
    """Return the types of the activation modules of some kinds that have run, each once; functions are not seen."""
    return list(dict.fromkeys(layer.type for layer in run.layers if layer.kind in kinds and run.has_run(layer)))


def initialization(run: Run) -> str:
    """Return a clause of advice that names the usual initialization for the activations of this model."""
    kinds = {"He": UNBOUNDED_KINDS, "Xavier": BOUNDED_KINDS}
    found = {name: activations_of(run, of) for name, of in kinds.items()}
    which = ", ".join(f"{name} for {' and '.join(types)}" for name, types in found.items() if types)
    return f"use an initialization that suits the activation{f' ({which})' if which else ''}"


def source_of(run: Run, layer: Layer, units: int | None = None) -> Layer | None:
    """Return the nearest earlier layer with weights, and `units` channels if not None, but no embedding; or None."""
    for other in reversed(run.layers[: run.place(layer.name)]):
        output = run.now.of(other.name, "output")
        has_units = units is None or (output is not None and output.channels is not None and output.width == units)
        if other.weights and other.kind != "embedding" and has_units:
            return other
    return None


def weight_of(run: Run, layer: Layer, width: int, every: int) -> np.ndarray | None:
    """Return the statistics of every k-th unit of a layer's first weight that has them all; None if none has."""
    read = ((run.now.of(name, "parameter_before"), layer.shapes.get(name)) for name in layer.weights)
    rows = (unit_rows(reading, shape, width, every) for reading, shape in read)
    return next((part for part in rows if part is not None), None)


def unit_rows(reading: Reading | None, shape: Sequence[int] | None, width: int, every: int) -> np.ndarray | None:
    """Return the statistics of every k-th unit from the reading of a weight; None if it does not have them all."""
    if reading is None or reading.channels is None or not shape or shape[0] != width:
        return None
    own = every_unit(shape)
    # What a model computes of other parameters may have other units than these.
    if every % own or len(reading.channels) != -(-width // own):
        return None
    return reading.channels[:: every // own]


def counted(some: int, seen: int, what: str, sample_of: int | None) -> str:
    """Return "some of seen what" in words; with `sample_of`, also that the `seen` ones are a sample of that many.

    >>> counted(3, 8, "units", None), counted(412, 1024, "units", 14_336)
    ('3 of 8 units', '412 of 1,024 sampled units (of 14,336)')
    """
    if sample_of is None:
        return f"{some} of {seen} {what}"
    return f"{some:,} of {seen:,} sampled {what} (of {sample_of:,})"


def was_zero(run: Run, layer: Layer) -> bool:
    """Return True if all matrices of the layer (or all its weights) were 0 before the first measured step."""
    return bool(run.initial.began_at_zero[run.place(layer.name)])


def factor(decades: float) -> str:
    """Format a factor, given its logarithm to the base 10.

    >>> factor(2.4), factor(0.006)
    ('2.5e+02', '1.014')
    """
    value = 10**decades
    return f"{value:.3f}" if abs(value - 1) < 0.05 else f"{value:.2g}"  # over hundreds of layers 1.01 is much


def percent_range(shares: Iterable[float]) -> str:
    """Format the smallest and the largest of some shares in percent.

    >>> percent_range([0.4, 0.05]), percent_range([0.0, 0.001])
    ('5 to 40%', '0%')
    """
    percent = [f"{100 * share:.0f}" for share in sorted(shares)]
    return " to ".join(dict.fromkeys([percent[0], percent[-1]])) + "%"


def severity_of(run: Run) -> Severity:
    """Return "alarm" if the loss shows harm, otherwise "note"."""
    return "alarm" if run.losses.is_harmed else "note"


def harm_of(run: Run) -> str:
    """Return "; " and the harm that the loss shows, to be appended to a sentence; "" if it shows none."""
    return f"; {run.losses.harm}" if run.losses.is_harmed else ""


SAME_NORM_SHARE = 1e-3
"""Norms that differ by at most this share are the same (a choice): clipping adds 1e-6 to what it divides by."""


def clip_too(run: Run, advice: str) -> str:
    """Return advice to clip gradients; "" where the Trainer does, or their largest norm was the same at two looks."""
    sizes = np.array([sum(map(math.prod, layer.shapes.values())) for layer in run.layers])
    norms = np.sqrt(np.nansum(sizes[:, None] * run.course("weight_gradient_rms") ** 2, axis=0))
    is_limit = np.count_nonzero(norms >= (1 - SAME_NORM_SHARE) * norms.max(initial=1e-30)) > 1
    return "" if is_limit or run.facts.is_clipped else advice


GROWING_STEPS, LOSS_GROWTH_NOTED = 3, 1.2
"""A loss grows if it rises in each of at least this many steps, by this factor in their median (choices)."""

KEPT_RATE_SHARE = 0.8
"""A learning rate is kept if its smallest value in a run is at least this share of its largest (a choice)."""


def growth_of(losses: LossCurve) -> np.ndarray:
    """Return by what the loss was multiplied in each of its last finite steps, if it rose; empty if it did not grow."""
    values = losses.last(len(losses.recent))
    finite = np.flatnonzero(np.isfinite(values))
    values = values[: finite[-1] + 1] if len(finite) else values[:0]
    values = values[np.flatnonzero(~(values > 0))[-1] + 1 :] if not (values > 0).all() else values
    falls = np.flatnonzero(np.diff(values) <= 0)
    rising = values[falls[-1] + 1 :] if len(falls) else values
    # Noise rises in three steps in a row in one case of 24, seldom to the largest value.
    if len(rising) <= GROWING_STEPS or rising[-1] < losses.largest:
        return np.empty(0)
    factors: np.ndarray = rising[1:] / rising[:-1]
    return factors


def to_stable_rate(run: Run) -> str:
    """Return the advised rate where SGD makes the loss grow in each step, as in " to about 0.004"; "" if none."""
    looks = [look for look in (run.first, *run.looks) if look is not None]
    steps = [stepped for look in looks for stepped in look.stepped.values()]
    now = {stepped.rate for stepped in run.now.stepped.values()} if run.looks else set()
    if len(now) != 1 or any(stepped.optimizer != "SGD" for stepped in steps):
        return ""
    rates = [*run.peak_rate.values(), *(stepped.rate for stepped in steps)]
    # Otherwise it is not known which rate was in force while the loss grew.
    if run.seen < 2 or not min(rates) >= KEPT_RATE_SHARE * max(rates) > 0:
        return ""
    growth = growth_of(run.losses)
    if not len(growth) or median(growth) < LOSS_GROWTH_NOTED:
        return ""
    to = f"{now.pop() / (1 + math.sqrt(median(growth))):.1g}"
    in_each = f"the loss grew for {len(growth)} steps in a row, by a median factor of {median(growth):.2g}"
    return f" to about {to} ({in_each})"


UPDATE_RATIO_SMALL = 1e-4
"""Median update ratio below which steps are small: 2 % in 200 (TheDeepChecker; DeepDiagnosis 1e-5, usual 1e-3)."""

SCHEDULE_END_SHARE = 0.05
"""A schedule is at its end when the learning rate is below this share of its largest: then small steps are intended."""


def is_at_end_of_schedule(run: Run, weight: str) -> bool:
    """Return True if the learning rate of a weight is below `SCHEDULE_END_SHARE` of its largest value so far."""
    stepped = run.now.stepped.get(weight)
    return stepped is not None and stepped.rate < SCHEDULE_END_SHARE * run.peak_rate.get(weight, 0.0)


def is_rate_low_by_schedule(run: Run, layer: Layer) -> bool:
    """Return True if the layer's rate is 0 (or it has none), has risen lately, or is at the end of its schedule."""
    name = next((name for name in layer.weights if name in run.now.stepped), None)
    if name is None:
        return True
    rate = run.now.stepped[name].rate
    before = next((look.stepped[name].rate for look in run.looks if name in look.stepped), rate)
    return not rate or is_at_end_of_schedule(run, name) or before < rate


DONE_GRADIENT_SHARE = 1e-4
"""Share of its first gradient below which a layer that has moved has nothing more to learn (a choice)."""


def has_moved(run: Run, weight: str, unknown: bool = True) -> bool:
    """Return True if a weight has changed between the kept looks; `unknown` if fewer than two of them measured it."""
    readings = [look.of(weight, "parameter_before") for look in run.looks]
    known = [(m.mean, m.deviation, m.min, m.max) for m in (r.moments for r in readings if r is not None)]
    return unknown if len(known) < 2 else any(numbers != known[-1] for numbers in known)


def is_done(run: Run, layer: Layer) -> bool:
    """Return True if a layer's weights have changed and its gradient, or the loss, is nearly 0: it has learnt."""
    place = run.place(layer.name)
    first, now = run.course("weight_gradient_rms", 1)[place, 0], run.recent("weight_gradient_rms")[place, -1]
    return bool(
        (now < DONE_GRADIENT_SHARE * first or run.losses.is_at_zero) and (run.course("update_ratio")[place] > 0).any()
    )


def stepped_weights(look: Look, layer: Layer) -> list[str]:
    """Return the trainable weights of a layer, with gradients of their own, that an optimizer stepped at this look."""
    # Of an optimizer that has its turn at other steps, nothing was measured at this one.
    names = (name for name in layer.stepped if name in look.stepped and look.of(name, "parameter_update") is not None)
    stepped = [name for name in names if 0 not in layer.shapes.get(name, ())]
    # Of a large embedding that was measured in part, the tokens of the batch may be in the other part.
    if layer.kind != "embedding":
        return stepped
    return [name for name in stepped if _is_whole(look, name, layer.shapes.get(name, ()))]


def _is_whole(look: Look, name: str, shape: Sequence[int]) -> bool:
    reading = look.of(name, "parameter_before")
    return reading is None or reading.moments.count + reading.moments.nonfinite >= math.prod(shape)


def main_weights(layer: Layer, names: Iterable[str]) -> list[str]:
    """Return the given weights of a layer that have two or more dimensions; all of them if none has."""
    names = list(names)
    return [name for name in names if len(layer.shapes.get(name, ())) > 1] or names


def has_gradient(look: Look, weight: str) -> bool:
    """Return True if a gradient that is not all 0 has reached a weight."""
    return reaches(look.of(weight, "parameter_grad"))


def get_zeros(run: Run) -> np.ndarray:
    """Return the layers all of whose trainable weights get a gradient that is 0, shape (layers,); False without any."""
    arrays, gradients = run.arrays, run.latest.rows["parameter_grad"]
    are_others = arrays.is_trainable & (~gradients.is_there | gradients.reaches)
    some, others = (np.bincount(arrays.owner, part, len(run.layers)) for part in (arrays.is_trainable, are_others))
    return np.asarray((some > 0) & (others == 0))


def usual_gradient(run: Run) -> float:
    """Return the median over the layers of the RMS of the latest weight gradients, zeros excluded; NaN if none."""
    gradients = run.recent("weight_gradient_rms")[:, -1]
    return median_of(gradients[gradients > 0].tolist())


def reaches(gradient: Reading | None) -> bool:
    """Return True if a gradient exists and is not all 0."""
    if gradient is None:
        return False
    moments = gradient.moments
    # Of finite values with any other than 0 the mean or the deviation is not 0; both are 0 where there are none.
    return moments.deviation > 0 or abs(moments.mean) > 0 or moments.nonfinite > 0


WEIGHING_KINDS: frozenset[Kind] = frozenset({"linear", "conv"})  # whose weights scale a signal


@dataclass(frozen=True)
class Scales:
    """The output scale of linear and convolutional layers at one look, in log10, shape (layers,)."""

    layers: list[Layer]  # whose output is finite and not 0 and whose weights did not begin at 0, as they ran
    log: np.ndarray  # the RMS of their outputs
    gains: np.ndarray  # that over the RMS of the layer, of any kind, right before; NaN without one, or if that is 0
    weights: np.ndarray  # the RMS of their weights * root of the number of inputs of a unit; NaN if unknown

    def heaviness(self, layer: Layer) -> float:
        """Return by how many powers of ten the layer's `weights` exceed the median of the others; NaN if unknown."""
        place = next((i for i, other in enumerate(self.layers) if other.name == layer.name), None)
        if place is None:
            return math.nan
        return float(self.weights[place] - median_of(np.delete(self.weights, place)))


def scales_of(run: Run, at_start: bool = False) -> Scales:
    """Return the scales at the latest look; with `at_start` at the first one, where `weights` is NaN."""
    rms = run.course("activation_rms", 1)[:, 0] if at_start else run.recent("activation_rms")[:, -1]
    # What began at 0 is meant to grow.
    used = np.flatnonzero(np.isfinite(rms) & ~run.initial.began_at_zero)
    values = rms[used]
    before = np.append(np.nan, values)[:-1]
    is_main = run.arrays.of_kind(WEIGHING_KINDS)[used] & (values > 0)
    places, now = used[is_main], values[is_main]
    flow, names = run.facts.flow, [run.layers[place].name for place in used.tolist()]
    are_apart = np.array([False, *itertools.starmap(flow.are_apart, itertools.pairwise(names))], dtype=bool)
    before = np.where(are_apart[: len(used)][is_main], np.nan, before[is_main])
    ratios = np.divide(now, before, out=np.full_like(now, np.nan), where=before > 0)
    weights = np.full_like(now, np.nan) if at_start else _weight_gains(run)[places]
    return Scales([run.layers[place] for place in places.tolist()], np.log10(now), np.log10(ratios), weights)


def _weight_gains(run: Run) -> np.ndarray:
    rms, table = run.latest.rows["parameter_before"].rms, run.arrays
    size = rms * np.sqrt(table.inputs)
    first = table.first_of_each((size > 0) & (rms < np.inf))
    gains = np.full(len(table.names), np.nan)
    gains[table.owner[first]] = np.log10(size[first])
    return gains


def weight_gain(look: Look, layer: Layer, name: str) -> float:
    """Return log10 of how a weight scales the RMS of independent inputs; NaN if unknown or not a matrix."""
    reading, shape = look.of(name, "parameter_before"), layer.shapes[name]
    if len(shape) < 2 or reading is None or not reading.moments.count or not 0 < reading.moments.rms < math.inf:
        return math.nan
    return math.log10(reading.moments.rms * math.sqrt(math.prod(shape[1:])))
