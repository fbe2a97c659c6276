"""`StaleGradients`: detects an optimizer that steps with gradients of its previous step."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.base.either_lightning import is_lightning
from hookboard.base.ranks import local
from hookboard.base.torch_private import computing_plainly, version_of
from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import Place
from hookboard.tracing.user_code import is_of_library, user_frame

SAMPLED_PARAMETERS = 8
"""About this many parameters of each optimizer are looked at (a choice): `zero_grad` clears all or none."""

WATCHED_STEPS = 4
"""How many steps of each optimizer are watched (a choice): the fault shows from the second one on."""


STALE_GRADIENTS = Rule("stale_gradients", None, of="step", gives="alarm")


@dataclass
class _Watched:
    """The state of the detection for one optimizer.

    Args:
        optimizer: the optimizer.
        steps: how often the optimizer has stepped.
        backwards: how many backward passes began since its last step.
        left: sampled parameters whose gradient was not cleared since its last step.
        is_decided: whether the optimizer is no longer watched.
    """

    optimizer: Optimizer
    steps: int = 0
    backwards: int = 0
    left: "list[_Left]" = field(default_factory=list)
    is_decided: bool = False


class _Left(NamedTuple):
    """What an optimizer's step left as the gradient of a parameter, seen when the next backward pass begins.

    Args:
        parameter: the parameter.
        identity: the `id` of the gradient. The tensor is not referenced, which would keep its memory after `zero_grad`.
        version: its version counter after the latest backward pass. It grows with each change in place.
        is_any: shape (), bool: whether it had an element other than 0 before each backward pass so far. It stays on
            the device, to avoid waiting.
        is_added_to: whether a backward pass has added to it.
    """

    parameter: Tensor
    identity: int
    version: int
    is_any: Tensor
    is_added_to: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the parameter still has this gradient, perhaps changed in place."""
        gradient = self.parameter.grad
        return gradient is not None and id(gradient) == self.identity and version_of(gradient) >= self.version

    @property
    def is_untouched(self) -> bool:
        """Whether the parameter still has this gradient, unchanged."""
        gradient = self.parameter.grad
        return gradient is not None and self.is_there and version_of(gradient) == self.version


class StaleGradients:
    """Detects that nothing clears the gradients between two steps of an optimizer.

    Its methods are to be called at each training batch. It samples a few gradients in the first WATCHED_STEPS steps.

    Args:
        model: the model.
        optimizers: the optimizers of the Trainer.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._watched = {id(optimizer): _Watched(optimizer) for optimizer in optimizers}
        self._stale: list[tuple[str, Place, int]] = []
        """Of each optimizer that stepped with stale gradients in the current batch: class, user's line, gradients."""

    @property
    def is_over(self) -> bool:
        """Whether no optimizer is watched any more, and all that was found has been reported."""
        return not self._stale and all(watched.is_decided for watched in self._watched.values())

    @computing_plainly
    def before_backward(self) -> None:
        """Note that a backward pass begins: sample what the last step left, or drop what was cleared since."""
        for watched in self._watched.values():
            watched.backwards += 1
            if watched.backwards == 1:
                watched.left = _sampled(watched.optimizer) if watched.steps and not watched.is_decided else []
                continue
            if not all(left.is_untouched for left in watched.left):
                watched.left = []
            # `grad.data.zero_()` clears a gradient without a change of its version.
            watched.left = [
                left._replace(is_any=left.is_any & local(grad).any())
                for left in watched.left
                if _is_plain(grad := left.parameter.grad)
            ]

    def after_backward(self) -> None:
        """Record the versions of the sampled gradients again, because a backward pass may have added to them."""
        for watched in self._watched.values():
            held = [(left, left.parameter.grad) for left in watched.left]
            watched.left = [
                _Left(
                    left.parameter, id(grad), version_of(grad), left.is_any, left.is_added_to or not left.is_untouched
                )
                for left, grad in held
                if grad is not None
            ]

    def before_step(self, optimizer: Optimizer) -> None:
        """Note that an optimizer is about to step, and whether its gradients are stale; `end_batch` reports it."""
        watched = self._watched.get(id(optimizer))
        if watched is None or watched.is_decided:
            return
        # What was put in its place since, as in federated averaging, is no sum. It may have been clipped.
        is_stale = any(left.is_added_to and left.is_there and bool(left.is_any) for left in watched.left)
        watched.steps, watched.backwards, watched.left = watched.steps + 1, 0, []
        watched.is_decided = is_stale or watched.steps > WATCHED_STEPS
        if is_stale:
            count = sum(p.grad is not None for group in optimizer.param_groups for p in group["params"])
            self._stale.append((type(optimizer).__name__, _place_of_step(self._model), count))

    def end_batch(self) -> Finding | None:
        """Return one alarm that names all optimizers which stepped with stale gradients in the batch, or None."""
        stale, self._stale = self._stale, []
        if not stale:
            return None
        steps = " and ".join(f"{kind} steps {place}" for kind, place, _ in stale)
        count = " and ".join(f"{count}" for *_, count in stale)
        of_each = " on each optimizer" if len(stale) > 1 else ""
        return Finding(
            "",
            f"{steps} with gradients that still contain the previous step's, because nothing cleared them ({count} "
            f"parameter{'s' * (count != '1')})",
            f"call zero_grad(){of_each} before the backward pass",
            "alarm",
            rule="stale_gradients",
        )


def _sampled(optimizer: Optimizer) -> list[_Left]:
    """Return the present gradients of a few of an optimizer's parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    some = parameters[:: max(1, len(parameters) // SAMPLED_PARAMETERS)]
    return [_Left(p, id(g), version_of(g), local(g).any()) for p in some if _is_plain(g := p.grad) and g.numel()]


def _is_plain(gradient: Tensor | None) -> TypeGuard[Tensor]:
    """Return True for a dense tensor that is not nested."""
    return gradient is not None and gradient.layout is torch.strided and not gradient.is_nested


def _place_of_step(model: nn.Module) -> Place:
    """Return the user's line that calls `step()`; under automatic optimization where they define `optimizer_zero_grad`.

    Its file is "" if that is no code of the user.
    """
    if is_lightning(model, LightningModule) and model.automatic_optimization:
        function = type(model).optimizer_zero_grad
        path = inspect.getfile(function)
        return Place("", "" if is_of_library(path) else path, function.__code__.co_firstlineno)
    frame = user_frame(inspect.currentframe())
    return Place("", "", 0) if frame is None else Place("", frame.f_code.co_filename, frame.f_lineno)
