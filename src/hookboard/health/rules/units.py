"""`dead_units`: units and channels that no sample activates."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from hookboard.health.measured import every_unit
from hookboard.health.rule import Rule
from hookboard.health.rules.dead import Dead, dead_of, has_its_own_activation, has_no_weights, is_finite, is_used
from hookboard.health.rules.reached import gets_zeros, usual_gradient
from hookboard.health.rules.shared import source_of, unit_rows
from hookboard.health.run import Run
from hookboard.health.silence import EXACT, Silence, onsets
from hookboard.health.verdict import Severity, Symptom
from hookboard.layers import Layer
from hookboard.measure import FIELDS, every_of

_MEAN, _DEVIATION, _MAX = map(FIELDS.index, ("mean", "deviation", "max"))

MOST = 0.9
"""Share of dead units from which a layer is as good as dead: an alarm whatever the loss does. With two thirds dead a
layer of 16 channels still learns the digits as well as any (seen on the benchmark's tuning half)."""

MUCH = 0.75
"""Share of dead units that is an alarm if the loss shows harm. Deep in a net where hardly anything arrives, units are
on or off for all samples, by chance: up to 55 % are off in trainings that are just slow (seen on the tuning half)."""

HALF = 0.5
"""A dead layer counts as dead from the step at which this share of its units was (a choice)."""

SOME = 0.25
"""Share of dead units that is worth a note. A healthy net of narrow layers starts with 5 to 20 % (seen on the tuning
half)."""

SAMPLES = 128
"""Values that a unit must have given, all silent, before it is dead: a unit that one sample in 50 activates is silent
for this many in 8 of 100 cases (a choice)."""

SAMPLES_OF_ALL = 32
"""The same where all units of a layer are silent: not each of them by chance, as one may be (a choice)."""

LEAST = 2
"""How many units of a layer must be dead for it to be named (a choice)."""

FEWEST = 4
"""Units that a layer needs for a share of its units to say something (a choice)."""

ARRIVES = 1e-4
"""A gradient under this share of what is usual in the model does not arrive, where the pre-activation is `DEEP`: after
GELU at -5 it is 1e-5 of the usual. Elsewhere it must be 0 but for rounding, as after ReLU."""

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
    where = "" if dead.at is dead.source else f" {'in' if dead.is_sample else 'of'} {dead.at.name} ({dead.at.type})"
    whole = f"{dead.in_words}{where}"
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
    if silence is None or not is_finite(run, layer):
        return None
    dead, width = _lasting(run, silence), silence.width
    source = source_of(run, layer, width)
    if layer.kind == "dropout":
        before = run.silence.get(source.name) if source is not None else None
        # What was 0 before the dropout is not its doing.
        exact = [other for other in run.layers[: run.place(layer.name)] if other.kind == "rectifier"]
        previous = run.silence.get(exact[-1].name) if exact else before
        if previous is not None and previous.width == width:
            dead &= previous.looks == 0
        source = layer
    pruned = has_no_weights(run, source or layer, width, every_of(width))
    counts = np.ones(len(dead), dtype=bool) if pruned is None else ~pruned
    return dead_of(layer, source or layer, dead & counts, counts, silence.since, width)


def _dead_before_a_function(run: Run, layer: Layer) -> Dead | None:
    """The units whose pre-activations never exceed 0 and that no gradient reaches."""
    silence = run.silence.get(layer.name)
    if silence is None or len(silence.looks) < FEWEST or not is_finite(run, layer):
        return None
    dead, width = _lasting(run, silence), silence.width
    if np.count_nonzero(dead) < LEAST or has_its_own_activation(run, layer):
        return None
    if layer.kind == "norm" and dead.all() and gets_zeros(run.now, layer) and usual_gradient(run) > 0:
        return dead_of(layer, layer, dead, dead, silence.since, width)
    weights = [name for name in layer.trainable if len(layer.shapes[name]) > 1]
    if len(weights) != 1:
        return None
    shape = layer.shapes[weights[0]]
    every = every_unit(shape)  # of a large weight fewer units are measured than of the output
    if unit_rows(run.now.numbers(weights[0], "parameter_grad"), shape, width, every) is None:
        return None
    part = slice(None, None, every // every_of(width))
    pruned, since = has_no_weights(run, layer, width, every), silence.since[part]
    counts = np.ones(len(since), dtype=bool) if pruned is None else ~pruned
    silent = dead[part] & counts
    most = dead_of(layer, layer, silent, counts, since, width)  # unless a gradient reaches some of them
    if most is None or _severity(run, most) is None or not is_used(run, layer, width):
        return None
    cut = _gets_no_gradient(run, layer, weights[0])
    return None if cut is None else dead_of(layer, layer, silent & cut, counts, since, width)


def _looks(run: Run) -> int:
    """Looks for which a unit is silent before it counts; the judge waits for a window more."""
    return max(2, run.window // 2)


def _lasting(run: Run, silence: Silence) -> np.ndarray:
    """Which units are dead, shape (units,). Where all of a layer are silent, each needs fewer values to say so."""
    dead, all_of_them = silence.lasting(_looks(run), SAMPLES), silence.lasting(_looks(run), SAMPLES_OF_ALL)
    return all_of_them if len(all_of_them) >= FEWEST and all_of_them.all() else dead


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
