"""What can be wrong with the optimizers and schedulers of a fit, read before its first step."""

import copy
import math
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hookboard.auditing.rules import Finding
from hookboard.messages import listed
from hookboard.replay import undisturbed

MOST_RATES = 2000
"""A schedule is read for at most so many of its steps, evenly spread over the fit (a choice)."""

DEFAULT_EPOCHS = 1000
"""What Lightning takes for `max_epochs` where nothing is given: such a fit is meant to be stopped by hand."""

MOST_SCHEDULED = 20_000
"""A longer schedule is not read, because each of its steps has to be made (a choice: about half a second)."""

ZERO_RATE = 1e-6
"""A learning rate below this share of its largest counts as 0 (a choice)."""

MOSTLY = 0.5
"""A rate that is 0 for a larger share of the steps is an alarm (a choice)."""


def findings_of_optimizers(
    trainer: Trainer, pl_module: LightningModule, reached: Collection[str] | None
) -> Iterator[Finding]:
    """Find what the optimizers do not hold, what is frozen, and rates that are 0 most of the time.

    Args:
        trainer: the Trainer.
        pl_module: its LightningModule.
        reached: the names of the parameters that a gradient reaches; None if that is not known.

    Raises:
        CannotRunAgainError: to read a schedule its functions are called, and what they may change cannot be restored.
    """
    parameters = {name: p for name, p in pl_module.named_parameters() if not is_lazy(p)}
    if reached is not None:
        yield from _not_in_optimizer(trainer, parameters, reached)
    yield from _frozen(parameters)
    if trainer.lr_scheduler_configs and not trainer.global_step:  # of a fit that goes on, the rates of before are gone
        with undisturbed(pl_module, trainer=trainer, is_whole_step=True, is_strict=True):  # functions of the user run
            found = list(_schedule(trainer, pl_module))
        yield from found


def _not_in_optimizer(
    trainer: Trainer, parameters: Mapping[str, nn.Parameter], reached: Collection[str]
) -> Iterator[Finding]:
    held = {id(p) for optimizer in trainer.optimizers for group in optimizer.param_groups for p in group["params"]}
    trained = {name: p for name, p in parameters.items() if p.requires_grad and name in reached}
    left_out = [name for name, p in trained.items() if id(p) not in held]
    if not left_out or not held:
        return
    if not any(id(p) in held for p in parameters.values()):
        yield Finding(
            "not_in_optimizer",
            "alarm",
            "",
            f"the optimizers hold {len(held)} tensors, and none of them is a parameter of the model",
            "give configure_optimizers the parameters of the model that is trained, not those of an earlier copy",
        )
        return
    yield Finding(
        "not_in_optimizer",
        "note",
        "",
        f"{len(left_out)} of {len(trained)} trainable parameters that get a gradient are in no optimizer, and stay as "
        f"they are: {listed(left_out, 3)}",
        "give them to the optimizer, or set requires_grad=False on what shall stay as it is",
    )


def _frozen(parameters: Mapping[str, nn.Parameter]) -> Iterator[Finding]:
    frozen = {name: p.numel() for name, p in parameters.items() if not p.requires_grad}
    count = sum(p.numel() for p in parameters.values())
    if frozen and sum(frozen.values()) < count:
        yield Finding(
            "frozen",
            "note",
            "",
            f"{count - sum(frozen.values()):,} of {count:,} weights are trained; frozen are all of "
            f"{listed(_whole(parameters, frozen), 3)}",
            "nothing, if that is meant, as below an adapter; otherwise set requires_grad=True on the rest",
        )


def _whole(parameters: Mapping[str, nn.Parameter], frozen: Collection[str]) -> list[str]:
    """Return the fewest names of modules and parameters that cover what is frozen, and nothing else."""
    all_of = Counter(path for name in parameters for path in _paths_to(name))
    frozen_of = Counter(path for name in frozen for path in _paths_to(name))
    wholes = (next(path for path in _paths_to(name) if all_of[path] == frozen_of[path]) for name in frozen)
    return list(dict.fromkeys(wholes))


def _paths_to(name: str) -> Iterator[str]:
    """Yield the names of the modules around a parameter, from the outermost, and its own.

    >>> list(_paths_to("net.0.weight"))
    ['net', 'net.0', 'net.0.weight']
    """
    parts = name.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _schedule(trainer: Trainer, pl_module: LightningModule) -> Iterator[Finding]:
    for config in trainer.lr_scheduler_configs:
        count = _steps_of(trainer, config)
        if count is None or isinstance(config.scheduler, ReduceLROnPlateau):
            continue
        rates = list(rates_of(config.scheduler, count, keep=[pl_module, trainer]))
        peak = max(rates)
        zero = sum(rate <= ZERO_RATE * peak for rate in rates) / len(rates)
        if zero > MOSTLY and math.isfinite(peak):
            last = max(i for i, rate in enumerate(rates) if rate > ZERO_RATE * peak) if peak > 0 else 0
            end = round((last + 1) / len(rates) * count)
            unit = "steps" if config.interval == "step" else "epochs"
            yield Finding(
                "schedule",
                "alarm",
                "",
                f"{type(config.scheduler).__name__} makes the learning rate 0 in {zero:.0%} of the {count:,} {unit} of "
                f"this fit; it is largest with {peak:.3g}, and 0 after {end:,} {unit}",
                f"give the schedule the {count:,} {unit} that it is stepped; its interval is {config.interval!r}",
            )


def _steps_of(trainer: Trainer, config: Any) -> int | None:
    """Return how often a scheduler is stepped in the fit; None if that is not known, or cannot be read."""
    total: float
    if trainer.max_epochs == DEFAULT_EPOCHS and trainer.max_steps in (-1, None):
        return None
    if config.interval == "epoch":
        total = trainer.max_epochs or -1
        if trainer.max_steps not in (-1, None):
            return None
    else:
        total = trainer.max_steps if trainer.max_epochs in (-1, None) else trainer.estimated_stepping_batches
    if not math.isfinite(total) or total <= 1:
        return None
    count = int(total) // max(1, config.frequency)
    return count if 1 < count <= MOST_SCHEDULED else None


def rates_of(scheduler: LRScheduler, count: int, keep: list[object]) -> Iterator[float]:
    """Yield the largest learning rate of a scheduler's optimizer before each of its steps, some of many, from a copy.

    Args:
        scheduler: stays as it is.
        count: how many steps.
        keep: what is not copied, though functions of the scheduler may belong to it.
    """
    options = [
        {name: value for name, value in group.items() if name != "params"} for group in scheduler.optimizer.param_groups
    ]
    stand_in = torch.optim.SGD([{"params": [torch.zeros(1)]} for _ in options], lr=0.0)
    for group, given in zip(stand_in.param_groups, options, strict=True):
        group.update(copy.deepcopy(given))
    memo = {id(scheduler.optimizer): stand_in, **{id(value): value for value in keep}}
    spare = copy.deepcopy(scheduler, memo)
    every = max(1, count // MOST_RATES)

    def rates() -> Iterator[float]:
        for _ in range(count):
            yield max(float(group["lr"]) for group in stand_in.param_groups)
            spare.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from islice(rates(), 0, None, every)
