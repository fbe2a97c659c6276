"""`checkup`: audits one step of a model and trains a copy on its batch, without a Trainer."""

import itertools
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.base.either_lightning import is_lightning
from hookboard.experiments.experiment import CheckupReport, Setting, experiment
from hookboard.health.rule import Finding
from hookboard.model.state import same_random_state
from hookboard.tracing.optimizing import findings_of_optimizers
from hookboard.tracing.step import CannotRunAgainError, audit, undisturbed

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
    """Return the module's Trainer; None if it has none."""
    try:
        return pl_module.trainer
    except RuntimeError:
        return None


def check_up(setting: Setting, batch: Any, seconds: float) -> CheckupReport:
    """Audit the step of a batch and, with a Trainer, the optimizers; then train a copy on the batch."""
    until = perf_counter() + seconds
    module, trainer = setting.module, setting.trainer
    findings: list[Finding] = []
    tried: list[str] = []
    try:
        with undisturbed(module, trainer=trainer, is_whole_step=True):
            findings += audit(module, batch, setting.loss)
    except CannotRunAgainError as why:
        tried.append(f"The step was not inspected: {why}.")
    if trainer is not None:
        findings += findings_of_optimizers(setting.optimizers, module, None)
    found = experiment(setting, batch, until - perf_counter())
    findings = sorted([*findings, *found.findings], key=lambda finding: finding.severity != "alarm")
    return CheckupReport(tuple(findings), (*tried, *found.tried))


def _optimizers_of(model: Any) -> list[Optimizer]:
    """Return the optimizers that `configure_optimizers` gives, in whichever form that Lightning accepts."""
    given = model.configure_optimizers()
    if isinstance(given, dict):
        given = given["optimizer"]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], list | tuple):
        given = given[0]
    several = given if isinstance(given, list | tuple) else [] if given is None else [given]
    return [one["optimizer"] if isinstance(one, dict) else one for one in several]
