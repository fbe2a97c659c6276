"""`LossMeter`: keeps the losses of all steps, which are not read before the next look."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.health.look import Loss, WorstRows

MOST_LOSSES = 4096
"""How many losses are kept between two looks: the latest ones."""


class LossPart(NamedTuple):
    """The loss that one backward pass started from."""

    step: int
    batch_idx: int
    loss: Tensor  # shape (), on its device
    may_overflow: bool  # a GradScaler may have made it infinite; if it is, its step counts as unknown
    worst: WorstRows | None = None


class LossMeter:
    """Keeps the loss of each backward pass until the next look; the host waits for none of them before."""

    def __init__(self) -> None:
        self._parts: deque[LossPart] = deque(maxlen=MOST_LOSSES)

    def add(self, step: int, batch_idx: int, loss: Tensor, scale: Tensor | None = None) -> float | None:
        """Keep a loss and return its value; None if the host would have to wait for it, or if it is not kept."""
        # Manual optimization may start from such a tensor.
        if loss.numel() != 1 or loss.is_complex():
            return None
        may_overflow = scale is not None and loss.dtype is torch.float16
        # A copy: the loss may be part of a large tensor, or be overwritten, as by the next replay of a CUDA graph.
        loss = loss.detach().reshape(()).clone() if scale is None else loss.detach().reshape(()) / scale
        self._parts.append(LossPart(step, batch_idx, loss, may_overflow))
        return loss.item() if loss.is_cpu else None

    def note_rows(self, worst: WorstRows | None) -> None:
        """Note which rows of the batch have the largest loss, if any are known, for the loss that was added last."""
        if self._parts:
            self._parts.append(self._parts.pop()._replace(worst=worst))

    def take(self) -> tuple[list[LossPart], Tensor | None]:
        """Return and forget the losses kept since the last call, with their numbers, shape (k,); None without any."""
        parts = [*self._parts]
        self._parts.clear()
        return parts, torch.stack([part.loss.to(parts[0].loss.device) for part in parts]) if parts else None


def summed(parts: Sequence[LossPart], numbers: Sequence[float]) -> list[Loss]:
    """Return the summed loss of each optimizer step in order, without steps that have an unknown part."""
    losses, unknown = dict[int, Loss](), set[int]()
    for part, value in zip(parts, numbers, strict=True):
        before = losses.get(part.step)
        if part.may_overflow and math.isinf(value):
            unknown.add(part.step)
        elif before is None:
            losses[part.step] = Loss(part.step, part.batch_idx, value, worst=part.worst)
        else:
            backwards = before.backwards + (part.batch_idx == before.batch_idx)
            worst = before.worst or part.worst
            # With accumulation Lightning has divided each by the number of batches.
            losses[part.step] = Loss(part.step, part.batch_idx, before.value + value, backwards, worst)
    return [loss for step, loss in losses.items() if step not in unknown]
