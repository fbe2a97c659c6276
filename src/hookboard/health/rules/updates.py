"""`update_too_large` and `update_too_small`: how far a step moves the weights, relative to their size."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hookboard.health.look import Look
from hookboard.health.robust import median_of, medians_of
from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.rules.shared import (
    UPDATE_RATIO_SMALL,
    get_zeros,
    harm_of,
    is_rate_low_by_schedule,
    was_zero,
    weight_gain,
)
from hookboard.health.run import USUAL_WEIGHT_NORM_MIN, RateJump, Run
from hookboard.model.layers import Layer

UPDATE_RATIO_USUAL = 1e-3
"""Update ratio of a usual step (Karpathy's rule of thumb)."""

UPDATE_RATIO_LARGE = 0.1
"""Median update ratio over the layers above which steps of a window are large (DeepDiagnosis, TheDeepChecker)."""

UPDATE_RATIO_ADVISED = 0.01
"""Update ratio advised for first steps that were too large: ten times the usual, as these are largest (a choice)."""

FIRST_UPDATE_RATIO_LARGE = 0.3
"""`UPDATE_RATIO_LARGE` for the first step: Adam then reaches 0.1 in narrow layers (seen on the tuning half), and
weights that have grown by the next look hide it."""

FIRST_UPDATE_RATIO_ERASES = 1.0
"""Update ratio of the first step from which it is an alarm unless the loss falls, and no effect of anything: nothing is
left of the weights. Healthy trainings reach 0.14."""

FIRST_UPDATE_RATIO_REPLACES = 3.0
"""Update ratio of the first step from which it is an alarm whatever the loss does: less than a tenth of the weights (1
in 1 + 3 squared) is then the initialization that somebody chose."""

LOSS_LEAP_FACTOR = 3.0
"""A loss that rose to this many times its first value in its first steps has leapt (a choice)."""

WEIGHT_GROWTH_ALARM = 30.0
"""Growth of most weights that is always an alarm. In healthy runs (tuning half) no weight grows by more than 4.2."""

WEIGHT_GROWTH_BEGUN = 3.0
"""Growth of most weights since the first look from which such a growth is dated (a choice)."""

LAYER_UPDATE_FACTOR_LARGE = 30.0
"""A layer's updates are large above `UPDATE_RATIO_LARGE`, and this many times the median of the others."""


def update_too_large(run: Run) -> Iterator[Finding]:
    """Report steps that were too large for the weights; while the loss falls, only a first one larger than they are."""
    # A single matrix may be anywhere after a step: a linear model learns from any start. But a leap is no start.
    has_leapt = _leap_factor(run) > LOSS_LEAP_FACTOR
    is_judged = _is_deep(run) or has_leapt or (run.losses.is_known and not run.losses.is_well)
    is_judged &= all(stepped.optimizer != "LBFGS" for stepped in run.now.stepped.values())  # it searches for its step
    if run.first_move > FIRST_UPDATE_RATIO_ERASES and is_judged and not run.now.factors:
        steps, ratios = _course(run, run.arrays.with_matrix)
        found = _large_model(run, steps, medians_of(ratios), 0)
        is_hard = run.first_move > FIRST_UPDATE_RATIO_REPLACES
        yield replace(found, severity="alarm", is_root=True, is_lasting=True, is_hard=is_hard)
        return
    growth = _growth(run)
    is_lost = growth > WEIGHT_GROWTH_ALARM and _is_deep(run) and _gains_nothing(run)
    is_unwell = run.losses.is_harmed or (run.losses.is_known and not run.losses.is_well)
    if not (is_unwell or is_lost):
        return
    jump = next((jump for jump in run.rate_jumps if run.losses.is_worse_since(jump.step - 1)), None)
    if jump is not None:
        yield _jumped(run, jump)
        return
    layers = run.arrays.with_matrix
    # Inf from the logarithm of 0 is not the doing of large steps.
    if not layers or not (run.losses.is_finite or run.has_blown_up):
        return
    # The whole run: large steps may be over before the loss shows harm, as a dead network no longer moves.
    steps, ratios = _course(run, layers)
    if not len(steps):
        return
    whole = medians_of(ratios)
    # A loss that has never left its place is not the doing of one step.
    at_once = whole[0] > FIRST_UPDATE_RATIO_LARGE and not run.losses.is_only_stuck
    first = 0 if at_once else _first_of(whole > UPDATE_RATIO_LARGE, run.window)
    if first is not None:
        yield _large_model(run, steps, whole, first)
        return
    if growth > WEIGHT_GROWTH_ALARM:
        yield _grown_model(run, growth)
        return
    for place, row in zip(layers, ratios, strict=True):
        is_large = np.nan_to_num(row) > np.maximum(UPDATE_RATIO_LARGE, LAYER_UPDATE_FACTOR_LARGE * whole)
        start = _first_of(is_large, run.window)
        if start is not None and not was_zero(run, run.layers[place]):
            moves, until = _moves("its update-to-weight ratio", "", steps, row, is_large, steps[-1] == run.now.step)
            evidence = f"{moves} (the median layer's: {whole[-1]:.1g}){harm_of(run)}"
            advice = "lower the learning rate of its parameter group"
            since, size = int(steps[start]), float(row[start])
            yield Finding(run.layers[place].name, evidence, advice, "alarm", size, since, until=until)


def _course(run: Run, layers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of the looks with an update ratio, and those ratios of some layers, shape (layers, looks)."""
    (ratios, sizes), steps = (
        (run.course(name)[layers] for name in ("update_ratio", "weight_rms")),
        list(run.course_steps),
    )
    if steps[-1] != run.now.step:  # of a long run not every look is a column
        ratios = np.hstack([ratios, run.recent("update_ratio")[layers, -1:]])
        sizes = np.hstack([sizes, run.recent("weight_rms")[layers, -1:]])
        steps.append(run.now.step)
    matrices = run.arrays.first_of_each(~np.isnan(run.arrays.inputs))
    inputs = dict(zip(run.arrays.owner[matrices].tolist(), run.arrays.inputs[matrices].tolist(), strict=True))
    scales = np.sqrt([[inputs.get(place, math.nan)] for place in layers])
    # Beside weights that are near 0, as they may be on purpose at first, any step is large.
    ratios = np.where((sizes * scales < USUAL_WEIGHT_NORM_MIN) & (not run.losses.is_harmed), np.nan, ratios)
    # A layer that no gradient reaches says nothing of the size of steps, unless none moves.
    ratios = np.where(np.isfinite(ratios) & ((ratios > 0) | ~(ratios > 0).any(axis=0)), ratios, np.nan)
    seen = ~np.isnan(ratios).all(axis=0)
    return np.array(steps)[seen], ratios[:, seen]


def _moves(
    whose: str, among: str, steps: np.ndarray, moved: np.ndarray, is_large: np.ndarray, is_now: bool
) -> tuple[str, int | None]:
    """Describe how far steps move weights, and return the last step that was too large; None if that is the latest."""
    if is_large[-1] and is_now:
        return f"{whose} is {moved[-1]:.2g}{among}", None
    large = np.flatnonzero(is_large)
    worst, until = large[np.argmax(moved[large])], int(steps[large[-1]])
    later = f", and {moved[-1]:.2g} at step {steps[-1]}" if worst < len(moved) - 1 else ""
    return f"{whose} was {moved[worst]:.2g} at step {steps[worst]}{among}{later}", until


def _jumped(run: Run, jump: RateJump) -> Finding:
    when = f"at step {jump.step}" if jump.step == jump.seen else f"between steps {jump.step} and {jump.seen}"
    evidence = (
        f"the learning rate rose from {jump.before:.2g} to {jump.after:.2g} {when}, and is {_rate(run):.2g} now"
        f"{harm_of(run)}"
    )
    advice = "check the schedule, and lower the learning rate"
    return Finding("", evidence, advice, "alarm", jump.after / jump.before, jump.step, until=jump.until)


def _large_model(run: Run, steps: np.ndarray, whole: np.ndarray, first: int) -> Finding:
    before = f"{np.median(whole[:first]):.1g} before that" if first else "1e-3 is usual"
    among = f" (median over layers; {before})"
    is_large, is_now = whole > UPDATE_RATIO_LARGE, bool(steps[-1] == run.now.step)
    moves, until = _moves("the update-to-weight ratio", among, steps, whole, is_large, is_now)
    peak = max(run.peak_rate.values(), default=math.nan)
    highest = f" ({peak:.2g} at its highest)" if f"{peak:.2g}" != f"{_rate(run):.2g}" and peak > _rate(run) else ""
    evidence = f"{moves}, at a learning rate of {_rate(run):.2g}{highest}{_leap(run) or harm_of(run)}"
    moved = float(whole[first])
    to = f" {_to(run, moved, UPDATE_RATIO_ADVISED, f'step {steps[first]}')}"
    # A step beside weights that are all near 0 tells no rate.
    to = to if moved > UPDATE_RATIO_ADVISED and (first or not math.isnan(run.first_move)) else ""
    advice = f"lower the learning rate{to}"
    is_over = until is not None and run.losses.has_risen and run.losses.best_step > until
    severity: Severity = "note" if is_over or run.losses.is_well else "alarm"
    return Finding("", evidence, advice, severity, moved, int(steps[first]), until=until)


def _to(run: Run, moved: float, wanted: float, step: str = "that step") -> str:
    """Return the advised learning rate, as in "to about 0.001, so that a step ...", or the factor if it has changed."""
    rate, factor = _rate(run), max(moved / wanted, wanted / moved)
    first = max((stepped.rate for stepped in run.first.stepped.values()), default=math.nan) if run.first else math.nan
    if first == rate == max(run.peak_rate.values(), default=math.nan):
        return f"to about {rate * wanted / moved:.1g}, so that a step changes the weights by {100 * wanted:g}%"
    return f"by a factor of about {float(f'{factor:.1g}'):.0f}, so that {step} changes the weights by {100 * wanted:g}%"


def _rate(run: Run) -> float:
    """Return the largest learning rate in force, or so far if no optimizer stepped; NaN if none ever did."""
    rates = [stepped.rate for stepped in run.now.stepped.values()]
    return max(rates or run.peak_rate.values(), default=math.nan)


def _grown_model(run: Run, growth: float) -> Finding:
    evidence = f"most weights have grown to at least {growth:.2g} times their initial size{harm_of(run)}"
    advice = "lower the learning rate, and check the optimizer's options"
    sizes = run.course("weight_rms")[[i for i, layer in enumerate(run.layers) if _may_grow(run, layer)]]
    grew = medians_of(sizes / sizes[:, :1]) > WEIGHT_GROWTH_BEGUN
    since = run.course_steps[int(np.argmax(grew))] if grew.any() else run.now.step
    return Finding("", evidence, advice, "alarm", growth, since)


def _growth(run: Run) -> float:
    """Return the factor by which weights have grown since the first look, the median over layers; NaN if by little."""
    first, now = run.course("weight_rms", 1)[:, 0], run.recent("weight_rms")[:, -1]
    growth = np.divide(now, first, out=np.full_like(now, np.nan), where=first > 0)
    if not (growth > WEIGHT_GROWTH_ALARM).any():
        return math.nan
    return median_of(size for size, layer in zip(growth, run.layers, strict=True) if _may_grow(run, layer))


def _may_grow(run: Run, layer: Layer) -> bool:
    is_trained = any(name in run.peak_rate for name in layer.weights)
    return (
        is_trained
        and run.first is not None
        and any(
            10 ** weight_gain(run.first, layer, name) >= USUAL_WEIGHT_NORM_MIN
            for name in layer.weights
            if len(layer.shapes[name]) > 1
        )
    )


def _leap(run: Run) -> str:
    """Return how far the loss rose in the first steps and what it is now; "" if not, or if `harm_of` tells."""
    if run.losses.is_harmed or not _leap_factor(run) > LOSS_LEAP_FACTOR:
        return ""
    first = [loss.value for loss in run.losses.first if math.isfinite(loss.value)]
    last = run.losses.level()
    return f"; the loss rose from {first[0]:.3g} to {max(first):.3g} in the first steps, and is {last:.3g} now"


def _leap_factor(run: Run) -> float:
    """Return how many times its first value the loss reached in the first steps; NaN if it began at 0 or is unknown."""
    first = [loss.value for loss in run.losses.first if math.isfinite(loss.value)]
    return max(first) / abs(first[0]) if first and first[0] else math.nan


def _is_deep(run: Run) -> bool:
    return sum(layer.has_matrix for layer in run.layers if run.has_run(layer)) > 1


def _gains_nothing(run: Run) -> bool:
    return run.has_blown_up if run.losses.is_mixed else not run.losses.is_learning


def _first_of(is_large: np.ndarray, window: int) -> int | None:
    """Return the index at which the first `window` consecutive True values begin; None if there are none.

    >>> _first_of(np.array([True, False, True, True]), 2)
    2
    """
    length = 0
    for i, large in enumerate(is_large):
        length = length + 1 if large else 0
        if length == window:
            return i - window + 1
    return None


UPDATE_TOO_LARGE = Rule("update_too_large", update_too_large, look_at="health/update_ratio")

LAYER_UPDATE_SHARE_SMALL = 1e-3
"""A layer's updates are small below this share of the others' median (a choice: falling rates end at 1e-2)."""


def update_too_small(run: Run) -> Iterator[Finding]:
    """Report steps too small to learn anything: of the whole model, or of one layer among others."""
    look = run.now
    ratios = run.recent("update_ratio")[:, -1]
    places = np.flatnonzero(run.arrays.has_matrix & (ratios > 0) & (ratios < np.inf))
    moved = ratios[places]
    # If no single one is small, their median is not.
    if not (moved < UPDATE_RATIO_SMALL).any() or (
        moved.min() >= LAYER_UPDATE_SHARE_SMALL * moved.max() and run.losses.is_learning
    ):
        return
    # Of NaN or Inf a ratio tells nothing, and what momentum still does without a gradient is no matter of the rate.
    is_spoiled = run.latest.rows["parameter_update"].nonfinite > 0
    are_others = get_zeros(run) | (np.bincount(run.arrays.owner, is_spoiled, len(run.layers)) > 0)
    moving = {
        run.layers[place].name: ratio
        for place, ratio in zip(places.tolist(), moved.tolist(), strict=True)
        if not (are_others[place] or is_rate_low_by_schedule(run, run.layers[place]))
    }
    if not moving:
        return
    usual = median_of(moving.values())
    if usual < UPDATE_RATIO_SMALL:
        if not run.losses.is_learning:
            yield _small_model(run, look, usual)
        return
    for name, ratio in moving.items():
        if ratio >= UPDATE_RATIO_SMALL:
            continue
        others = median_of(other for key, other in moving.items() if key != name)
        if ratio < min(LAYER_UPDATE_SHARE_SMALL * others, UPDATE_RATIO_SMALL):
            evidence = (
                f"its update-to-weight ratio is {ratio:.1g} (median of the other layers: {others:.1g}){harm_of(run)}"
            )
            advice = "check the learning rate of its parameter group, and its gradient"
            yield Finding(name, evidence, advice, "alarm" if run.losses.is_harmed else "note", others / ratio)


def _small_model(run: Run, look: Look, usual: float) -> Finding:
    rates = [stepped.rate for stepped in look.stepped.values()]
    optimizer = next(iter(look.stepped.values())).optimizer
    evidence = (
        f"the update-to-weight ratio is {usual:.1g} (median over layers; 1e-3 is usual), at a learning rate of "
        f"{max(rates):.2g} with {optimizer}{harm_of(run)}"
    )
    # Where a schedule has lowered the rate, it is the peak that users set.
    at_peak = usual * max(run.peak_rate.values(), default=math.nan) / _rate(run)
    to = f" {_to(run, at_peak, UPDATE_RATIO_USUAL, 'a step at the highest rate')}"
    to = to if at_peak < UPDATE_RATIO_USUAL else ""
    advice = (
        f"raise the learning rate{to}, and check whether gradients are clipped or outweighed by the optimizer's epsilon"
    )
    # Without chance nobody can tell a loss that stays from that of a model that was trained before.
    severity: Severity = "alarm" if run.losses.is_stuck and run.losses.chance is not None else "note"
    return Finding("", evidence, advice, severity, UPDATE_RATIO_SMALL / usual, _small_since(run))


def _small_since(run: Run) -> int:
    layers = run.arrays.with_matrix
    levels = medians_of(run.course("update_ratio")[layers])
    since = run.now.step
    for step, level in zip(reversed(run.course_steps), levels[::-1], strict=True):
        if level >= UPDATE_RATIO_SMALL:
            break
        since = step if level < UPDATE_RATIO_SMALL else since  # NaN tells nothing
    return since


UPDATE_TOO_SMALL = Rule("update_too_small", update_too_small, look_at="health/update_ratio")
