"""Gradients under a GradScaler: the scale to divide them by, and the optimizers whose gradients overflowed."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from hookboard.base.messages import rank_zero_warn
from hookboard.base.ranks import local
from hookboard.base.torch_private import has_unscaled, parameters_in, scale_of, version_of
from hookboard.loops import Loop
from hookboard.measure import Readings, Table
from hookboard.model.layouts import stored
from hookboard.model.parameters import Weight
from hookboard.model.selection import named_submodules
from hookboard.model.sites import ROLES, Site


class LossScale:
    """Reads the scale of a GradScaler, and notes which optimizers overflow in a step.

    An optimizer overflows if one of its gradients is not finite before its step; the scaler then skips the step.

    Args:
        scaler: the GradScaler of the Trainer.
        owner: the callback's name, used in warnings.
    """

    def __init__(self, scaler: GradScaler, owner: str) -> None:
        self._scaler = scaler
        self._owner = owner
        self._unknown_is_said = False
        self._overflowed: dict[Optimizer, Tensor] = {}
        self._has_backward = False
        self._lacks_backward = False
        self._copied: tuple[Tensor, int, Tensor] | None = None
        """The scaler's scale, the version that was copied, and the copy."""

    def before_backward(self) -> Tensor | None:
        """Note that Lightning's backward pass begins, and return the scale of its loss, see `in_force`."""
        self._has_backward = True
        return self.in_force()

    @property
    def current(self) -> Tensor | None:
        """The scaler's own scale, shape (), which changes in place after a step; None before it has one."""
        return scale_of(self._scaler)

    def in_force(self) -> Tensor | None:
        """Return a copy of the current scale, shape (); None before the scaler has one.

        It is the same tensor until the scaler updates its scale.
        """
        current = self.current
        if current is None:
            return None
        version = version_of(current)
        if self._copied is None or self._copied[0] is not current or self._copied[1] != version:
            self._copied = current, version, current.detach().clone()
        return self._copied[2]

    def before_step(self, optimizer: Optimizer) -> Tensor | None:
        """Note whether a gradient of the optimizer is NaN or infinite.

        Returns:
            The scale that its gradients still carry, shape (); None if they are unscaled, or the scaler has no scale
            yet. Optimizers that unscale inside their own step, as fused ones do, have scaled gradients until then.
        """
        self._lacks_backward |= not self._has_backward
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients = [numbers for gradient in held if (numbers := stored(local(gradient))).numel()]
        if gradients:
            # The largest absolute value is not finite if any is not; nothing here waits for the device.
            largest = torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)
            earlier = self._overflowed.get(optimizer, torch.zeros_like(largest, dtype=torch.bool))
            self._overflowed[optimizer] = earlier | ~largest.isfinite()
        return None if has_unscaled(self._scaler, optimizer) else self.in_force()

    def send(
        self,
        table: Table,
        loop: Loop,
        weights: Mapping[str, Weight],
        along: Tensor | None = None,
    ) -> Callable[[], Readings]:
        """Call `Table.send`, and blank the gradients of the optimizers that overflowed.

        Args:
            table: has measured the gradients.
            loop: has the model and all optimizers.
            weights: the watched weights by name.
            along: see `Table.send`.

        Returns:
            What `Table.send` returns, but gradients that overflowed keep only their counts; so do gradients of
            outputs and inputs if it is not known whether they carry the scale.
        """
        holders = Holders.of(loop.model, loop.optimizers, weights)
        sent = table.send(self._flags(loop.optimizers, loop.device).float(), along)

        def arrived() -> Readings:
            readings = sent()
            *overflows, is_unknown = readings.flags
            if is_unknown:
                readings = self._without_unknown(readings)
            guilty = {number for number, flag in enumerate(overflows) if flag}
            return blank_overflowed(readings, guilty, holders) if guilty else readings

        return arrived

    def _without_unknown(self, readings: Readings) -> Readings:
        """Blank the gradients of outputs and inputs, which may carry the scale or not; warn the first time."""
        unknown = np.array([_is_of_call(site) for site in readings], bool)
        if len(readings.where(unknown).filled()) and not self._unknown_is_said:
            self._unknown_is_said = True
            rank_zero_warn(
                f"{self._owner}: an optimizer stepped under a GradScaler without Lightning's backward pass. It is "
                "unknown whether your own backward pass applied the scale, so grad_output and grad_input are NaN in "
                "such steps. Call self.manual_backward(loss) to measure them."
            )
        return readings.blanked(unknown)

    def _flags(self, optimizers: Sequence[Optimizer], device: torch.device) -> Tensor:
        """Return which optimizers have overflowed since the last call, shape (optimizers + 1,), bool, on `device`.

        The last element: whether one has stepped before any backward pass of Lightning. Then the user has called
        `backward`, and it is unknown whether that loss was scaled.
        """
        noted, self._overflowed = self._overflowed, {}
        unknown, self._has_backward, self._lacks_backward = self._lacks_backward, False, False
        never = torch.zeros((), dtype=torch.bool, device=device)
        overflows = [noted.get(optimizer, never).to(device) for optimizer in optimizers]
        return torch.stack([*overflows, never | unknown])


@dataclass(frozen=True)
class Holders:
    """Lookup tables from optimizers and modules to their parameters, taken at one step: both may change afterwards.

    Args:
        held: the ids of the parameters of each optimizer.
        modules: the ids of the parameters of each module by name, the model itself under "".
        parameters: the id of each watched parameter by name.
    """

    held: list[set[int]]
    modules: dict[str, set[int]]
    parameters: dict[str, int]

    @staticmethod
    def of(model: nn.Module, optimizers: Sequence[Optimizer], weights: Mapping[str, Weight]) -> "Holders":
        """Build the lookup tables from the current optimizers, modules and weights."""
        modules = {"": model, **dict(named_submodules(model))}
        return Holders(
            [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in optimizers],
            {name: {id(p) for p in parameters_in(module).values()} for name, module in modules.items()},
            {name: id(weight.parameters[0]) for name, weight in weights.items()},
        )

    def of_site(self, site: Site) -> set[int]:
        """Return the numbers of the optimizers that hold the parameter of a site, or a parameter of its module.

        If no optimizer holds any of the module's parameters, the nearest enclosing module counts that has one which is
        held; all optimizers if there is no such module. Empty for a parameter that no optimizer holds.
        """
        name = site.name
        if name in self.parameters:
            return {number for number, ids in enumerate(self.held) if self.parameters[name] in ids}
        while True:
            own = self.modules.get(name, set())
            holders = {number for number, ids in enumerate(self.held) if own & ids}
            if holders or not name:
                return holders or set(range(len(self.held)))
            name = name.rpartition(".")[0]


def blank_overflowed(readings: Readings, guilty: Set[int], holders: Holders) -> Readings:
    """Return the readings, with only counts left of the gradients whose optimizer has overflowed.

    Args:
        readings: readings of any role.
        guilty: the indices of the optimizers that have overflowed.
        holders: tells which optimizers hold the parameters of a module.
    """
    of_guilty = [ROLES[site.role].is_gradient and bool(holders.of_site(site) & guilty) for site in readings]
    return readings.blanked(np.array(of_guilty, bool), overflowed=True)


def _is_of_call(site: Site) -> bool:
    """Return True if the site is a gradient of a module's input or output, not of a parameter."""
    traits = ROLES[site.role]
    return traits.is_gradient and not traits.of_parameter
