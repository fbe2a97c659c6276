"""Trains the model for some steps at each learning rate of a grid, always from the same weights, and compares them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookboard.experiments.attempt import (
    OutOfTimeError,
    Setting,
    copy_of_optimizer,
    current_rates,
    gradients_of,
    losses_of,
    losses_without_updates,
    restoring,
    train,
)
from hookboard.experiments.targets import exchanged
from hookboard.health.rule import Finding, Severity
from hookboard.tracing.batch_targets import Targets

FACTORS = (1.0, 0.1, 10.0, 0.01, 100.0, 0.001, 1000.0)
"""Multiples of the user's learning rate that are tried, in this order."""

HIGHER = (1e4, 1e5, 1e6)
"""Further factors, tried if the loss falls by less than STUCK_SHARE at the highest rate, but by more than at the one
below."""

AVERAGED_STEPS = 5
"""The loss of a trial is the mean of its last steps, this many (a choice)."""

FALLEN_SHARE, STUCK_SHARE = 0.3, 0.05
"""The loss has fallen if at least the first share of it is gone, and is stuck if less than the second is (choices). Of
21 published programs none of the accepted fixes falls by less than 16 % at its best rate, and the faults by at most 4 %
or 12 % and more."""

SAME_LOSS = 1e-6
"""Two sums of losses differ by rounding alone if they differ by at most this share (a choice). It is small because most
of the loss stays, however targets are permuted, if they have a large offset."""

NEARLY_BEST = 0.8
"""The smallest rate is advised at which the loss falls by this share of its largest fall: one batch can take larger
rates than a training (a choice)."""

SLOW_SHARE, TOO_FEW_STEPS = 0.02, 10
"""A rate is called too small if less than this share of the loss is gone, and the fit has this many times fewer steps
than would do as much as the rate at which the loss falls (choices)."""


RISEN_FACTOR = 10.0
"""A loss that rises by more than this many times its value is said to rise to a multiple, not by a percentage (a
choice)."""

FAR_FACTOR = 100.0
"""If the loss falls by at least STUCK_SHARE, but at no rate by FALLEN_SHARE, a rate is named that is at least this many
times the user's (a choice)."""


@dataclass(frozen=True)
class RateTrial:
    """The loss before and after a training of some steps at one learning rate.

    Args:
        rate: the rate of the first parameter group.
        before: the mean loss of the last steps had the weights not been updated.
        after: the mean loss of the last steps; NaN if a loss was not finite, or the trial was given up.
        right: the sum of the losses of all batches after the last step; NaN if `after` is, or without targets.
        exchanged: the same sum with the targets permuted over the samples; NaN if `right` is.
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
        """The share of the loss that is gone: negative if it has risen, -inf if `after` is NaN."""
        if not math.isfinite(self.after):
            return -math.inf
        return (self.before - self.after) / max(abs(self.before), 1e-12)

    @property
    def gives_constant(self) -> bool:
        """Whether permuted targets give the same loss, so that the model gives the same output for every sample."""
        return abs(self.exchanged - self.right) <= SAME_LOSS * abs(self.right)


def tried_rates(setting: Setting, batches: Sequence[Any], count: int, targets: Targets) -> list[RateTrial]:
    """Train `count` steps at each rate of FACTORS, and at further ones where these show too little.

    Returns the trials in ascending order of their rate; only those that were finished before the deadline.
    """
    trials: list[RateTrial] = []
    try:
        rest = losses_without_updates(setting, batches, count + 1)
        for factor in FACTORS:
            trials += [_tried(setting, batches, factor, rest, targets)]
        before, highest = sorted(trials, key=lambda trial: trial.factor)[-2:]
        for factor in HIGHER if STUCK_SHARE > highest.fall > before.fall else ():
            trials += [_tried(setting, batches, factor, rest, targets)]
            if trials[-1].fall >= FALLEN_SHARE or not math.isfinite(trials[-1].after):
                break
    except OutOfTimeError:
        pass
    return sorted(trials, key=lambda trial: trial.factor)


RatePair = tuple[RateTrial, RateTrial]
"""A trial at the user's rate, and one at another rate on the same batches."""


def tried_longer(
    setting: Setting, batches: Sequence[Any], best: RateTrial, count: int, targets: Targets
) -> list[RatePair]:
    """Train for more steps at the user's rate and at that of `best`; return the pair, or nothing if time was up."""
    try:
        rest = losses_without_updates(setting, batches, count + 1)
        yours, other = (_tried(setting, batches, factor, rest, targets) for factor in (1.0, best.factor))
        return [(yours, other)]
    except OutOfTimeError:
        return []


def _tried(
    setting: Setting, batches: Sequence[Any], factor: float, rest: Sequence[float], targets: Targets
) -> RateTrial:
    """Train at one rate; `rest` are the losses without updates: that before each step, and that after the last."""
    last = min(AVERAGED_STEPS, len(rest) // 3)
    right = other = after = math.nan
    with restoring(setting):
        losses = train(setting, batches, copy_of_optimizer(setting, factor), len(rest) - 1, gives_up=factor != 1)
        if len(losses) == len(rest) and math.isfinite(losses[-1]):
            after = sum(losses[-last:]) / last
            if targets.paths:
                right, other = (sum(losses_of(setting, some)) for some in (batches, exchanged(batches, targets)))
    rate = float(current_rates(setting.optimizers[0])[0]) * factor
    return RateTrial(factor, rate, len(losses) - 1, sum(rest[-last:]) / last, after, right, other)


def judge_gradients(setting: Setting, batch: Any, loss: float) -> list[Finding]:
    """Return one finding if no nonzero gradient reaches a parameter in the optimizer on a batch with this loss."""
    gradients = gradients_of(setting, batch)
    if any(gradient is not None and bool((gradient != 0).any()) for gradient in gradients):
        return []
    evidence = f"no nonzero gradient reaches any of the {len(gradients)} parameters in the optimizer (loss: {loss:.3g})"
    advice = (
        "look for detach(), .data, no_grad() or argmax, a softmax over one value, a dead ReLU or a saturated output "
        "before the loss, and check that the optimizer has the parameters of this model"
    )
    return [Finding("", evidence, advice, "alarm" if loss else "note", rule="cannot_learn")]


def judge_rates(
    setting: Setting, trials: Sequence[RateTrial], pairs: Sequence[RatePair], *, has_targets: bool, is_dense: bool
) -> list[Finding]:
    """Judge the user's learning rate by the trials at all rates, and by the `pairs` of `tried_longer`, if any.

    Returns at most one finding: `learning_rate` if the loss falls at another rate and not at the user's, or
    `cannot_learn` if it falls at none. It must fall at some rate only where it compares outputs with targets, and these
    are not dense: a small model cannot learn noise in many targets of each sample.
    """
    yours = next((trial for trial in trials if trial.factor == 1), None)
    groups = setting.optimizers[0].param_groups
    if yours is None or has_no_bound(trials):
        return []
    if all(trial.fall < STUCK_SHARE for trial in trials):
        if len(trials) < len(FACTORS):
            return []
        return _nothing_learns(trials, next((other for _, other in pairs), None), has_targets and not is_dense)
    best = lower_one(trials)
    if best is not None and not math.isfinite(yours.after):
        return [_of_rate(yours, best, len(groups), "alarm")]
    for pair in pairs:
        if is_too_large(pair, has_targets=has_targets):
            return [_of_rate(*pair, len(groups), "alarm")]
    if best is not None and is_too_large((yours, best), has_targets=has_targets):
        return [] if pairs else [_of_rate(yours, best, len(groups), "note")]  # with momentum a loss can rise at first
    higher = [trial for trial in trials if trial.factor > 1]
    best, enough = advised(higher), next((trial for trial in higher if trial.fall >= FALLEN_SHARE), None)
    if best is None or not -SLOW_SHARE <= yours.fall < SLOW_SHARE or any("initial_lr" in group for group in groups):
        return []
    if enough is None:
        is_far = best.factor >= FAR_FACTOR and best.fall >= STUCK_SHARE
        return [_of_rate(yours, best, len(groups), "note")] if is_far else []
    is_short = setting.total_steps * TOO_FEW_STEPS < enough.factor * enough.steps
    is_alarm = has_targets and is_short and enough.factor <= max(FACTORS)
    return [_of_rate(yours, best, len(groups), "alarm" if is_alarm else "note")]


def has_no_bound(trials: Sequence[RateTrial]) -> bool:
    """Return True if a loss is negative in some trial (or 0 without updates), so that no share of it can be gone."""
    return any(trial.before <= 0 or trial.after < 0 for trial in trials)


def lower_one(trials: Sequence[RateTrial]) -> RateTrial | None:
    """Return the trial at the best lower rate, if its loss ends far below that at the user's rate.

    Also if the loss diverges at the user's rate. None if it does not end that low, if it falls by less than
    FALLEN_SHARE there, or if a loss is negative. This alone does not prove the user's rate too large: the loss at that
    rate can rise at first and fall later.
    """
    yours = next((trial for trial in trials if trial.factor == 1), None)
    best = advised([trial for trial in trials if trial.factor < 1])
    if yours is None or best is None or has_no_bound(trials) or best.fall < FALLEN_SHARE:
        return None
    return None if best.after >= (1 - FALLEN_SHARE) * yours.after else best


def advised(trials: Sequence[RateTrial]) -> RateTrial | None:
    """Return the trial with the smallest rate whose fall is at least NEARLY_BEST of the largest; None if none falls.

    The trials must be in ascending order of their rate.
    """
    most = max((trial.fall for trial in trials), default=-math.inf)
    return next((trial for trial in trials if trial.fall >= NEARLY_BEST * most > 0), None)


def is_too_large(pair: RatePair, *, has_targets: bool) -> bool:
    """Return True if the loss falls at the other rate of the pair, and not at the user's; False if a loss is negative.

    A fall at the user's rate does not count if the model gives a constant there. Without targets, the loss must rise at
    the user's rate.
    """
    yours, best = pair
    if has_no_bound(pair) or best.fall < FALLEN_SHARE:
        return False
    if not has_targets:
        return yours.fall < -STUCK_SHARE
    is_constant = yours.gives_constant and not best.gives_constant and best.after < (1 - FALLEN_SHARE) * yours.after
    return yours.fall < STUCK_SHARE or is_constant


def _nothing_learns(trials: Sequence[RateTrial], longer: RateTrial | None, has_targets: bool) -> list[Finding]:
    """Return the finding for a loss that falls at no rate; `longer` is the trial of the best rate with more steps."""
    lowest, most = trials[0], max(trials, key=lambda trial: trial.fall)
    if not math.isfinite(lowest.after):
        evidence = (
            f"tried on a copy: at every learning rate down to {lowest.rate:.2g}, the loss diverges (it "
            f"starts at {lowest.before:.3g})"
        )
        advice = "set an even smaller rate, and check the scale of inputs, targets and weights"
        return [Finding("", evidence, advice, "alarm", rule="learning_rate")]
    evidence = (
        f"tried on a copy: the loss on the same samples falls by at most {max(most.fall, 0):.1%} in {most.steps} steps "
        f"(from {most.before:.3g}), at any of {len(trials)} rates from {lowest.rate:.2g} to {trials[-1].rate:.2g}"
    )
    if longer is not None and longer.fall >= STUCK_SHARE:
        evidence += f"; at {longer.rate:.2g} it falls by {longer.fall:.0%} in {longer.steps} steps"
        advice = "learning takes many steps, so check the scale of inputs and targets"
        return [Finding("", evidence, advice, rule="cannot_learn")]
    if not has_targets or longer is None:
        advice = "a loss without targets from the batch may not fall on a single batch; check what it measures"
        if has_targets:
            advice = "raise the time limit to see whether the loss falls with more steps"
        return [Finding("", evidence, advice, rule="cannot_learn")]
    evidence += f"; {longer.steps} steps at {longer.rate:.2g} do not help either"
    advice = (
        "no rate helps: check the scale of inputs and targets, the last activation, and how far back gradients reach"
    )
    return [Finding("", evidence, advice, "alarm", rule="cannot_learn")]


def _of_rate(yours: RateTrial, best: RateTrial, groups: int, severity: Severity) -> Finding:
    """Return the finding that the loss falls at the rate of `best` and not at `yours`, with the rate to set."""
    within = f" within {yours.steps} steps" if yours.steps != best.steps else ""
    evidence = (
        f"tried on a copy: at a rate of {best.rate:.2g} the loss falls by {best.fall:.0%} in {best.steps} steps; at "
        f"yours ({yours.rate:.2g}) it {happened(yours)}{within}"
    )
    if groups > 1:
        advice = f"{'multiply' if best.factor > 1 else 'divide'} all rates by {max(best.factor, 1 / best.factor):.0f}"
    else:
        advice = f"set lr={best.rate:.2g}"
    if severity == "note":
        advice = (
            f"if the loss does not fall in training either, {advice}; a single batch tolerates higher rates than "
            "training does"
        )
    return Finding("", evidence, advice, severity, rule="learning_rate")


def happened(trial: RateTrial) -> str:
    """Return what the loss does in a trial as the end of a sentence, such as "falls by 32%"."""
    if not math.isfinite(trial.after):
        return "diverges"
    if has_no_bound([trial]):
        return f"goes from {trial.before:.3g} to {trial.after:.3g}"
    if trial.gives_constant and trial.fall >= STUCK_SHARE:
        return f"falls by {trial.fall:.0%}, and the outputs are the same for every sample"
    if abs(trial.fall) < 0.005:
        return "changes by less than 0.5%"
    if trial.fall < -RISEN_FACTOR:
        return f"rises to {1 - trial.fall:.1g} times its initial value"
    return f"{'falls' if trial.fall > 0 else 'rises'} by {abs(trial.fall):.0%}"
