"""`experiment`: trains a copy of a model on one batch, to see whether its loss falls."""

import math
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
    copy_of_optimizer,
    gradients_of,
    losses_without_updates,
    restoring,
    train,
)
from hookboard.health.rule import Finding
from hookboard.tracing.step import CannotRunAgainError

STEPS, LONGER = 30, 4
"""Optimizer steps on the batch, and how many times as many there are if the loss does not fall (choices)."""

AVERAGED_STEPS = 5
"""The loss at the end is the mean of the last steps, this many (a choice)."""

STUCK_SHARE = 0.05
"""The loss has neither fallen nor risen if it has changed by less than this share (a choice). Of 21 published programs
none of the accepted fixes falls by less than 16 %."""

LOSS_SCALE = 1024.0
"""What the loss is multiplied by if the Trainer uses a GradScaler; small enough for most models (a choice)."""


@dataclass(frozen=True)
class CheckupReport:
    """What `checkup` found. `str` gives it as a page of text.

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


@dataclass(frozen=True)
class Trial:
    """The loss on a batch before and after some steps on it.

    Args:
        before: the mean loss of the last steps had the weights not been updated.
        after: the mean loss of the last steps; NaN if a loss was not finite.
    """

    steps: int
    before: float
    after: float

    @property
    def fall(self) -> float:
        """The share of the loss that is gone: negative if it has risen, -inf if `after` is NaN."""
        return (self.before - self.after) / self.before if math.isfinite(self.after) else -math.inf

    @property
    def has_no_bound(self) -> bool:
        """Whether the loss is negative (or 0 without updates), so that no share of it can be gone."""
        return self.before <= 0 or self.after < 0

    def __str__(self) -> str:
        """Return what the loss does, such as "falls by 32% within 30 steps"."""
        within = f"within {self.steps} step{'s' * (self.steps > 1)}"
        if not math.isfinite(self.after):
            return f"diverges {within} (it starts at {self.before:.3g})"
        if self.has_no_bound or abs(self.fall) < STUCK_SHARE or self.fall < -1:
            return f"goes from {self.before:.3g} to {self.after:.3g} {within}"
        return f"{'falls' if self.fall > 0 else 'rises'} by {abs(self.fall):.0%} {within}"


def experiment(setting: Setting, batch: Any, seconds: float) -> CheckupReport:
    """Train some steps on a batch, and see whether its loss falls.

    Afterwards the model, the optimizers, the schedulers and the random state are put back; what the user's code does
    besides happens. After `seconds` no further step begins.
    """
    reason = _why_not(setting)
    if reason:
        return CheckupReport((), (f"Nothing was tried: {reason}.",))
    clip, scale, trainer = None, 1.0, setting.trainer
    if trainer is not None:
        if trainer.gradient_clip_val:
            clip = partial(_clipped, trainer)
        scale = LOSS_SCALE if getattr(trainer.precision_plugin, "scaler", None) is not None else 1.0
    began = perf_counter()
    try:
        check_memory(setting)
        findings, tried = _tried(replace(setting, clip=clip, scale=scale, until=began + seconds), batch)
    except CannotRunAgainError as error:
        return CheckupReport((), (f"Nothing was tried: {error}.",))
    except OutOfTimeError:
        findings, tried = [], ["The time limit was reached before anything could be tried."]
    took = f"This took {perf_counter() - began:.1f} s; weights, optimizer and random state are unchanged."
    return CheckupReport(tuple(findings), (*tried, took))


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
    if not any(float(group["lr"]) for group in setting.optimizers[0].param_groups):
        return "the learning rate is 0, as where a warm-up begins"
    return ""


def _clipped(trainer: Trainer, optimizer: Optimizer) -> None:
    value, algorithm = trainer.gradient_clip_val or 0, trainer.gradient_clip_algorithm
    trainer.precision_plugin.clip_gradients(optimizer, value, algorithm or "norm")  # type: ignore[arg-type]  # Lightning takes its value


def _tried(setting: Setting, batch: Any) -> tuple[list[Finding], list[str]]:
    """Return what is wrong, and what was tried: gradients first, then some steps, then more if the loss stays."""
    [loss] = losses_without_updates(setting, batch, 1)
    if not math.isfinite(loss):
        return [], [f"Nothing was tried: the loss is {loss}."]
    if unlearnable := _of_gradients(setting, batch, loss):
        return unlearnable, []
    rate = f"at your learning rate ({float(setting.optimizers[0].param_groups[0]['lr']):.2g})"
    trial = _trial(setting, batch, STEPS)
    tried = [f"A copy was trained {rate}, on one batch: its loss {trial}."]
    if trial.has_no_bound and math.isfinite(trial.after):
        return [], [*tried, "The loss can be negative, so this does not tell whether the model learns."]
    if -math.inf < trial.fall < STUCK_SHARE:
        try:
            trial = _trial(setting, batch, LONGER * STEPS)
        except OutOfTimeError:
            return [], [*tried, "The time limit was reached before it could be trained for longer."]
        tried.append(f"Trained for longer, it {trial}.")
    return _of_trial(trial, f"tried on a copy: {rate}, the loss on one batch {trial}"), tried


def _trial(setting: Setting, batch: Any, count: int) -> Trial:
    rest = losses_without_updates(setting, batch, count + 1)
    with restoring(setting):
        losses = train(setting, batch, copy_of_optimizer(setting), count)
    is_finite = len(losses) == len(rest) and math.isfinite(losses[-1])
    before, after = (sum(each[-AVERAGED_STEPS:]) / AVERAGED_STEPS for each in (rest, losses))
    return Trial(len(losses) - 1, before, after if is_finite else math.nan)


def _of_gradients(setting: Setting, batch: Any, loss: float) -> list[Finding]:
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


def _of_trial(trial: Trial, evidence: str) -> list[Finding]:
    """Return one finding if the loss does not fall: an alarm if it diverges, otherwise a note."""
    if not math.isfinite(trial.after):
        advice = "lower the learning rate; Lightning's Tuner(trainer).lr_find(model) tries many"
        return [Finding("", evidence, advice, "alarm", rule="cannot_learn")]
    if trial.fall >= STUCK_SHARE:
        return []
    if trial.fall < -STUCK_SHARE:
        advice = "lower the learning rate, unless the loss is at its lowest already"
    else:
        advice = (
            "if the rate is not meant to be small, raise it; otherwise check the scale of inputs and targets, the last "
            "activation, and how far back gradients reach. A loss without targets may not fall on a single batch"
        )
    return [Finding("", evidence, advice, rule="cannot_learn")]
