"""`StaleGradients`: notices an optimizer that steps with gradients to which those of the step before were added."""

import inspect
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from hookboard.auditing.program import Place, is_of_library
from hookboard.auditing.rules import Finding
from hookboard.ranks import local
from hookboard.torch_private import version_of

SAMPLED = 8
"""So many parameters of each optimizer are looked at (a choice): `zero_grad` clears all or none."""

WATCHED_STEPS = 4
"""So many steps of each optimizer are watched (a choice): the fault is there from the second one on."""


@dataclass
class _Watched:
    """What is known of one optimizer.

    Args:
        steps: how often it has stepped.
        backwards: how many backward passes there were since.
        left: parameters whose gradient was not cleared since, with that gradient and its version.
        is_decided: whether it is no longer watched.
    """

    steps: int = 0
    backwards: int = 0
    left: list[tuple[Tensor, "weakref.ref[Tensor]", int]] = field(default_factory=list)
    is_decided: bool = False


class StaleGradients:
    """Call its methods at each training batch; it reads a few gradients in the first steps only.

    Args:
        model: the LightningModule.
        optimizers: those of the Trainer.
    """

    def __init__(self, model: LightningModule, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._watched = {id(optimizer): _Watched() for optimizer in optimizers}

    @property
    def is_over(self) -> bool:
        """Whether nothing is watched any more."""
        return all(watched.is_decided for watched in self._watched.values())

    def before_backward(self) -> None:
        """Call before each backward pass that Lightning makes."""
        for watched in self._watched.values():
            watched.backwards += 1
            if not all(_is_untouched(*left) for left in watched.left):
                watched.left = []

    def after_backward(self) -> None:
        """Call after it: it may have added to the gradients, which is no clearing."""
        for watched in self._watched.values():
            watched.left = [(parameter, gradient, _version_of(gradient)) for parameter, gradient, _ in watched.left]

    def before_step(self, optimizer: Optimizer) -> Finding | None:
        """Call before an optimizer steps. Returns what is wrong, once for each optimizer."""
        watched = self._watched.get(id(optimizer))
        if watched is None or watched.is_decided:
            return None
        is_stale = bool(watched.left) and watched.backwards > 0
        watched.steps, watched.backwards, watched.left = watched.steps + 1, 0, []
        watched.is_decided = is_stale or watched.steps > WATCHED_STEPS
        return self._finding(optimizer) if is_stale else None

    def end_batch(self, optimizers: Sequence[Optimizer]) -> None:
        """Call after each batch, with the optimizers of the Trainer."""
        for optimizer in optimizers:
            watched = self._watched.get(id(optimizer))
            if watched is None or watched.is_decided or not watched.steps or watched.backwards or watched.left:
                continue
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            some = parameters[:: max(1, len(parameters) // SAMPLED)]
            watched.left = [(p, weakref.ref(p.grad), version_of(p.grad)) for p in some if _is_nonzero(p.grad)]

    def _finding(self, optimizer: Optimizer) -> Finding:
        count = sum(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        place, kind = _place_of_step(self._model), type(optimizer).__name__
        return Finding(
            "stale_gradients",
            "alarm",
            "",
            f"{kind} steps at {place} with gradients to which those of its step before were added: nothing cleared "
            f"them in between ({count} parameters)",
            "call zero_grad() before the backward pass",
        )


def _is_nonzero(gradient: Tensor) -> bool:
    # Of a gradient that is split over processes the own part is read: the others do not take part.
    return gradient.layout is torch.strided and bool(local(gradient).any())


def _is_untouched(parameter: Tensor, gradient: "weakref.ref[Tensor]", version: int) -> bool:
    held = gradient()
    return held is not None and parameter.grad is held and version_of(held) == version


def _version_of(gradient: "weakref.ref[Tensor]") -> int:
    held = gradient()
    return -1 if held is None else version_of(held)


def _place_of_step(model: LightningModule) -> Place:
    """Return the user's line that makes the step, or else where the clearing of gradients is overridden."""
    if model.automatic_optimization:
        function = type(model).optimizer_zero_grad
        path = inspect.getfile(function)
        return Place("", "" if is_of_library(path) else path, function.__code__.co_firstlineno)
    frame = inspect.currentframe()
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return Place("", "", 0) if frame is None else Place("", frame.f_code.co_filename, frame.f_lineno)
