"""`checkup`: audits a step of a model, and trains a copy on its batch for some steps, to see whether its loss falls."""

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.checks import is_lightning
from hookboard.base.torch_private import STEP_HOOKS, modules_in, parameters_in
from hookboard.health.rule import Finding
from hookboard.model.nested import bytes_of
from hookboard.model.state import copied, same_random_state
from hookboard.tracing.step import CannotRunAgainError, audit, loss_of_step, undisturbed

MAX_CPU_WEIGHT_BYTES = 1 << 32
"""Maximum bytes that are copied in the host's memory (a choice)."""

MAX_FREE_MEMORY_SHARE = 0.5
"""Maximum share of a GPU's free memory that all copies may take (a choice)."""


class OutOfTimeError(RuntimeError):
    """Raised by `Setting.check_time` when the time for the experiments is used up."""


@dataclass(frozen=True)
class Setting:
    """A model and how the user trains it."""

    module: nn.Module
    optimizers: Sequence[Optimizer]  # they never step: experiments step copies
    step: Callable[[Any], Tensor] | None = None  # None: the `training_step` of a LightningModule
    trainer: Trainer | None = None
    clip: Callable[[Optimizer], None] | None = None  # in place, as the Trainer does; None if gradients are not clipped
    scale: float = 1.0  # of the loss before the backward pass, as by a GradScaler; 1 without one
    until: float = math.inf  # the deadline of the experiments, as a value of `perf_counter()`

    def loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch, with its graph."""
        if self.step is None:
            return loss_of_step(self.trainer, cast(LightningModule, self.module), batch)
        return self.step(batch)

    def check_time(self) -> None:
        """Raise an OutOfTimeError if the deadline `until` has passed."""
        if perf_counter() > self.until:
            raise OutOfTimeError

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of the model, and tensors of its optimizer that are not among them; each once."""
        stepped = [p for group in self.optimizers[0].param_groups for p in group["params"]]
        return list({id(p): p for p in [*parameters_in(self.module).values(), *stepped]}.values())


def check_memory(setting: Setting) -> None:
    """Raise a CannotRunAgainError if the weights, their gradients and the state of Adam would take too much memory."""
    sizes: dict[torch.device, int] = defaultdict(int)
    for p in setting.parameters:
        sizes[p.device] += bytes_of(p) * (4 if p.requires_grad else 1)
    for device, size in sizes.items():
        is_gpu = device.type == "cuda"
        free = MAX_FREE_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] if is_gpu else MAX_CPU_WEIGHT_BYTES
        if size > free:
            raise CannotRunAgainError(f"the weights are too large to copy on {device}")


def restoring(setting: Setting) -> AbstractContextManager[None]:
    """Return a context, in which gradients are None at first, that puts back the model and the weights."""
    return undisturbed(setting.module, *setting.parameters, trainer=setting.trainer, is_whole_step=True)


def copy_of_optimizer(setting: Setting) -> Optimizer:
    """Return a copy of the setting's optimizer and its state for the same parameters, without its step hooks."""
    optimizer = setting.optimizers[0]
    parts = [*modules_in(setting.module).values(), *setting.parameters]
    memo: dict[int, Any] = {id(part): part for part in parts}
    made: Optimizer = object.__new__(type(optimizer))
    # A scheduler may have put something in place of its `step`.
    attributes = {name: value for name, value in vars(optimizer).items() if name not in ("step", *STEP_HOOKS)}
    made.__setstate__(copy.deepcopy(attributes, memo))
    return made


def losses_without_updates(setting: Setting, batch: Any, count: int) -> list[float]:
    """Return `count` losses of a batch without updates of the weights: they differ if the step draws random numbers."""
    with restoring(setting):
        return [_value(setting, batch) for _ in range(count)]


def _value(setting: Setting, batch: Any) -> float:
    """Return the loss of a batch as a number. The step gets a copy, which it may change."""
    setting.check_time()
    # With gradients, as in training: the step may compute some, as for a differential equation.
    return float(setting.loss(copied(batch)).detach())


def train(setting: Setting, batch: Any, optimizer: Optimizer, count: int) -> list[float]:
    """Take `count` steps inside `restoring`; return the loss before each and after the last, or up to a NaN or Inf."""
    losses: list[float] = []
    for _ in range(count):
        losses.append(_step(setting, optimizer, batch))
        if not math.isfinite(losses[-1]):
            return losses
    return [*losses, _value(setting, batch)]


def _step(setting: Setting, optimizer: Optimizer, batch: Any) -> float:
    setting.check_time()
    losses: list[float] = []

    def closure() -> Tensor:
        if setting.step is not None:
            optimizer.zero_grad()
        loss = setting.loss(copied(batch))
        if setting.step is None:  # so does Lightning: what a backward pass in `training_step` leaves is cleared
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
        (loss * setting.scale).backward()
        for p in setting.parameters if setting.scale != 1 else ():
            if p.grad is not None:
                p.grad /= setting.scale
        if setting.clip is not None:
            setting.clip(optimizer)
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]  # Lightning's too gives a tensor
    return losses[0]


def gradients_of(setting: Setting, batch: Any) -> list[Tensor | None]:
    """Return the gradient of the loss for each trainable parameter of the optimizer; None where none arrives."""
    with restoring(setting):
        loss = setting.loss(copied(batch))
        trained = [p for group in setting.optimizers[0].param_groups for p in group["params"] if p.requires_grad]
        if not loss.requires_grad or not trained:
            return [None] * len(trained)
        return list(torch.autograd.grad(loss, trained, allow_unused=True))


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
    """The loss on a batch before and after some steps on it."""

    steps: int
    before: float  # the mean loss of the last steps had the weights not been updated
    after: float  # the mean loss of the last steps; NaN if a loss was not finite

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
    """Train some steps on a batch, and see whether its loss falls; after `seconds` no further step begins."""
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


SECONDS = 30.0
"""The budget of the experiments if the user gives none (a choice)."""


def checkup(
    model: nn.Module,
    data: Iterable[Any],
    step: Callable[[Any], Tensor] | None = None,
    optimizer: Optimizer | None = None,
    *,
    seconds: float = SECONDS,
) -> CheckupReport:
    """Run a model's training step on one batch many times, to find what is wrong with it, and whether it learns.

    Afterwards the model, the optimizers, the schedulers and the random state are put back; what your code does besides,
    such as printing or writing a file, happens each time. The step of the first batch is audited (see `audit`); then a
    copy is trained on that batch for 30 steps, or 120 if its loss does not fall.

    Args:
        model: the model, on the device of the batches.
        data: batches, such as a DataLoader, of which the first is read. For one batch pass `[batch]`.
        step: a function that computes the loss of a batch. Default: the `training_step` of a LightningModule.
        optimizer: the optimizer. Default: the one that a LightningModule's `configure_optimizers` returns.
        seconds: no step of the experiments begins after this many seconds. Default: 30.

    Returns:
        What is wrong, and what was tried.

    Raises:
        TypeError: `step` or `optimizer` is left out and the model is not a LightningModule, or `optimizer` is not an
            optimizer (a list, for example).
        ValueError: `data` has no batches.

    Examples:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(4, 1)
        >>> x, y = torch.randn(16, 4), torch.randn(16, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=10)
        >>> report = checkup(model, [(x, y)], lambda batch: nn.functional.mse_loss(model(batch[0]), batch[1]), sgd)
        >>> [(found.severity, found.rule) for found in report.findings]
        [('alarm', 'cannot_learn')]
    """
    if not is_lightning(model, LightningModule) and (step is None or optimizer is None):
        raise TypeError(f"model of type {type(model).__name__} has no training_step: pass step= and optimizer=")
    if not isinstance(optimizer, Optimizer | None):
        raise TypeError(f"optimizer must be a single Optimizer; got {type(optimizer).__name__}")
    drawn: Any = getattr(data, "generator", None)
    state = drawn.get_state() if isinstance(drawn, torch.Generator) else None
    with same_random_state():
        batches = list(itertools.islice(data, 1))
    if state is not None:
        drawn.set_state(state)
    if not batches:
        raise ValueError("data has no batches.")
    [batch] = batches
    with undisturbed(model):
        optimizers = _optimizers_of(model) if optimizer is None else [optimizer]
    if is_lightning(model, LightningModule):
        batch = model.on_before_batch_transfer(batch, 0)
        batch = model.on_after_batch_transfer(model.transfer_batch_to_device(batch, model.device, 0), 0)
    trainer = _trainer_of(model) if is_lightning(model, LightningModule) else None
    return check_up(Setting(model, optimizers, step, trainer), batch, seconds)


def _trainer_of(pl_module: LightningModule) -> Trainer | None:
    try:
        return pl_module.trainer
    except RuntimeError:
        return None


def check_up(setting: Setting, batch: Any, seconds: float) -> CheckupReport:
    """Audit the step of a batch, then train a copy on it."""
    until = perf_counter() + seconds
    findings: list[Finding] = []
    tried: list[str] = []
    try:
        with undisturbed(setting.module, trainer=setting.trainer, is_whole_step=True):
            findings += audit(setting.module, batch, setting.loss)
    except CannotRunAgainError as why:
        tried.append(f"The step was not inspected: {why}.")
    found = experiment(setting, batch, until - perf_counter())
    findings = sorted([*findings, *found.findings], key=lambda finding: finding.severity != "alarm")
    return CheckupReport(tuple(findings), (*tried, *found.tried))


def _optimizers_of(model: Any) -> list[Optimizer]:
    """Return the optimizers that `configure_optimizers` gives, in whichever form that Lightning accepts."""
    configured = model.configure_optimizers()
    if isinstance(configured, dict):
        configured = configured["optimizer"]
    if configured is None:
        return []
    if isinstance(configured, tuple) and len(configured) == 2 and isinstance(configured[0], list | tuple):
        configured = configured[0]  # the second is the schedules
    if not isinstance(configured, list | tuple):
        configured = [configured]
    return [each["optimizer"] if isinstance(each, dict) else each for each in configured]
