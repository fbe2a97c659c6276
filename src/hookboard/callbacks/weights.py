"""What is measured of weights around an optimizer step: gradients before it, values and updates after it."""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from hookboard.parameters import Weight, stepped_by
from hookboard.recording import Recorder
from hookboard.sites import Role, Site

Part = Callable[[Tensor], Tensor]
"""Which part of a weight is measured, and of its gradient."""


def measure_gradients(recorder: Recorder, optimizer: Optimizer, weights: Mapping[str, Weight], part: Part) -> None:
    """Measure the gradients of the weights that this optimizer is about to update."""
    for name, weight in stepped_by(optimizer, weights).items():
        if weight.grad is not None:
            recorder.open(Site(name, "parameter_grad"))(part(weight.grad))


def keep_before(before: dict[str, Tensor], optimizer: Optimizer, weights: Mapping[str, Weight], part: Part) -> None:
    """Copy into `before`, by name, the weights that this optimizer is about to update."""
    for name, weight in stepped_by(optimizer, weights).items():
        # Of several steps in one batch the first decides what "before" is.
        if name not in before:
            before[name] = part(weight.in_use).clone()


def measure_weights(
    recorder: Recorder,
    weights: Mapping[str, Weight],
    before: Mapping[str, Tensor],
    roles: Collection[Role],
    part: Part,
) -> None:
    """Measure the weights after the steps of all optimizers, and how far these have moved them.

    Args:
        recorder: measures.
        weights: the watched weights by name.
        before: copies of the weights before the steps, by name; those that no optimizer held are not there.
        roles: `parameter`, and `parameter_update` for the updates.
        part: the part of each weight that is measured, the same as in `before`.
    """
    for name, weight in weights.items():
        after = part(weight.in_use)
        if "parameter" in roles:
            recorder.open(Site(name, "parameter"))(after)
        if "parameter_update" in roles and name in before:
            recorder.open(Site(name, "parameter_before"))(before[name])
            recorder.open(Site(name, "parameter_update"))(_difference(after, before[name]))


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """In float32 at least: two neighbouring half-precision weights differ by less than their type resolves."""
    wide = torch.promote_types(after.dtype, torch.float32)
    return after.to(wide) - before.to(wide)
