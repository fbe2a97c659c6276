"""`StaleGradients`: detects an optimizer that steps with gradients of its previous step."""

import inspect
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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
class _Left:
    """A gradient that the last step of an optimizer has left. The tensor is not kept: that would hold its memory.

    Args:
        parameter: whose gradient it is.
        identity: the `id` of the gradient.
        version: its version counter after the latest backward pass. It grows with each change in place.
        is_added_to: whether a backward pass has added to it.
    """

    parameter: Tensor
    identity: int
    version: int
    is_added_to: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the parameter still has this gradient, perhaps changed in place."""
        gradient = self.parameter.grad
        return gradient is not None and id(gradient) == self.identity and version_of(gradient) >= self.version

    @property
    def is_whole(self) -> bool:
        """Whether it is there, unchanged, and not all 0: `grad.data.zero_()` clears it without a new version."""
        gradient = self.parameter.grad
        if gradient is None or not self.is_there:
            return False
        return version_of(gradient) == self.version and bool(local(gradient).any())


class StaleGradients:
    """Detects that nothing clears the gradients between two steps of an optimizer.

    Its methods are to be called at each training batch. It samples a few gradients in the first WATCHED_STEPS steps.

    Args:
        model: the model.
        optimizers: the optimizers of the Trainer.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._watched = {id(optimizer): optimizer for optimizer in optimizers}
        self._steps = Counter[int]()
        self._left: dict[int, list[_Left]] = {}
        """Of each optimizer, since the first backward pass after its last step."""
        self._stale: list[tuple[str, Place, int]] = []
        """Of each optimizer that stepped with stale gradients in the current batch: class, user's line, gradients."""

    @property
    def is_over(self) -> bool:
        """Whether no optimizer is watched any more, and all that was found has been reported."""
        return not self._stale and not self._watched

    @computing_plainly
    def before_backward(self) -> None:
        """Note that a backward pass begins: sample what the last step left, or drop what was cleared since."""
        for key, optimizer in self._watched.items():
            left = self._left.get(key)
            if left is None:
                left = _sampled(optimizer) if self._steps[key] else []
            self._left[key] = [one for one in left if one.is_whole]

    def after_backward(self) -> None:
        """Note which of the sampled gradients the backward pass has added to."""
        for one in itertools.chain.from_iterable(self._left.values()):
            gradient = one.parameter.grad
            if one.is_there and gradient is not None:
                version = version_of(gradient)
                one.is_added_to |= version != one.version
                one.version = version

    def before_step(self, optimizer: Optimizer) -> None:
        """Note that an optimizer is about to step, and whether its gradients are stale; `end_batch` reports it."""
        key = id(optimizer)
        if key not in self._watched:
            return
        # What was put in its place since, as in federated averaging, is no sum. It may have been clipped.
        is_stale = any(one.is_added_to and one.is_there for one in self._left.pop(key, ()))
        self._steps[key] += 1
        if is_stale or self._steps[key] > WATCHED_STEPS:
            del self._watched[key]
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
    """Return the present gradients of a few of an optimizer's parameters, which are dense and not nested."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    some = ((p, p.grad) for p in parameters[:: max(1, len(parameters) // SAMPLED_PARAMETERS)])
    return [
        _Left(p, id(gradient), version_of(gradient))
        for p, gradient in some
        if gradient is not None and gradient.layout is torch.strided and not gradient.is_nested
    ]


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
