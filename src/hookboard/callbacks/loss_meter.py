"""`LossMeter`: keeps the losses of all steps; those on a device are not read before the next look."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.health.look import Loss, WorstRows

MOST_LOSSES = 4096
"""How many losses are kept between two looks: the latest ones."""


class LossPart(NamedTuple):
    """What one backward pass started from.

    Args:
        step: its optimizer step.
        batch_idx: the index of its batch.
        loss: the loss; a tensor if it is on a device.
        worst: see `Loss.worst`.
    """

    step: int
    batch_idx: int
    loss: float | Tensor
    worst: WorstRows | None = None


@dataclass(frozen=True)
class Losses:
    """The losses since the previous look.

    Args:
        parts: each backward pass, in order.
        waiting: the losses of `parts` that are tensors, stacked, shape (k,); None if there are none.
        may_overflow: True if a GradScaler may have made an infinite loss so; then that loss counts as unknown.
    """

    parts: Sequence[LossPart]
    waiting: Tensor | None
    may_overflow: bool = False

    def read(self, arrived: Sequence[float]) -> list[Loss]:
        """Return the summed loss of each optimizer step in order, without steps that have an unknown part.

        Args:
            arrived: the numbers that `waiting` holds.
        """
        on_host, losses, unknown = iter(arrived), dict[int, Loss](), set[int]()
        for step, batch_idx, loss, worst in self.parts:
            value = next(on_host) if isinstance(loss, Tensor) else loss
            if self.may_overflow and math.isinf(value):
                unknown.add(step)
            elif (before := losses.get(step)) is None:
                losses[step] = Loss(step, batch_idx, value, worst=worst)
            else:
                backwards = before.backwards + (batch_idx == before.batch_idx)
                losses[step] = Loss(step, batch_idx, before.value + value, backwards, before.worst or worst)
        return [loss for step, loss in losses.items() if step not in unknown]


class LossMeter:
    """Keeps the loss of each backward pass until the next look; the host waits for none of them before."""

    def __init__(self) -> None:
        self._parts: deque[LossPart] = deque(maxlen=MOST_LOSSES)
        self._may_overflow = False

    def add(self, step: int, batch_idx: int, loss: Tensor, scale: Tensor | None = None) -> float | None:
        """Keep a loss and return its value; None if the host would have to wait for it, or if it is not kept.

        Args:
            step: the optimizer step it belongs to.
            batch_idx: the index of its batch.
            loss: with accumulation divided by the number of batches, as Lightning does. A tensor with several
                elements or a complex one, which manual optimization may start from, is not kept.
            scale: of a GradScaler, to divide the loss by; shape ().
        """
        if loss.numel() != 1 or loss.is_complex():
            return None
        self._may_overflow |= scale is not None and loss.dtype is torch.float16
        loss = loss.detach() if scale is None else loss.detach() / scale
        if loss.is_cpu:
            value: float = loss.item()
            self._parts.append(LossPart(step, batch_idx, value))
            return value
        # A copy: the loss may be part of a large tensor, or be overwritten, as by the next replay of a CUDA graph.
        self._parts.append(LossPart(step, batch_idx, loss.reshape(()).clone()))
        return None

    def note_rows(self, worst: WorstRows) -> None:
        """Note which rows of the batch have the largest loss, for the loss that was added last."""
        if self._parts:
            self._parts.append(self._parts.pop()._replace(worst=worst))

    def take(self) -> Losses:
        """Return the losses since the last call and forget them: at most the last MOST_LOSSES."""
        parts, self._parts = [*self._parts], deque(maxlen=MOST_LOSSES)
        if len(parts) == MOST_LOSSES:  # of the first step some may be lost: a part of its loss is not its loss
            parts = [part for part in parts if part.step != parts[0].step]
        there = [part.loss for part in parts if isinstance(part.loss, Tensor)]
        waiting = torch.stack([loss.to(there[0].device) for loss in there]) if there else None
        return Losses(parts, waiting, self._may_overflow)
