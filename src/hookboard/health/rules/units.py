"""Rules about units: those that nothing activates, and those that are copies of each other."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.rule import Rule
from hookboard.health.rules.shared import source_of, weight_of
from hookboard.health.run import Run, median_of
from hookboard.health.silence import EXACT
from hookboard.health.verdict import Severity, Symptom
from hookboard.measure import FIELDS

_COUNT, _MEAN, _DEVIATION, _ABS_MEAN, _ZEROS = map(FIELDS.index, ("count", "mean", "deviation", "abs_mean", "zeros"))
_MIN, _MAX = map(FIELDS.index, ("min", "max"))

MOST = 0.5
"""Share of dead units above which a layer is as good as dead: an alarm (TheDeepChecker and SageMaker use 50 % too)."""

SOME = 0.25
"""Share of dead units that is worth a note, and an alarm if the loss shows harm. A healthy net of narrow layers starts
with 5 to 20 % (seen on the benchmark's tuning half)."""

SAMPLES = 128
"""Values that a unit must have given, all silent, before it is dead: a unit that one sample in 50 activates is silent
for so many in 8 of 100 cases (a choice)."""

FEWEST = 4
"""Units that a layer needs for a share of its units to say something (a choice)."""

ARRIVES = 1e-4
"""A gradient under this share of what is usual in the model does not arrive (chosen on the benchmark's tuning half).
Behind ReLU it is exactly 0, behind GELU at -5 it is 1e-5 of the usual."""

ALIKE = 1e-5
"""Two units have the same weights if no number of theirs differs by more than this share of the layer's RMS: about 100
roundings of float32."""

ALIKE_GRADIENT = 1e-3
"""The same for gradients, where sums over a batch cancel."""


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
    exact = [dead for layer in run.layers if layer.kind in EXACT and (dead := _dead_behind(run, layer))]
    named = {dead.source.name for dead in exact if dead.share > SOME}
    others = [layer for layer in run.layers if layer.kind not in EXACT and layer.name not in named]
    called = [dead for layer in others if (dead := _dead_before_a_function(run, layer))]
    said: set[str] = set()
    for dead in sorted([*exact, *called], key=lambda dead: -dead.share):
        severity = _severity(run, dead)
        if severity is None or dead.source.name in said:
            continue
        said.add(dead.source.name)
        usual = [other.share for other in exact if other.source is not dead.source]
        yield _dead_symptom(run, dead, severity, usual)


def _severity(run: Run, dead: Dead) -> Severity | None:
    if dead.share <= SOME or dead.dead < 2 or (dead.units < FEWEST and dead.share < 1):
        return None
    is_frozen = bool(dead.source.weights) and not dead.source.trainable
    is_harm = dead.share > MOST or run.losses.is_harmed
    return "alarm" if is_harm and not is_frozen else "note"


def _dead_symptom(run: Run, dead: Dead, severity: Severity, usual: list[float]) -> Symptom:
    limit = MOST if dead.share > MOST else SOME
    since = int(dead.since[min(math.floor(limit * dead.units), dead.dead - 1)])
    where = "" if dead.at is dead.source else f" of {dead.at.name} ({dead.at.type})"
    if dead.at.kind in EXACT:
        what = f"{dead.dead} of {dead.units} units{where} gave 0 on every sample since step {since}"
        others = f"; other layers of the kind: {_range(usual)}" if usual else ""
    else:
        what = (
            f"{dead.dead} of {dead.units} units gave nothing above 0 on any sample since step {since}, and no gradient "
            f"reaches them: the activation behind them is closed"
        )
        others = ""
    first = run.first.step if run.first is not None else 0
    if dead.at.kind == "dropout":
        advice = "Lower the rate of this dropout."
    elif since <= first:
        advice = "Look at how this layer is initialized, its bias first; then at the scale of what goes in."
    else:
        advice = "Lower the learning rate or warm it up, and look at the updates of this layer just before that step."
    return Symptom(dead.source.name, f"{what}{others}.", advice, severity, size=dead.share, since=since)


def _range(shares: Iterable[float]) -> str:
    percent = [100 * share for share in shares]
    return f"{min(percent):.0f} to {max(percent):.0f} %" if len(percent) > 1 else f"{percent[0]:.0f} %"


def _dead_behind(run: Run, layer: Layer) -> Dead | None:
    """The dead units of a rectifier, or of a dropout that drops everything."""
    silence = run.silence.get(layer.name)
    if silence is None or run.now.of(layer.name, "output") is None:
        return None
    dead = silence.lasting(_looks(run), SAMPLES)
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


def _dead_before_a_function(run: Run, layer: Layer) -> Dead | None:
    """The units whose pre-activations never exceed 0 and that no gradient reaches."""
    silence = run.silence.get(layer.name)
    if silence is None or len(silence.looks) < FEWEST or run.now.of(layer.name, "output") is None:
        return None
    dead = silence.lasting(_looks(run), SAMPLES)
    if not dead.any() or not _is_used(run, layer, len(dead)):
        return None
    cut = _gets_no_gradient(run, layer)
    if cut is None:
        return None
    # Of a large weight every k-th unit is measured.
    every = -(-len(dead) // len(cut))
    if len(dead[::every]) != len(cut):
        return None
    rows = weight_of(run, layer, len(cut))
    counted = np.ones(len(cut), dtype=bool) if rows is None else ~_is_zero(rows)
    return _dead(layer, layer, dead[::every] & cut & counted, counted, silence.since[::every])


def _dead(at: Layer, source: Layer, dead: np.ndarray, counted: np.ndarray, since: np.ndarray) -> Dead | None:
    return Dead(at, source, int(dead.sum()), int(counted.sum()), np.sort(since[dead])) if counted.any() else None


def _looks(run: Run) -> int:
    """Looks for which a unit is silent before it counts; the judge waits for a window more."""
    return max(2, run.window // 2)


def _has_no_weights(run: Run, layer: Layer, units: int) -> np.ndarray:
    """Which units have only zeros as weights, as after pruning, shape (units,). Of a norm, those before it count."""
    rows = weight_of(run, layer, units)
    if rows is None and layer.kind == "norm":
        before = source_of(run, layer, units)
        rows = weight_of(run, before, units) if before is not None else None
    return np.zeros(units, dtype=bool) if rows is None else _is_zero(rows)


def _is_zero(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows[:, _ZEROS] >= rows[:, _COUNT])


def _is_used(run: Run, layer: Layer, units: int) -> bool:
    """Whether a layer that runs later takes so many units: those of a head are silent where a class never comes."""
    later = [(other, shape) for other in run.layers[run.place(layer.name) + 1 :] for shape in other.shapes.values()]
    if any(shape == (units,) and other.kind == "norm" for other, shape in later):
        return True
    takes = [shape[1] for _, shape in later if len(shape) > 1]
    return units in takes or (layer.kind != "linear" and any(taken % units == 0 for taken in takes))


def _gets_no_gradient(run: Run, layer: Layer) -> np.ndarray | None:
    """Of which units the weights get no gradient in any of the looks, shape (units,); None if that cannot be told."""
    weights = [name for name in layer.trainable if len(layer.shapes[name]) > 1]
    usual = median_of(run.recent("weight_gradient_rms")[:, -1])
    if len(weights) != 1 or not usual > 0:
        return None
    rows = run.units(weights[0], "parameter_grad", _looks(run))
    if rows is None:
        return None
    return np.asarray((np.hypot(rows[:, :, _MEAN], rows[:, :, _DEVIATION]) <= ARRIVES * usual).all(axis=0))


def _symmetric_units(run: Run) -> Iterator[Symptom]:
    for layer in run.layers:
        if layer.kind in ("embedding", "norm"):
            continue
        for name in sorted(layer.trainable):
            weight, gradient = run.now.of(name, "parameter"), run.now.of(name, "parameter_grad")
            if weight is None or gradient is None or weight.channels is None or gradient.channels is None:
                continue
            if weight.channels.shape == gradient.channels.shape:
                twins = _twins(weight.channels, gradient.channels)
                if twins >= 2:
                    yield _symmetric_symptom(layer, name, twins, len(weight.channels))


def _twins(weights: np.ndarray, gradients: np.ndarray) -> int:
    """How many units have the weights and the gradient of another unit.

    Units without any weight count only where the whole layer has none: single ones are pruned.
    """
    columns = [_MEAN, _DEVIATION, _ABS_MEAN, _MIN, _MAX]
    if not (np.isfinite(weights[:, columns]).all() and np.isfinite(gradients[:, columns]).all()):
        return 0
    is_zero = _is_zero(weights)
    has_gradient = gradients[:, _ABS_MEAN] > 0
    counted = ~is_zero | has_gradient | is_zero.all()
    if counted.sum() < 2:
        return 0
    both = [
        _rounded(weights[counted][:, columns], ALIKE),
        _rounded(gradients[counted][:, columns], ALIKE_GRADIENT),
    ]
    _, sizes = np.unique(np.hstack(both), axis=0, return_counts=True)
    return int(sizes[sizes > 1].sum())


def _rounded(rows: np.ndarray, share: float) -> np.ndarray:
    """The numbers in units of a share of their largest size."""
    return np.asarray(np.round(rows / (share * max(float(np.abs(rows).max()), np.finfo(np.float64).tiny))))


def _symmetric_symptom(layer: Layer, name: str, twins: int, units: int) -> Symptom:
    share = twins / units
    evidence = (
        f"{twins} of {units} units of {name} have the weights and the gradient of another unit, so they stay equal; "
        f"units of other layers differ."
    )
    advice = "Initialize its weights with random numbers, and look for weights that are copied or set to a constant."
    return Symptom(layer.name, evidence, advice, "alarm" if share > MOST else "note", size=share)


DEAD_UNITS = Rule("dead_units", _dead_units)
SYMMETRIC_UNITS = Rule("symmetric_units", _symmetric_units)
