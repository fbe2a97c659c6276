"""`experiment`: tries on a few batches whether a model learns, and at which rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.torch_private import parameters_in
from hookboard.experiments.attempt import (
    OutOfTimeError,
    Setting,
    check_memory,
    current_rates,
    gradients_of,
    losses_of,
    restoring,
)
from hookboard.experiments.rates import (
    FACTORS,
    STUCK_SHARE,
    RatePair,
    RateTrial,
    happened,
    has_no_bound,
    is_too_large,
    judge_gradients,
    judge_rates,
    lower_one,
    tried_longer,
    tried_rates,
)
from hookboard.experiments.targets import find_targets, of_batches, samples_in
from hookboard.health.rule import Finding
from hookboard.tracing.batch_targets import Targets
from hookboard.tracing.step import CannotRunAgainError

STEPS, MIN_STEPS = 30, 10
"""Optimizer steps at each rate, and the fewest if time is short (choices)."""

MIN_SAMPLES_TOGETHER, MAX_BATCHES = 32, 16
"""Rates are tried on the first batches: as many as have this many samples, at most this many batches (choices)."""

RATES_SHARE = 0.6
"""The share of the time for the rates; the rest is for second trials with more steps (a choice)."""

LONGER = 4
"""The second trial of a rate takes this many times more steps (a choice)."""

DENSE_TARGETS = 64
"""Samples with more targets, such as images, may have noise that a small model cannot learn (a choice)."""

LOSS_SCALE = 1024.0
"""What the loss is multiplied by if the Trainer uses a GradScaler; small enough for most models (a choice)."""


@dataclass(frozen=True)
class CheckupReport:
    """What `checkup` or `experiment` found. `str` gives it as a page of text.

    Args:
        findings: what is wrong, alarms first.
        tried: sentences about what was measured, what was not tried, and why.
    """

    findings: tuple[Finding, ...]
    tried: tuple[str, ...]

    def __str__(self) -> str:
        """Return a headline, then the findings with their advice, then what was tried."""
        counted = [(sum(f.severity == kind for f in self.findings), kind) for kind in ("alarm", "note")]
        said = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for count, kind in counted if count)
        lines = [f"Checkup: {said or 'nothing stands out'}", ""]
        for found in self.findings:
            where = f" in {found.module}" if found.module else ""
            lines += [
                f"{found.severity.upper()} {found.rule}{where}",
                f"  {found.evidence}",
                f"  -> {found.advice}",
                "",
            ]
        return "\n".join([*lines, *self.tried])


def experiment(setting: Setting, batches: Sequence[Any], seconds: float) -> CheckupReport:
    """Try whether the model learns a few batches, and at which rate.

    Afterwards the model, the optimizers, the schedulers and the random state are put back; what the user's code does
    besides happens. Rates are tried on the first batches, and if one seems too large, on all. After `seconds` no
    further step begins.
    """
    reason = _why_not(setting)
    if reason:
        return CheckupReport((), (f"Nothing was tried: {reason}.",))
    clip, scale, trainer = None, 1.0, setting.trainer
    if trainer is not None:
        if trainer.gradient_clip_val:
            clip = partial(_clipped, trainer)
        scale = LOSS_SCALE if getattr(trainer.precision_plugin, "scaler", None) is not None else 1.0
    try:
        check_memory(setting)
        return _experiments(replace(setting, clip=clip, scale=scale, until=perf_counter() + seconds), batches)
    except CannotRunAgainError as error:
        return CheckupReport((), (f"Nothing was tried: {error}.",))


def _why_not(setting: Setting) -> str:
    """Return why experiments are not possible, as the end of a sentence; "" if they are."""
    if len(setting.optimizers) != 1:
        return f"there are {len(setting.optimizers)} optimizers"
    if setting.trainer is not None and setting.trainer.world_size > 1:
        return f"there are {setting.trainer.world_size} ranks"
    if any(is_lazy(p) for p in parameters_in(setting.module).values()):
        return "the model has lazy layers, which have no weights yet"
    if not all(isinstance(group.get("lr"), float | int | Tensor) for group in setting.optimizers[0].param_groups):
        return "the optimizer has no numeric learning rate"
    if not any(float(rate) for rate in current_rates(setting.optimizers[0])):
        return "the learning rate is 0"
    return ""


def _clipped(trainer: Trainer, optimizer: Optimizer) -> None:
    value, algorithm = trainer.gradient_clip_val or 0, trainer.gradient_clip_algorithm
    trainer.precision_plugin.clip_gradients(optimizer, value, algorithm or "norm")  # type: ignore[arg-type]  # Lightning takes its value


def _experiments(setting: Setting, batches: Sequence[Any]) -> CheckupReport:
    """Run all experiments, as far as there is time: gradients first, then rates."""
    findings, tried = [], []
    began = perf_counter()
    try:
        with restoring(setting):
            [loss] = losses_of(setting, batches[:1])
        if not math.isfinite(loss):
            return CheckupReport((), (f"Nothing was tried: the loss is {loss}.",))
        targets = find_targets(setting, batches)
        together = _first_batches(batches, targets)
        unlearnable = judge_gradients(setting, together[0], loss)
        findings += unlearnable
        if not unlearnable:
            trials = _tried_rates(setting, together, targets)
            of_what = "one batch" if len(together) == 1 else f"{len(together)} batches"
            tried += said_of_rates(trials, f"the current weights on {of_what}")
            has_targets = bool(targets.paths)
            pairs = _tried_longer(setting, together, batches, trials, targets)
            is_dense = any(of_batches(together, path)[0][0].numel() > DENSE_TARGETS for path in targets.paths)
            findings += judge_rates(setting, trials, pairs, has_targets=has_targets, is_dense=is_dense)
    except OutOfTimeError:
        tried.append("The time limit was reached before anything could be tried.")
    tried.append(f"This took {perf_counter() - began:.1f} s; weights, optimizer and random state are unchanged.")
    return CheckupReport(tuple(sorted(findings, key=lambda finding: finding.severity != "alarm")), tuple(tried))


def _first_batches(batches: Sequence[Any], targets: Targets) -> Sequence[Any]:
    """Return as many batches as have MIN_SAMPLES_TOGETHER samples, at most MAX_BATCHES; one without known targets."""
    sizes = samples_in(batches, targets)
    count = 1
    while targets.paths and count < min(len(sizes), MAX_BATCHES) and sum(sizes[:count]) < MIN_SAMPLES_TOGETHER:
        count += 1
    return batches[:count]


def _tried_rates(setting: Setting, batches: Sequence[Any], targets: Targets) -> list[RateTrial]:
    """Try all rates; if time is short, with fewer than STEPS steps at each, but with at least MIN_STEPS."""
    began = perf_counter()
    gradients_of(setting, batches[0])  # not the first time: that is slow
    now = perf_counter()
    affordable = RATES_SHARE * (setting.until - now) / max(now - began, 1e-6) / len(FACTORS)
    count = int(min(max(STEPS, 2 * len(batches)), max(MIN_STEPS, affordable)))
    return tried_rates(setting, batches, count, targets)


def _tried_longer(
    setting: Setting,
    few: Sequence[Any],
    batches: Sequence[Any],
    trials: Sequence[RateTrial],
    targets: Targets,
) -> list[RatePair]:
    """Try rates for LONGER times the steps, where the trials leave something open.

    If the loss fell at no rate, try the best rate again on the few batches. If the user's rate seems too large, try the
    best lower one on the few batches, and if that does not show it, on all batches.
    """
    best = lower_one(trials)
    most = max(trials, key=lambda trial: trial.fall, default=None)
    if most is not None and most.fall < STUCK_SHARE and math.isfinite(trials[0].after):
        return tried_longer(setting, few, most, LONGER * most.steps, targets)
    if best is None or not all(math.isfinite(trial.after) for trial in trials if trial.factor == 1):
        return []
    pairs: list[RatePair] = []
    for some in (few, batches) if len(batches) > len(few) else (few,):
        pairs += tried_longer(setting, some, best, LONGER * best.steps, targets)
        if any(is_too_large(pair, has_targets=bool(targets.paths)) for pair in pairs):
            break
    return pairs


def said_of_rates(trials: Sequence[RateTrial], of_what: str) -> list[str]:
    """Return a headline and a line for each trial: the rate, and what the loss does."""
    if not trials:
        return ["The time limit was reached before a rate could be tried."]
    of_all = f"{len(trials)} of {max(len(FACTORS), len(trials))} rates"
    lines = [f"Trained from {of_what} at {of_all}, each held constant, restarting each time:"]
    for trial in trials:
        mark = " (yours)" if trial.factor == 1 else ""
        steps = f"{trial.steps} step{'s' * (trial.steps > 1)}"
        lines.append(f"  lr {trial.rate:.2g}{mark}: the loss {happened(trial)} within {steps}")
    if has_no_bound(trials):
        lines.append("The loss can be negative, so these lines do not tell which rate is better.")
    return lines
