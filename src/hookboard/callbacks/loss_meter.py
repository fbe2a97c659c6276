"""`LossMeter`: the loss of every optimizer step, read from the device only when a step is due."""

from collections import deque

import torch
from torch import Tensor

from hookboard.health import Loss

MOST = 4096
"""How many losses are kept between two reads."""


class LossMeter:
    """Keeps what each backward pass started from, on the device; the parts of one optimizer step are added up."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, int, Tensor]] = deque(maxlen=MOST)

    def add(self, step: int, batch_idx: int, loss: Tensor) -> None:
        """Keep a loss.

        Args:
            step: the optimizer step it belongs to.
            batch_idx: the index of its batch.
            loss: shape () or (1,), unscaled; with accumulation divided by the number of batches, as Lightning has it.
        """
        self._parts.append((step, batch_idx, loss.detach().reshape(())))

    def take(self) -> list[Loss]:
        """The losses since the last call, in the order of steps; the host waits for the device once."""
        parts, self._parts = list(self._parts), deque(maxlen=MOST)
        if not parts:
            return []
        values = torch.stack([loss.double() for _, _, loss in parts]).tolist()
        losses: dict[int, Loss] = {}
        for (step, batch_idx, _), value in zip(parts, values, strict=True):
            before = losses.get(step)
            if before is None:
                losses[step] = Loss(step, batch_idx, value)
            else:
                backwards = before.backwards + (batch_idx == before.batch_idx)
                losses[step] = Loss(step, batch_idx, before.value + value, backwards)
        return list(losses.values())
