"""Gradients under a GradScaler: what multiplies them, and for which optimizers they have overflowed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.optim import Optimizer

from hookboard.ranks import local
from hookboard.recording import Reading
from hookboard.sites import Site
from hookboard.torch_private import has_unscaled, scale_of


class Scaling:
    """The scale of one fit, and the overflows of one step.

    An optimizer has overflowed if a gradient that it is about to use is not finite; the scaler then skips its step.

    Args:
        scaler: what scales the loss.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._overflowed: dict[Optimizer, Tensor] = {}

    def in_force(self) -> Tensor | None:
        """What the loss that is about to be back-propagated has been multiplied with, shape (); a copy."""
        scale = scale_of(self._scaler)
        return None if scale is None else scale.detach().clone()

    def before_step(self, optimizer: Optimizer) -> Tensor | None:
        """Note whether the optimizer overflows.

        Returns:
            What its gradients are still multiplied with: an optimizer that unscales inside its own step, as fused ones
            do, has them scaled until then. None where they are unscaled.
        """
        gradients = [local(p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            # The largest absolute value is not finite if any is not; nothing here waits for the device.
            largest = torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)
            earlier = self._overflowed.get(optimizer, torch.zeros_like(largest, dtype=torch.bool))
            self._overflowed[optimizer] = earlier | ~largest.isfinite()
        return None if has_unscaled(self._scaler, optimizer) else self.in_force()

    def overflows(self, optimizers: Sequence[Optimizer], device: torch.device) -> Tensor:
        """Whether each optimizer has overflowed since this was asked last, shape (optimizers,), on `device`."""
        noted, self._overflowed = self._overflowed, {}
        never = torch.zeros((), dtype=torch.bool, device=device)
        return torch.stack([noted.get(optimizer, never).to(device) for optimizer in optimizers])


def marked(
    readings: list[Reading],
    guilty: Sequence[Optimizer],
    optimizers: Sequence[Optimizer],
    modules: Mapping[str, nn.Module],
    parameters: Mapping[str, Parameter],
) -> list[Reading]:
    """The readings; those that belong to an optimizer which overflowed are marked, and have their counts alone.

    Args:
        readings: of gradients.
        guilty: the optimizers that have overflowed.
        optimizers: all of the fit.
        modules: all modules of the model by name, the model itself under "".
        parameters: the watched parameters by name.
    """
    held = {o: {id(p) for group in o.param_groups for p in group["params"]} for o in optimizers}
    return [_marked(r) if _holders(r.site, held, modules, parameters) & {*guilty} else r for r in readings]


def _holders(
    site: Site,
    held: Mapping[Optimizer, set[int]],
    modules: Mapping[str, nn.Module],
    parameters: Mapping[str, Parameter],
) -> set[Optimizer]:
    """The optimizers that hold a parameter, or those of a module.

    A module without parameters belongs to those of the modules around it; where none of them has any, to all.
    """
    name = site.name
    if name in parameters:
        return {optimizer for optimizer, ids in held.items() if id(parameters[name]) in ids}
    while True:
        own = {id(p) for p in modules[name].parameters()} if name in modules else set()
        holders = {optimizer for optimizer, ids in held.items() if own & ids}
        if holders or not name:
            return holders or set(held)
        name = name.rpartition(".")[0]


def _marked(reading: Reading) -> Reading:
    """The statistics of a step that overflowed: nobody shall take them for those of a step that was made."""
    values = {name: value if name.endswith("_count") else math.nan for name, value in reading.statistics.items()}
    values["nonfinite_count"] = reading.moments.nonfinite
    return dataclasses.replace(reading, statistics=values, histogram=None, overflowed=True)
