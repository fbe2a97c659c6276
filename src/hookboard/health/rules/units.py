"""`dead_units`: units and channels that no sample activates."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.rule import Rule
from hookboard.health.rules.reached import gets_zeros, usual_gradient
from hookboard.health.rules.shared import source_of, weight_of
from hookboard.health.run import Run
from hookboard.health.silence import EXACT, Silence, onsets
from hookboard.health.verdict import Severity, Symptom
from hookboard.measure import FIELDS

_COUNT, _MEAN, _DEVIATION, _ZEROS = map(FIELDS.index, ("count", "mean", "deviation", "zeros"))
_MIN, _MAX = map(FIELDS.index, ("min", "max"))

MOST = 0.9
"""Share of dead units from which a layer is as good as dead: an alarm whatever the loss does. With two thirds dead a
layer of 16 channels still learns the digits as well as any (seen on the benchmark's tuning half)."""

MUCH = 0.75
"""Share of dead units that is an alarm if the loss shows harm. Deep in a net where hardly anything arrives, units are
on or off for all samples, by chance: up to 55 % are off in trainings that are just slow (seen on the tuning half)."""

HALF = 0.5
"""A dead layer is dead since the step at which so many of its units were (a choice)."""

SOME = 0.25
"""Share of dead units that is worth a note. A healthy net of narrow layers starts with 5 to 20 % (seen on the tuning
half)."""

SAMPLES = 128
"""Values that a unit must have given, all silent, before it is dead: a unit that one sample in 50 activates is silent
for so many in 8 of 100 cases (a choice)."""

SAMPLES_OF_ALL = 32
"""The same where all units of a layer are silent: not each of them by chance, as one may be (a choice)."""

LEAST = 2
"""How many units of a layer must be dead for it to be named (a choice)."""

FEWEST = 4
"""Units that a layer needs for a share of its units to say something (a choice)."""

ARRIVES = 1e-4
"""A gradient under this share of what is usual in the model does not arrive, where the pre-activation is `DEEP`: behind
GELU at -5 it is 1e-5 of the usual. Elsewhere it must be 0 but for rounding, as behind ReLU."""

ROUNDING = 1e-12
"""The share of the usual that counts as 0."""

DEEP = -3.0
"""Where GELU and SiLU give almost nothing."""

FAINT = 0.02
"""Spread over the samples, as a share of the RMS, of what goes into a layer, under which a unit is on or off for nearly
all samples, by chance (a choice: so small a share of its range decides)."""

CONSTANT = 1e-5
"""Spread over the samples, as a share of the RMS, under which a layer is given a constant: something before it is
dead, and half of its own units are negative by chance. Rounding of float32 leaves 1e-7."""


@dataclass(frozen=True)
class Dead:
    """The dead units of one layer.

    Args:
        at: the rectifier (or the layer itself, where the activation is called as a function).
        source: the layer whose weights make them so.
        dead: how many are dead.
        units: how many there are, apart from those whose weights are all 0.
        since: the step since which each of the dead ones is silent, sorted, shape (dead,).
    """

    at: Layer
    source: Layer
    dead: int
    units: int
    since: np.ndarray

    @property
    def share(self) -> float:
        """The share of dead units."""
        return self.dead / self.units


def _dead_units(run: Run) -> Iterator[Symptom]:
    silences = ((name, silence) for name, silence in run.silence.items() if silence.is_any)
    silent = {name for name, silence in silences if _lasting(run, silence).any()}
    if not silent:
        return
    layers = [layer for layer in run.layers if layer.name in silent]
    exact = [dead for layer in layers if layer.kind in EXACT and (dead := _dead_behind(run, layer))]
    named = {dead.source.name for dead in exact if dead.share > SOME}
    others = [layer for layer in layers if layer.kind not in EXACT and layer.name not in named]
    called = [dead for layer in others if (dead := _dead_before_a_function(run, layer))]
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
            yield _dead_symptom(run, dead, severity)
    if noted:  # one note is enough: of several layers it is at the first
        first = min(noted, key=lambda dead: run.place(dead.source.name))
        yield _dead_symptom(run, first, "note")


def _usual(run: Run, dead: Dead) -> list[float]:
    """The shares of dead units in other layers of the kind: in other rectifiers, or before other functions."""
    if dead.at.kind in EXACT:
        alike = [layer for layer in run.layers if layer.kind == dead.at.kind]
        exact = [other for layer in alike if (other := _dead_behind(run, layer))]
        return [other.share for other in exact if other.source is not dead.source]
    silences = [run.silence[layer.name] for layer in run.peers(dead.at) if layer.name in run.silence]
    return [float(_lasting(run, silence).mean()) for silence in silences]


def _is_given_a_constant(run: Run, dead: Dead) -> bool:
    """Whether a dead layer gives, or is given, all but the same for all samples: then the cause lies before it."""
    place = run.place(dead.source.name)
    if place and run.recent("sample_spread")[place - 1, -1] < FAINT:
        return True
    rms, spread = (run.recent(quantity)[place, -1] for quantity in ("activation_rms", "sample_spread"))
    return (dead.source is not dead.at and rms == 0) or bool(spread < CONSTANT)


def _severity(run: Run, dead: Dead) -> Severity | None:
    # Before a function, that units are silent is concluded, not seen: a few of them come back (seen in a healthy ViT).
    least = SOME if dead.at.kind in EXACT else HALF
    if dead.share <= least or dead.dead < LEAST or (dead.units < FEWEST and dead.share < 1):
        return None
    is_frozen = bool(dead.source.weights) and not dead.source.trainable
    is_harm = dead.share >= MOST or (dead.share >= MUCH and run.losses.is_harmed)
    return "alarm" if is_harm and not is_frozen else "note"


def _dead_symptom(run: Run, dead: Dead, severity: Severity) -> Symptom:
    usual = _usual(run, dead)
    limit = HALF if dead.share >= MOST else SOME
    since = int(dead.since[min(math.floor(limit * dead.units), dead.dead - 1)])
    onset, when = onsets(dead.since, since)
    where = "" if dead.at is dead.source else f" of {dead.at.name} ({dead.at.type})"
    whole = f"{dead.dead} of {dead.units} units{where}"
    if dead.at.kind in EXACT:
        what = f"{whole} gave 0 at every look {when}"
    else:
        what = f"{whole} gave nothing above 0 at any look {when}, and no gradient reaches them: the activation behind "
        what += "them is closed"
    others = f"; of other layers of the kind {_range(usual)} are dead" if usual else ""
    first = run.first.step if run.first is not None else 0
    if dead.at.kind == "dropout":
        advice = "Lower the rate of this dropout."
    elif onset <= first:
        advice = "Look at how this layer is initialized, its bias first; then at the scale of what goes in."
    else:
        advice = f"Lower the learning rate or warm it up, and look at this layer's updates just before step {onset}."
    is_hard = dead.share >= MOST
    return Symptom(
        dead.source.name, f"{what}{others}.", advice, severity, size=dead.share, since=since, is_hard=is_hard
    )


def _range(shares: Iterable[float]) -> str:
    """The least and the largest of some shares in percent.

    >>> _range([0.4, 0.05]), _range([0.0, 0.001])
    ('5 to 40 %', '0 %')
    """
    percent = [f"{100 * share:.0f}" for share in sorted(shares)]
    return " to ".join(dict.fromkeys([percent[0], percent[-1]])) + " %"


def _dead_behind(run: Run, layer: Layer) -> Dead | None:
    """The dead units of a rectifier, or of a dropout that drops everything."""
    silence = run.silence.get(layer.name)
    if silence is None or not _is_finite(run, layer):
        return None
    dead = _lasting(run, silence)
    source = source_of(run, layer, len(dead))
    if layer.kind == "dropout":
        before = run.silence.get(source.name) if source is not None else None
        # What was 0 before the dropout is not its doing.
        exact = [other for other in run.layers[: run.place(layer.name)] if other.kind == "rectifier"]
        previous = run.silence.get(exact[-1].name) if exact else before
        if previous is not None and len(previous.looks) == len(dead):
            dead &= previous.looks == 0
        source = layer
    counted = ~_has_no_weights(run, source or layer, len(dead))
    return _dead(layer, source or layer, dead & counted, counted, silence.since)


def _is_finite(run: Run, layer: Layer) -> bool:
    """Whether the layer gave an output at this look, and all of it is finite."""
    output = run.now.numbers(layer.name, "output")
    return output is not None and not output.moments.nonfinite


def _dead_before_a_function(run: Run, layer: Layer) -> Dead | None:
    """The units whose pre-activations never exceed 0 and that no gradient reaches."""
    silence = run.silence.get(layer.name)
    if silence is None or len(silence.looks) < FEWEST or not _is_finite(run, layer):
        return None
    dead = _lasting(run, silence)
    if np.count_nonzero(dead) < LEAST or _has_its_own_activation(run, layer):
        return None
    if layer.kind == "norm" and dead.all() and gets_zeros(run.now, layer) and usual_gradient(run) > 0:
        return _dead(layer, layer, dead, dead, silence.since)
    weights = [name for name in layer.trainable if len(layer.shapes[name]) > 1]
    gradient = run.now.numbers(weights[0], "parameter_grad") if len(weights) == 1 else None
    if gradient is None or gradient.channels is None:
        return None
    # Of a large weight every k-th unit is measured.
    units = len(gradient.channels)
    every = -(-len(dead) // units)
    if len(dead[::every]) != units:
        return None
    rows = weight_of(run, layer, units)
    counted = np.ones(units, dtype=bool) if rows is None else ~_is_zero(rows)
    silent, since = dead[::every] & counted, silence.since[::every]
    most = _dead(layer, layer, silent, counted, since)  # unless a gradient reaches some of them
    if most is None or _severity(run, most) is None or not _is_used(run, layer, len(dead)):
        return None
    cut = _gets_no_gradient(run, layer, weights[0])
    return None if cut is None else _dead(layer, layer, silent & cut, counted, since)


def _dead(at: Layer, source: Layer, dead: np.ndarray, counted: np.ndarray, since: np.ndarray) -> Dead | None:
    return Dead(at, source, int(dead.sum()), int(counted.sum()), np.sort(since[dead])) if counted.any() else None


def _looks(run: Run) -> int:
    """Looks for which a unit is silent before it counts; the judge waits for a window more."""
    return max(2, run.window // 2)


def _lasting(run: Run, silence: Silence) -> np.ndarray:
    """Which units are dead, shape (units,). Where all of a layer are silent, each needs fewer values to say so."""
    dead, all_of_them = silence.lasting(_looks(run), SAMPLES), silence.lasting(_looks(run), SAMPLES_OF_ALL)
    return all_of_them if len(all_of_them) >= FEWEST and all_of_them.all() else dead


def _has_no_weights(run: Run, layer: Layer, units: int) -> np.ndarray:
    """Which units have only zeros as weights, as after pruning, shape (units,). Of a norm, those before it count."""
    rows = weight_of(run, layer, units)
    if rows is None and layer.kind == "norm":
        before = source_of(run, layer, units)
        rows = weight_of(run, before, units) if before is not None else None
    return np.zeros(units, dtype=bool) if rows is None else _is_zero(rows)


def _is_zero(rows: np.ndarray) -> np.ndarray:
    # A row of NaN alone has no values that count, and is not 0.
    return np.asarray((rows[:, _ZEROS] >= rows[:, _COUNT]) & (rows[:, _COUNT] > 0))


def _has_its_own_activation(run: Run, layer: Layer) -> bool:
    """Whether the layer that runs next is an activation that tells by itself which of these units are dead."""
    behind = next(iter(run.layers[run.place(layer.name) + 1 :]), None)
    if behind is None or behind.kind not in ("rectifier", "bounded"):
        return False
    mine, activated = (run.now.numbers(each.name, "output") for each in (layer, behind))
    if behind.kind == "bounded" or mine is None or activated is None:
        return True
    # A rectifier that several layers share, as in torchvision's ResNets, has seen more than this one.
    return mine.moments.count >= activated.moments.count


def _is_used(run: Run, layer: Layer, units: int) -> bool:
    """Whether a layer that runs later takes so many units: those of a head are silent where a class never comes."""
    later = [(other, shape) for other in run.layers[run.place(layer.name) + 1 :] for shape in other.shapes.values()]
    if any(shape == (units,) and other.kind == "norm" for other, shape in later):
        return True
    takes = [shape[1] for _, shape in later if len(shape) > 1]
    return units in takes or (layer.kind != "linear" and any(taken % units == 0 for taken in takes))


def _gets_no_gradient(run: Run, layer: Layer, weight: str) -> np.ndarray | None:
    """Of which units the weight gets no gradient in any of the looks, shape (units,); None if that cannot be told."""
    usual = usual_gradient(run)
    rows = run.units(weight, "parameter_grad", _looks(run))
    if rows is None or not usual > 0:
        return None
    sizes = np.hypot(rows[:, :, _MEAN], rows[:, :, _DEVIATION]).max(axis=0)
    units = run.units(layer.name, looks=_looks(run))
    is_deep = units is not None and bool((units[:, :, _MAX].max(axis=0) <= DEEP).mean() > SOME)
    return np.asarray(sizes <= (ARRIVES if is_deep else ROUNDING) * usual)


DEAD_UNITS = Rule("dead_units", _dead_units)
