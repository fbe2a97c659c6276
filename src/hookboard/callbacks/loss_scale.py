"""Gradients under a GradScaler: the scale to divide them by, and whether they overflowed."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from hookboard.base.messages import rank_zero_warn
from hookboard.base.ranks import local
from hookboard.base.torch_private import has_unscaled, scale_of, version_of
from hookboard.measure.readings import Readings
from hookboard.measure.table import Table
from hookboard.model.layouts import stored
from hookboard.model.sites import ROLES, Site


class LossScale:
    """Reads the scale of a GradScaler, and notes whether an optimizer overflows in a step.

    An optimizer overflows if one of its gradients is not finite before its step; the scaler then skips the step.

    Args:
        scaler: the GradScaler of the Trainer.
        owner: the callback's name, used in warnings.
    """

    def __init__(self, scaler: GradScaler, owner: str) -> None:
        self._scaler = scaler
        self._owner = owner
        self._unknown_is_said = False
        self._overflowed: list[Tensor] = []
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
            self._overflowed.append(~largest.isfinite())
        return None if has_unscaled(self._scaler, optimizer) else self.in_force()

    def send(self, table: Table, device: torch.device, along: Tensor | None = None) -> Callable[[], Readings]:
        """Call `Table.send`, and blank the gradients of a step in which an optimizer overflowed.

        Args:
            table: has measured the gradients.
            device: that of the model.
            along: see `Table.send`.

        Returns:
            What `Table.send` returns, but gradients of a step that overflowed keep only their counts; so do those of
            outputs and inputs if it is not known whether they carry the scale.
        """
        noted, self._overflowed = self._overflowed, []
        unknown, self._has_backward, self._lacks_backward = self._lacks_backward, False, False
        never = torch.zeros((), dtype=torch.bool, device=device)
        has_overflowed = torch.stack([never, *(each.to(device) for each in noted)]).any()
        # The second: an optimizer has stepped before any backward pass of Lightning. Then the user has called
        # `backward`, and it is unknown whether that loss was scaled.
        flags = torch.stack([has_overflowed, never | unknown]).float()
        sent = table.send(flags, along)

        def arrived() -> Readings:
            readings = sent()
            overflowed, is_unknown = readings.flags
            readings = self._without_unknown(readings) if is_unknown else readings
            are_gradients = np.array([ROLES[site.role].is_gradient for site in readings], bool)
            return readings.blanked(are_gradients, overflowed=True) if overflowed else readings

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


def _is_of_call(site: Site) -> bool:
    """Return True if the site is a gradient of a module's input or output, not of a parameter."""
    traits = ROLES[site.role]
    return traits.is_gradient and not traits.of_parameter
