"""Gradients under a GradScaler: the scale to divide them by, and whether they overflowed."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from hookboard.base.ranks import local
from hookboard.base.torch_private import has_unscaled, scale_of, version_of
from hookboard.measure.readings import Readings
from hookboard.measure.table import Table
from hookboard.model.layouts import stored


class LossScale:
    """Reads the scale of a GradScaler, and notes whether an optimizer overflows in a step.

    An optimizer overflows if one of its gradients is not finite before its step; the scaler then skips the step.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._overflowed: list[Tensor] = []
        self._copied: tuple[Tensor, int, Tensor] | None = None
        """The scaler's scale, the version that was copied, and the copy."""

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
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients = [numbers for gradient in held if (numbers := stored(local(gradient))).numel()]
        if gradients:
            # The largest absolute value is not finite if any is not; nothing here waits for the device.
            largest = torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)
            self._overflowed.append(~largest.isfinite())
        return None if has_unscaled(self._scaler, optimizer) else self.in_force()

    def send(self, table: Table, device: torch.device, along: Tensor | None = None) -> Callable[[], Readings]:
        """Call `Table.send`; the gradients of a step in which an optimizer overflowed keep only their counts."""
        noted, self._overflowed = self._overflowed, []
        never = torch.zeros((), dtype=torch.bool, device=device)
        sent = table.send(torch.stack([never, *(each.to(device) for each in noted)]).any().float()[None], along)

        def arrived() -> Readings:
            readings = sent()
            return readings.as_overflowed() if readings.flags[0] else readings

        return arrived
