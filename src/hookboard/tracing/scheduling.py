"""Finds faults in the schedules of a fit before its first step."""

import copy
import functools
import inspect
import math
import sysconfig
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookboard.base.either_lightning import PACKAGES
from hookboard.health.rule import Finding, Rule

MAX_RATES = 2000
"""At most about this many rates of a schedule are looked at, evenly spread over the fit (a choice)."""

DEFAULT_EPOCHS = 1000
"""Lightning's default of `max_epochs`. Such a fit is meant to be stopped early, so its length is unknown."""

MAX_SCHEDULED_STEPS = 20_000
"""A longer schedule is not judged, because each of its steps has to be taken (a choice: about half a second)."""

ZERO_RATE = 1e-6
"""A learning rate below this share of the largest one counts as 0 (a choice)."""

ZERO_RATE_SHARE_ALARM = 0.5
"""A schedule is an alarm if the rate is 0 in a larger share of its steps (a choice)."""

PEAK_SHARE_NOTE, PEAK_SHARE_ALARM = 0.5, 0.1
"""A schedule that is stepped once an epoch is a note, or an alarm, if its rate reaches at most this share of what it
would reach if stepped in each batch (choices)."""


def findings_of_schedules(trainer: Trainer, pl_module: LightningModule) -> Iterator[Finding]:
    """Yield findings on the learning rates that schedules will give, before their first step.

    They are on schedules that are stepped too often or too seldom: the rate is 0 in most steps, stays far below its
    peak. None in a resumed fit, whose earlier rates are unknown, and for schedules that call code of the user or are
    stepped by it.
    """
    package = pl_module.lr_scheduler_step.__module__.partition(".")[0]
    is_stepped_by_lightning = pl_module.automatic_optimization and package in PACKAGES
    if trainer.global_step or not is_stepped_by_lightning:
        return
    for config in trainer.lr_scheduler_configs:
        count = _steps_of(trainer, config)
        if count is None or isinstance(config.scheduler, ReduceLROnPlateau) or not calls_no_user(config.scheduler):
            continue
        rates = list(scheduled_rates(config.scheduler, count, keep=[pl_module, trainer]))
        peak, zero = max(rates), _share_of_zeros(rates)
        if zero > ZERO_RATE_SHARE_ALARM and math.isfinite(peak) and count > 1:
            last = max(i for i, rate in enumerate(rates) if rate > ZERO_RATE * peak) if peak > 0 else 0
            end = round((last + 1) / len(rates) * count)
            unit = "steps" if config.interval == "step" else "epochs"
            yield Finding(
                "",
                f"{type(config.scheduler).__name__} sets the learning rate to 0 in {zero:.0%} of the {count:,} {unit} "
                f"of this fit: the rate peaks at {peak:.3g}, and is 0 after {end:,} {unit if end > 1 else unit[:-1]}",
                _for_epochs(trainer, pl_module, config)
                + f"set the schedule's length to {count:,} {unit} (its interval is {config.interval!r})",
                "alarm",
                rule="schedule",
            )
        else:
            yield from _never_at_its_peak(trainer, pl_module, config, peak, count)


SCHEDULE = Rule("schedule", None, of="step")


def calls_no_user(scheduler: object) -> bool:
    """Return True if a schedule, all inside it and each function that it calls come from a library."""
    waiting, seen = [scheduler], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, LRScheduler):
            if not (_is_installed(type(part)) and _is_installed(type(part).step)):
                return False
            waiting += [held for name, held in vars(part).items() if name != "optimizer"]
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
        elif isinstance(part, functools.partial):
            waiting += [part.func, *part.args, *part.keywords.values()]
        elif isinstance(part, MethodType):
            waiting += [part.__func__, part.__self__]
        elif callable(part):
            # What a library has wrapped, or holds in an object or a closure, may be a function of the user.
            inner = inspect.unwrap(part)
            is_class = isinstance(inner, type)
            if not _is_installed(inner if is_class or isinstance(inner, FunctionType) else type(inner)):
                return False
            if not is_class:
                waiting += getattr(inner, "__dict__", {}).values()
                waiting += (cell.cell_contents for cell in getattr(inner, "__closure__", None) or ())
    return True


def _is_installed(function: Any) -> bool:
    """Return True if a class or a function belongs to the standard library or an installed package."""
    try:
        file = inspect.getfile(function)  # not its `__module__`, which `functools.wraps` copies
    except (TypeError, OSError):  # built in, of a notebook, or not made by Python code, as mocks are
        return False
    path = Path(file)
    return Path(sysconfig.get_path("stdlib")) in path.parents or not {"site-packages", "dist-packages"}.isdisjoint(
        path.parts
    )


def _never_at_its_peak(
    trainer: Trainer, pl_module: LightningModule, config: Any, peak: float, count: int
) -> Iterator[Finding]:
    """Yield a finding for a schedule that is stepped in each epoch, and would reach a far higher rate in each batch."""
    steps = trainer.estimated_stepping_batches  # fewer than batches where their gradients accumulate
    if config.interval != "epoch" or not 1 < steps <= MAX_SCHEDULED_STEPS:
        return
    steps = int(steps)
    rates = list(scheduled_rates(config.scheduler, steps, keep=[pl_module, trainer]))
    highest = max(rates)
    if peak <= PEAK_SHARE_NOTE * highest and math.isfinite(highest):
        every = max(1, steps // MAX_RATES)
        yield Finding(
            "",
            f"{type(config.scheduler).__name__} is stepped once per epoch, and this fit has {count:,} "
            f"epoch{'s' * (count > 1)}, so the rate never exceeds {peak:.3g}; with a step after each of the "
            f"{steps:,} optimizer steps, the rate would reach {highest:.3g} after {rates.index(highest) * every:,}",
            "if the scheduler counts steps, return {'scheduler': ..., 'interval': 'step'} from configure_optimizers; "
            "otherwise shorten its warm-up, which is longer than the fit",
            "alarm" if peak <= PEAK_SHARE_ALARM * highest else "note",
            rule="schedule",
        )


def _share_of_zeros(rates: Sequence[float]) -> float:
    return sum(rate <= ZERO_RATE * max(rates) for rate in rates) / len(rates)


def _for_epochs(trainer: Trainer, pl_module: LightningModule, config: Any) -> str:
    """Return advice to step a schedule once in an epoch if it is stepped more often and would be sound then, or ""."""
    epochs = trainer.max_epochs or -1
    if config.interval != "step" or not 1 < epochs <= MAX_SCHEDULED_STEPS:
        return ""
    if _share_of_zeros(list(scheduled_rates(config.scheduler, epochs, keep=[pl_module, trainer]))) > 0:
        return ""
    return f"set interval='epoch' if the scheduler should step once in each of the {epochs:,} epochs; otherwise "


def _steps_of(trainer: Trainer, config: Any) -> int | None:
    """Return how often a scheduler steps in the fit; None if unknown, never, or too often to try."""
    total: float
    is_bounded = trainer.max_steps not in (-1, None)
    if trainer.max_epochs == DEFAULT_EPOCHS and not is_bounded:
        return None
    if config.interval == "epoch":
        total = math.inf if trainer.max_epochs in (-1, None) else trainer.max_epochs
        if is_bounded and math.isfinite(trainer.num_training_batches):
            in_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
            total = min(total, math.ceil(trainer.max_steps / in_epoch))
        elif is_bounded:
            return None
    else:
        total = trainer.max_steps if trainer.max_epochs in (-1, None) else trainer.estimated_stepping_batches
    if not math.isfinite(total):
        return None
    count = int(total) // max(1, config.frequency)
    return count if 1 <= count <= MAX_SCHEDULED_STEPS else None


@contextmanager
def _silent() -> Iterator[None]:
    """Ignore all warnings; others still come once, which `catch_warnings` would undo."""
    here = ("ignore", None, Warning, None, 0)
    warnings.filters.insert(0, here)  # type: ignore[attr-defined]  # a list
    try:
        yield
    finally:
        warnings.filters.remove(here)  # type: ignore[attr-defined]  # a list


def scheduled_rates(scheduler: LRScheduler, count: int, keep: list[object]) -> Iterator[float]:
    """Yield the current learning rate and those that a scheduler will give next, found by stepping a copy of it.

    Of several parameter groups the largest rate is taken. If there are more than MAX_RATES, only every n-th is given.

    Args:
        scheduler: it and its optimizer are not changed.
        count: how many rates, the current one included.
        keep: objects that the copy shares with the original, such as the model to which a lambda of it refers.
    """
    options = [
        {name: value for name, value in group.items() if name != "params"} for group in scheduler.optimizer.param_groups
    ]
    stand_in = torch.optim.SGD([{"params": [torch.zeros(1, device="cpu")]} for _ in options], lr=0.0)
    for group, given in zip(stand_in.param_groups, options, strict=True):
        group.update(copy.deepcopy(given))
    memo = {id(scheduler.optimizer): stand_in, **{id(value): value for value in keep}}
    spare = copy.deepcopy(scheduler, memo)
    every = max(1, count // MAX_RATES)

    def rates() -> Iterator[float]:
        for _ in range(count):
            yield max(float(group["lr"]) for group in stand_in.param_groups)
            spare.step()

    with _silent():
        yield from islice(rates(), 0, None, every)
