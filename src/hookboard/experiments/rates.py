"""Tries the learning rates of a geometric grid on the same steps, each from the weights of now."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hookboard.auditing import Finding
from hookboard.experiments.attempt import (
    OutOfTimeError,
    Recipe,
    apart,
    copied,
    gradients_at_rest,
    losses_at_rest,
    losses_of,
    rates_of,
    train,
)
from hookboard.experiments.targets import exchanged

FACTORS = (1.0, 0.1, 10.0, 0.01, 100.0, 0.001, 1000.0)
"""What the user's rate is multiplied by, in the order in which it is tried: from a thousandth to a thousand times."""

HIGHER, LOWER = (1e4, 1e5, 1e6), (1e-4, 1e-5, 1e-6)
"""Further factors, where the loss falls at none of the first: the former where it falls the more the higher the rate,
the latter where it diverges at each."""

LAST = 5
"""A loss is averaged over this many steps at the end of an attempt (a choice)."""

LEARNS, STANDS = 0.3, 0.05
"""The loss has fallen if this part of it is gone, and has not if less than that is (choices). Of 21 published programs
none of the accepted fixes falls by less than 16 % at its best rate, and the faults by at most 4 % or 12 % and more."""

SAME = 1e-3
"""Losses are the same if they differ by this part (a choice)."""

NEAR = 0.8
"""The smallest rate is advised at which the loss falls by this part of its largest fall: one batch can take larger
rates than a training (a choice)."""

PROVEN = 0.1
"""A higher rate is proven better if this part of the loss on batches that were not trained on is gone, and less than
`SLOW` at the user's (a choice)."""

SLOW, TOO_FEW = 0.02, 10
"""A rate is called too small if less than this part of the loss is gone, and the fit has this many times fewer steps
than would do as much as the rate at which it falls (choices)."""


@dataclass(frozen=True)
class RateTrial:
    """What became of the loss at one rate.

    Args:
        factor: the rate, as a multiple of the user's.
        rate: the rate of the first group of parameters.
        steps: how many were taken.
        before: the mean loss of the last steps if nothing is learned.
        after: the mean loss of the last steps; NaN where a loss was not finite, or the attempt was given up.
        right: the loss after the last step; NaN as above, and where there are no targets.
        exchanged: the same with the targets exchanged between samples.
    """

    factor: float
    rate: float
    steps: int
    before: float
    after: float
    right: float
    exchanged: float

    @property
    def fall(self) -> float:
        """The part of the loss that is gone; negative where it has risen, -inf where it is no longer finite."""
        if not math.isfinite(self.after):
            return -math.inf
        return (self.before - self.after) / max(abs(self.before), 1e-12)

    @property
    def is_blind(self) -> bool:
        """Whether the loss is the same with the targets exchanged: the model gives a constant."""
        return abs(self.exchanged - self.right) <= SAME * abs(self.right)


def tried_rates(recipe: Recipe, batches: Sequence[Any], count: int, *, has_targets: bool) -> list[RateTrial]:
    """Train so many steps at each rate, over the batches in turn, until the budget is used up.

    Returns:
        The finished trials, by rate. An unfinished one is left out.
    """
    trials: list[RateTrial] = []
    try:
        rest = losses_at_rest(recipe, batches, count + 1)
        for factor in FACTORS:
            trials += [_tried(recipe, batches, factor, rest, has_targets=has_targets)]
        for factor in _further(sorted(trials, key=lambda trial: trial.factor)):
            trials += [_tried(recipe, batches, factor, rest, has_targets=has_targets)]
            if trials[-1].fall >= LEARNS or math.isfinite(trials[-1].after) != (factor > 1):
                break
    except OutOfTimeError:
        pass
    return sorted(trials, key=lambda trial: trial.factor)


def _further(trials: Sequence[RateTrial]) -> Sequence[float]:
    """Return the factors that may show more than the first ones, which are given in order."""
    lowest, (before, highest) = trials[0], trials[-2:]
    if not math.isfinite(lowest.after):
        return LOWER
    return HIGHER if STANDS > highest.fall > before.fall else ()


class Duel(NamedTuple):
    """The user's rate and a lower one, on the same batches.

    Args:
        yours: the user's.
        best: the lower one.
    """

    yours: RateTrial
    best: RateTrial


def tried_longer(
    recipe: Recipe, batches: Sequence[Any], best: RateTrial, count: int, *, has_targets: bool
) -> list[Duel]:
    """Train so many steps at the user's rate and at a lower one; empty if the budget is used up before."""
    try:
        rest = losses_at_rest(recipe, batches, count + 1)
        return [Duel(*(_tried(recipe, batches, f, rest, has_targets=has_targets) for f in (1.0, best.factor)))]
    except OutOfTimeError:
        return []


def tried_on_others(recipe: Recipe, batches: Sequence[Any], trials: Sequence[RateTrial], count: int) -> Duel | None:
    """Train on the first half of the batches at the user's rate and at higher ones, and look at the other half.

    Args:
        recipe: how.
        batches: at least two.
        trials: at the user's rate and at higher ones.
        count: optimizer steps.

    Returns:
        The user's rate and the one that is best for the other batches; None if the budget is used up before.
    """
    mine, others = batches[: len(batches) // 2], batches[len(batches) // 2 :]
    found: list[RateTrial] = []
    try:
        for trial in trials:
            with apart(recipe, batches):
                before = sum(losses_of(recipe, others))
                losses = train(recipe, mine, copied(recipe, trial.factor), count, gives_up=True)
                is_whole = len(losses) > count and math.isfinite(losses[-1])
                after = sum(losses_of(recipe, others)) if is_whole else math.nan
            found.append(RateTrial(trial.factor, trial.rate, count, before, after, math.nan, math.nan))
    except OutOfTimeError:
        pass
    return Duel(found[0], max(found[1:], key=lambda trial: trial.fall)) if len(found) > 1 else None


def higher_ones(trials: Sequence[RateTrial], duels: Sequence[Duel]) -> list[RateTrial]:
    """Return the user's rate and the higher ones at which the loss falls; empty unless it stays at the user's.

    Args:
        trials: of `tried_rates`.
        duels: of `tried_longer`, where that was needed.
    """
    yours = [trial for trial in trials if trial.factor == 1 and -SLOW <= trial.fall < SLOW]
    longer = [duel.best for duel in duels if duel.yours.fall < SLOW]
    higher = [trial for trial in [*trials, *longer] if trial.factor > 1 and trial.fall >= LEARNS]
    return [*yours, *higher] if yours and higher and not has_no_bound(trials) else []


def _tried(
    recipe: Recipe, batches: Sequence[Any], factor: float, rest: Sequence[float], *, has_targets: bool
) -> RateTrial:
    """Train at one rate, one step less than there are losses at rest."""
    last = min(LAST, len(rest) // 3)
    right = other = after = math.nan
    with apart(recipe, batches):
        losses = train(recipe, batches, copied(recipe, factor), len(rest) - 1, gives_up=factor != 1)
        if len(losses) == len(rest) and math.isfinite(losses[-1]):
            after = sum(losses[-last:]) / last
            if has_targets:
                right, other = sum(losses_of(recipe, batches)), sum(losses_of(recipe, exchanged(batches, 0)))
    rate = float(rates_of(recipe.optimizer)[0]) * factor
    return RateTrial(factor, rate, len(losses) - 1, sum(rest[-last:]) / last, after, right, other)


def judge_gradients(recipe: Recipe, batch: Any) -> list[Finding]:
    """Find that nothing reaches the parameters that the optimizer trains."""
    gradients = gradients_at_rest(recipe, batch)
    with apart(recipe, [batch]):
        [loss] = losses_of(recipe, [batch])
    there = [gradient for gradient in gradients if gradient is not None]
    if any(bool((gradient != 0).any()) for gradient in there) or not math.isfinite(loss):
        return []
    if there:
        evidence = f"the gradients of all {len(gradients)} trained parameters are exactly 0 on one batch, at a loss of "
        evidence += f"{loss:.3g}: no rate can change that"
        advice = "look at what comes last before the loss: a softmax over one value, a dead ReLU, a saturated output"
    else:
        evidence = f"no gradient reaches any of the {len(gradients)} parameters that the optimizer trains"
        advice = "look for detach(), .data, no_grad() or argmax between the layers and the loss, and at what is frozen"
    return [Finding("cannot_learn", "alarm" if loss != 0 or not there else "note", "", evidence, advice)]


def judge_rates(
    trials: Sequence[RateTrial],
    duels: Sequence[Duel],
    on_others: Duel | None = None,
    *,
    has_targets: bool,
    is_dense: bool,
    groups: int,
    is_scheduled: bool,
    total: float,
) -> list[Finding]:
    """Compare the user's rate with the others.

    Args:
        trials: of `tried_rates`.
        duels: the user's rate and a lower one tried for longer, where that was needed.
        on_others: of `tried_on_others`; None where it was not tried.
        has_targets: whether the loss compares outputs with targets: only then must it fall at some rate.
        is_dense: whether a sample has many targets: noise in them cannot be learned by a small model.
        groups: how many groups of parameters have a rate.
        is_scheduled: whether a scheduler changes the rate.
        total: how many steps the fit has; inf if unknown.
    """
    yours = next((trial for trial in trials if trial.factor == 1), None)
    if yours is None or has_no_bound(trials):
        return []
    if on_others is not None and on_others.yours.fall < SLOW and on_others.best.fall >= PROVEN and not is_scheduled:
        return [_of_rate(*on_others, groups, "alarm", "the loss on batches that were not trained on")]
    if all(trial.fall < STANDS for trial in trials):
        if len(trials) < len(FACTORS):
            return []
        return _nothing_learns(trials, next((duel.best for duel in duels), None), has_targets and not is_dense)
    best = lower_one(trials)
    if best is not None and not math.isfinite(yours.after):
        return [_of_rate(yours, best, groups, "alarm")]
    for duel in duels:
        if is_too_large(duel, has_targets=has_targets):
            return [_of_rate(duel.yours, duel.best, groups, "alarm")]
    if best is not None and is_too_large(Duel(yours, best), has_targets=has_targets):
        return [] if duels else [_of_rate(yours, best, groups, "note")]  # with momentum a loss can rise at first
    higher = [trial for trial in trials if trial.factor > 1]
    best, enough = advised(higher), next((trial for trial in higher if trial.fall >= LEARNS), None)
    if best is None or enough is None or not -SLOW <= yours.fall < SLOW or is_scheduled:
        return []
    is_alarm = has_targets and total * TOO_FEW < enough.factor * enough.steps and enough.factor <= max(FACTORS)
    return [_of_rate(yours, best, groups, "alarm" if is_alarm else "note")]


def has_no_bound(trials: Sequence[RateTrial]) -> bool:
    """Return whether the loss is negative somewhere, so that no part of it can be gone."""
    return any(trial.before <= 0 or trial.after < 0 for trial in trials)


def lower_one(trials: Sequence[RateTrial]) -> RateTrial | None:
    """Return a lower rate at which the loss falls, and at the end is well below that at the user's; None without one.

    Whether the user's is too large is then still open: a loss can rise at first, and fall on one batch only.
    """
    yours = next((trial for trial in trials if trial.factor == 1), None)
    best = advised([trial for trial in trials if trial.factor < 1])
    if yours is None or best is None or has_no_bound(trials) or best.fall < LEARNS:
        return None
    return None if best.after >= (1 - LEARNS) * yours.after else best


def advised(trials: Sequence[RateTrial]) -> RateTrial | None:
    """Return the trial with the smallest rate at which the loss falls nearly as much as at any of them."""
    most = max((trial.fall for trial in trials), default=-math.inf)
    return next((trial for trial in trials if trial.fall >= NEAR * most > 0), None)


def is_too_large(duel: Duel, *, has_targets: bool) -> bool:
    """Return whether a model learns at the lower rate, and not at the user's."""
    yours, best = duel
    if has_no_bound(duel) or best.fall < LEARNS:
        return False
    if not has_targets:
        return yours.fall < -STANDS
    is_constant = yours.is_blind and not best.is_blind and best.after < (1 - LEARNS) * yours.after
    return yours.fall < STANDS or is_constant


def _nothing_learns(trials: Sequence[RateTrial], longer: RateTrial | None, has_targets: bool) -> list[Finding]:
    lowest, most = trials[0], max(trials, key=lambda trial: trial.fall)
    if not math.isfinite(lowest.after):
        evidence = (
            f"tried on a copy: at every rate down to {lowest.rate:.2g} the loss diverges (from {lowest.before:.3g})"
        )
        advice = "set a still smaller rate, and look at the scale of inputs, targets and weights"
        return [Finding("learning_rate", "alarm", "", evidence, advice)]
    evidence = (
        f"tried on a copy: at none of {len(trials)} rates from {lowest.rate:.2g} to {trials[-1].rate:.2g} does the "
        f"loss on the same samples fall by more than {max(most.fall, 0):.1%} in {most.steps} steps (from "
        f"{most.before:.3g})"
    )
    if longer is not None and longer.fall >= STANDS:
        evidence += f"; at {longer.rate:.2g} by {longer.fall:.0%} in {longer.steps}"
        advice = "it takes many steps: look at the scale of inputs and targets"
        return [Finding("cannot_learn", "note", "", evidence, advice)]
    if not has_targets or longer is None:
        advice = "a loss without targets in the batch need not fall on one batch: judge by what it means"
        if has_targets:
            advice = "set a larger budget of seconds, to see whether it falls in more steps"
        return [Finding("cannot_learn", "note", "", evidence, advice)]
    evidence += f", and at {longer.rate:.2g} not in {longer.steps}"
    advice = "no rate helps: look at the scale of inputs and targets, the last activation, and how deep gradients reach"
    return [Finding("cannot_learn", "alarm", "", evidence, advice)]


def _of_rate(yours: RateTrial, best: RateTrial, groups: int, severity: str, what: str = "the loss") -> Finding:
    within = f" within {yours.steps} steps" if yours.steps != best.steps else ""
    evidence = (
        f"tried on a copy: at a rate of {best.rate:.2g} {what} falls by {best.fall:.0%} in {best.steps} steps; at "
        f"yours ({yours.rate:.2g}) {happened(yours)}{within}"
    )
    if groups > 1:
        advice = f"{'multiply' if best.factor > 1 else 'divide'} all rates by {max(best.factor, 1 / best.factor):.0f}"
    else:
        advice = f"set lr={best.rate:.2g}"
    if severity == "note":
        advice = f"if the loss does not fall in the training either, {advice}; one batch can take more than a training"
    return Finding("learning_rate", "alarm" if severity == "alarm" else "note", "", evidence, advice)


def happened(trial: RateTrial) -> str:
    """Say what became of the loss, as the end of a sentence."""
    if not math.isfinite(trial.after):
        return "it diverges"
    if trial.is_blind and trial.fall >= STANDS:
        return f"it falls by {trial.fall:.0%}, and the outputs are the same for every sample"
    if abs(trial.fall) < 0.005:
        return "it does not"
    return f"it {'falls' if trial.fall > 0 else 'rises'} by {abs(trial.fall):.0%}"
