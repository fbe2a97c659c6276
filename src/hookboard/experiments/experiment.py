"""`run_experiments`: tries on a few batches whether a model learns, at which rate, and from which targets."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.auditing import Finding
from hookboard.experiments.attempt import OutOfTimeError, Recipe, Start, apart, losses_of, rates_of
from hookboard.experiments.labels import judge_equal, judge_labels, said_of_labels, tried_labels
from hookboard.experiments.rates import (
    FACTORS,
    STANDS,
    Duel,
    RateTrial,
    advised,
    happened,
    higher_ones,
    is_too_large,
    judge_gradients,
    judge_rates,
    lower_one,
    tried_longer,
    tried_on_others,
    tried_rates,
)
from hookboard.experiments.targets import are_classes, are_targets, pairs_in
from hookboard.replay import CannotRunAgainError, loss_of_step

STEPS, MIN_STEPS = 30, 10
"""Steps at each rate; with less time fewer, down to the second number (choices)."""

SAMPLES, MAX_BATCHES = 32, 16
"""So many batches are learned together that they have this many samples, at most the second number (choices)."""

FOR_RATES = 0.6
"""The part of the budget for the rates; the rest is for the targets (a choice)."""

LONGER = 4
"""The trial of the targets, and a second one of a rate that seems too large, take so many times more steps (a choice).
"""

DENSE = 64
"""Samples with more targets, such as images, may have noise that a small model cannot learn (a choice)."""

SCALE = 1024.0
"""What a loss is multiplied by in float16; small enough for most models (a choice)."""


class Experiments(NamedTuple):
    """What came of the experiments.

    Args:
        findings: what is wrong, alarms first.
        tried: what was measured, and what was not tried and why; one sentence each.
        in_short: the outcome at the user's rate and its neighbours, as a clause; "" if nothing was tried.
    """

    findings: list[Finding]
    tried: list[str]
    in_short: str = ""


@dataclass(frozen=True)
class Setting:
    """How a model is trained, as far as experiments need it.

    Args:
        module: the model.
        optimizers: its optimizers.
        step: from a batch to the loss; None for the `training_step` of a LightningModule.
        trainer: the Trainer; None without one.
        total_steps: how many optimizer steps the training has; inf if unknown.
        is_stuck: whether its loss has not fallen so far.
        start: what to start from, see `Recipe`.
    """

    module: nn.Module
    optimizers: Sequence[Optimizer]
    step: Callable[[Any], Tensor] | None = None
    trainer: Trainer | None = None
    total_steps: float = math.inf
    is_stuck: bool = False
    start: Start | None = None


def run_experiments(
    module: nn.Module,
    batches: Sequence[Any],
    optimizer: Optimizer,
    budget_s: float,
    step: Callable[[Any], Tensor] | None = None,
) -> list[Finding]:
    """Try on a few batches whether the model learns, at which rate, and from which targets.

    It starts from the weights of now. Afterwards weights, gradients, buffers, attributes and random state are as they
    were; the optimizer is not touched.

    Args:
        module: the model, on its device.
        batches: some batches on the same device. With targets, `(x, y)`.
        optimizer: the user's.
        budget_s: after so many seconds no further step begins.
        step: a function from a batch to the loss. Left out: the `training_step` of a LightningModule.

    Returns:
        What is wrong, alarms first; nothing where nothing is wrong, or nothing could be tried.
    """
    trainer = None
    if isinstance(module, LightningModule):
        trainer = trainer_of(module)
    return experiment(Setting(module, [optimizer], step, trainer), batches, budget_s).findings


def trainer_of(pl_module: LightningModule) -> Trainer | None:
    """Return the Trainer that the module is attached to; None without one."""
    try:
        return pl_module.trainer
    except RuntimeError:
        return None


def experiment(setting: Setting, batches: Sequence[Any], seconds: float) -> Experiments:
    """Do what `run_experiments` does, and say what was tried.

    Args:
        setting: what is trained, and how.
        batches: the first ones are learned together, all of them tell of the targets.
        seconds: the budget.
    """
    return _done(setting, batches, seconds, lambda recipe: _experiments(recipe, setting, batches))


def look_at_targets(setting: Setting, batches: Sequence[Any], seconds: float) -> Experiments:
    """Only find targets that are all the same class; the arguments are those of `experiment`."""

    def look(recipe: Recipe) -> Experiments:
        found = judge_equal(batches) if are_classes(recipe, batches) else []
        return Experiments(found, ["The targets were looked at."])

    return _done(setting, batches, seconds, look)


def _done(setting: Setting, batches: Sequence[Any], seconds: float, do: Callable[[Recipe], Experiments]) -> Experiments:
    reason = why_not(setting, batches)
    if reason:
        return Experiments([], [f"Nothing was tried: {reason}."])
    try:
        return do(_recipe(setting, perf_counter() + seconds))
    except CannotRunAgainError as error:
        return Experiments([], [f"Nothing was tried: {error}."])


def why_not(setting: Setting, batches: Sequence[Any]) -> str:
    """Return why nothing can be tried, as the end of a sentence; "" if it can."""
    module, trainer = setting.module, setting.trainer
    if isinstance(module, LightningModule) and setting.step is None and not module.automatic_optimization:
        return "the optimization is manual"
    if len(setting.optimizers) != 1:
        return f"there are {len(setting.optimizers)} optimizers"
    if trainer is not None and trainer.world_size > 1:
        return f"there are {trainer.world_size} ranks"
    if any(is_lazy(p) for p in module.parameters()):
        return "the model has lazy layers, which have no weights yet"
    if not all(isinstance(group.get("lr"), float | int | Tensor) for group in setting.optimizers[0].param_groups):
        return "the optimizer has no learning rate that is a number"
    if not any(float(rate) for rate in rates_of(setting.optimizers[0])):
        return "the learning rate is 0"
    if not batches:
        return "there is no batch"
    if any(
        isinstance(part, Iterator)
        for batch in batches
        for part in (batch if isinstance(batch, tuple | list) else [batch])
    ):
        return "the batch holds an iterator, which can be read only once"
    return ""


def _recipe(setting: Setting, until: float) -> Recipe:
    [optimizer] = setting.optimizers
    step, clip, scale, trainer = setting.step, None, 1.0, setting.trainer
    if step is None and isinstance(setting.module, LightningModule):
        step = partial(loss_of_step, trainer, setting.module)
    if step is None:
        raise TypeError(f"model is a {type(setting.module).__name__}, which has no training_step: give step=")
    if trainer is not None:
        if trainer.gradient_clip_val:
            clip = partial(_clipped, trainer)
        scale = SCALE if getattr(trainer.precision_plugin, "scaler", None) is not None else 1.0
    return Recipe(setting.module, step, optimizer, clip, scale, until, trainer, setting.start)


def _clipped(trainer: Trainer, optimizer: Optimizer) -> None:
    value, algorithm = trainer.gradient_clip_val or 0, trainer.gradient_clip_algorithm
    trainer.precision_plugin.clip_gradients(optimizer, value, algorithm or "norm")  # type: ignore[arg-type]  # Lightning takes its value


def _experiments(recipe: Recipe, setting: Setting, batches: Sequence[Any]) -> Experiments:
    findings, tried, in_short = [], [], ""
    began = perf_counter()
    try:
        together = _together(batches)
        [loss] = _losses_now(recipe, together[:1])
        if not math.isfinite(loss):
            return Experiments([], [f"Nothing was tried: the loss is {loss}."])
        has_targets = are_targets(recipe, together)
        if are_classes(recipe, batches):
            findings += judge_equal(batches)
        took = perf_counter()
        unlearnable = judge_gradients(recipe, together[0])
        findings += unlearnable
        took = perf_counter() - took
        if not unlearnable:
            trials = _tried_rates(recipe, together, took, has_targets)
            tried += said_of_rates(trials, f"{_weights(recipe)}, {_what(len(together))}")
            in_short = in_short_of(trials, len(together))
            [optimizer] = setting.optimizers
            duels = _duels(recipe, together, batches, trials, has_targets)
            findings += judge_rates(
                trials,
                duels,
                _on_others(recipe, batches, trials, duels) if setting.is_stuck else None,
                has_targets=has_targets,
                is_dense=any(pair.targets[0].numel() > DENSE for pair in pairs_in(together)),
                groups=len(optimizer.param_groups),
                is_scheduled=any("initial_lr" in group for group in optimizer.param_groups),
                total=setting.total_steps,
            )
            said, found = _labels(recipe, batches, trials, has_targets and not findings, setting.is_stuck)
            tried += said
            findings += found
    except OutOfTimeError:
        tried.append("The budget of seconds was used up before anything could be tried.")
    tried.append(f"This took {perf_counter() - began:.1f} s; weights, optimizer and random state are as before.")
    findings = [_said_where(one, recipe) for one in findings]
    return Experiments(sorted(findings, key=lambda finding: finding.severity != "alarm"), tried, in_short)


def _weights(recipe: Recipe) -> str:
    return "the weights of now" if recipe.start is None else "the first weights"


def _said_where(finding: Finding, recipe: Recipe) -> Finding:
    """Say that it was tried from the first weights, where it was."""
    if recipe.start is None:
        return finding
    return finding._replace(evidence=finding.evidence.replace("on a copy", "on a copy with the first weights", 1))


def _losses_now(recipe: Recipe, batches: Sequence[Any]) -> list[float]:
    with apart(recipe, batches):
        return losses_of(recipe, batches)


def _together(batches: Sequence[Any]) -> Sequence[Any]:
    """Return the first batches, as many as make SAMPLES samples; the first where samples cannot be counted."""
    sizes = [len(pair.inputs) for pair in pairs_in(batches)]
    count = 1
    while sizes and count < min(len(sizes), MAX_BATCHES) and sum(sizes[:count]) < SAMPLES:
        count += 1
    return batches[:count]


def _tried_rates(recipe: Recipe, batches: Sequence[Any], took: float, has_targets: bool) -> list[RateTrial]:
    left = recipe.until - perf_counter()
    affordable = FOR_RATES * left / max(took, 1e-6) / len(FACTORS)
    count = int(min(max(STEPS, 2 * len(batches)), max(MIN_STEPS, affordable)))
    return tried_rates(recipe, batches, count, has_targets=has_targets)


def _duels(
    recipe: Recipe, few: Sequence[Any], batches: Sequence[Any], trials: Sequence[RateTrial], has_targets: bool
) -> list[Duel]:
    """Try for longer: the best rate where none works, or one that seems too large, and that on more batches too."""
    best = lower_one(trials)
    most = max(trials, key=lambda trial: trial.fall, default=None)
    if most is not None and most.fall < STANDS and math.isfinite(trials[0].after):
        return tried_longer(recipe, few, most, LONGER * most.steps, has_targets=has_targets)
    if best is None or not all(math.isfinite(trial.after) for trial in trials if trial.factor == 1):
        return []
    duels: list[Duel] = []
    for some in (few, batches) if len(batches) > len(few) else (few,):
        duels += tried_longer(recipe, some, best, LONGER * best.steps, has_targets=has_targets)
        if any(is_too_large(duel, has_targets=has_targets) for duel in duels):
            break
    return duels


def _on_others(
    recipe: Recipe, batches: Sequence[Any], trials: Sequence[RateTrial], duels: Sequence[Duel]
) -> Duel | None:
    """Try higher rates by the loss on other batches, where the loss stays at the user's."""
    higher = higher_ones(trials, duels)
    return tried_on_others(recipe, batches, higher, LONGER * STEPS) if higher and len(batches) > 1 else None


def in_short_of(trials: Sequence[RateTrial], batches: int) -> str:
    """Say what became of the loss at the user's rate, a tenth of it and ten times it; "" if yours was not tried."""
    near = [trial for trial in trials if 0.1 <= trial.factor <= 10]
    if all(trial.factor != 1 for trial in near):
        return ""
    said = [f"at a rate of {trial.rate:.2g}{' (yours)' * (trial.factor == 1)} {happened(trial)}" for trial in near]
    return f"the loss on {_what(batches)} in {max(trial.steps for trial in near)} steps: {', '.join(said)}"


def _what(batches: int) -> str:
    return "one batch" if batches == 1 else f"{batches} batches"


def said_of_rates(trials: Sequence[RateTrial], of_what: str) -> list[str]:
    """Say what became of the loss at each rate.

    Args:
        trials: in order.
        of_what: the weights and the batches.
    """
    if not trials:
        return ["The budget of seconds was used up before a rate could be tried."]
    of_all = f"{len(trials)} of {max(len(FACTORS), len(trials))} rates"
    lines = [f"From {of_what} learned at {of_all}, each from the start:"]
    for trial in trials:
        mark = " (yours)" if trial.factor == 1 else ""
        lines.append(
            f"  lr {trial.rate:.2g}{mark}: {happened(trial)} within {trial.steps} step{'s' * (trial.steps > 1)}"
        )
    return lines


def _labels(
    recipe: Recipe, batches: Sequence[Any], trials: Sequence[RateTrial], is_asked: bool, is_stuck: bool
) -> tuple[list[str], list[Finding]]:
    best = advised(trials)
    if not is_asked or best is None:
        return ["The targets were not tried: the loss must fall, and the batch be a pair of inputs and targets."], []
    trial = tried_labels(recipe, batches, best.factor, LONGER * best.steps)
    if trial is None:
        return ["The targets were not tried: it takes more time, or more batches."], []
    return [f"At lr {best.rate:.2g}: {said_of_labels(trial)}."], judge_labels(trial, is_stuck=is_stuck)
