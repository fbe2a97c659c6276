"""`LossMeter`: the loss of every optimizer step, read from the device only when a step is due."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookboard.health import Loss
from hookboard.measure import needs_host
from hookboard.ranks import Ranks

MOST = 4096
"""How many losses of backward passes are kept between two looks; of more, those of the last steps."""

Part = tuple[int, int, float | Tensor]
"""What one backward pass started from: its optimizer step, the index of its batch, the loss."""


@dataclass(frozen=True)
class Losses:
    """The losses from one look to the next.

    Args:
        parts: of each backward pass, in order.
        waiting: those that are on a device, shape (k,); they come to the host with what else is measured.
    """

    parts: Sequence[Part]
    waiting: Tensor | None

    def read(self, arrived: Sequence[float]) -> list[Loss]:
        """The loss of each optimizer step, in order; `arrived` are those of `waiting`, on the host."""
        on_host, losses = iter(arrived), dict[int, Loss]()
        for step, batch_idx, loss in self.parts:
            value = next(on_host) if isinstance(loss, Tensor) else loss
            before = losses.get(step)
            if before is None:
                losses[step] = Loss(step, batch_idx, value)
            else:
                backwards = before.backwards + (batch_idx == before.batch_idx)
                losses[step] = Loss(step, batch_idx, before.value + value, backwards)
        return list(losses.values())


class LossMeter:
    """Keeps what each backward pass started from, on the device; the parts of one optimizer step are added up."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque(maxlen=MOST)

    def add(self, step: int, batch_idx: int, loss: Tensor) -> float | None:
        """Keep a loss; returns its value, unless the host would have to wait for it, or it is not kept.

        Args:
            step: the optimizer step it belongs to.
            batch_idx: the index of its batch.
            loss: unscaled; with accumulation divided by the number of batches, as Lightning has it. What has several
                numbers, or a complex one, as manual optimization may start from, is no loss, and is not kept.
        """
        if loss.numel() != 1 or loss.is_complex():
            return None
        if loss.is_cpu:
            value: float = loss.item()
            self._parts.append((step, batch_idx, value))
            return value
        # A copy: the loss may be one number of a large tensor, or change later.
        self._parts.append((step, batch_idx, loss.detach().reshape(()).clone()))
        return None

    def parts(self, again: tuple[int, int] | None) -> dict[str, Any]:
        """What a fit that is continued from a checkpoint must know: the parts so far.

        Args:
            again: the step and the index of a batch that is left out; None for none.
        """
        kept = [part for part in self._parts if part[:2] != again]
        on_host = [None if isinstance(loss, Tensor) else loss for _, _, loss in kept]
        return {"places": [part[:2] for part in kept], "on_host": on_host, "waiting": _together(kept)}

    def go_on(self, parts: Mapping[str, Any]) -> None:
        """Begin with these parts."""
        arrived = iter([] if parts["waiting"] is None else parts["waiting"].tolist())
        losses = [next(arrived) if loss is None else loss for loss in parts["on_host"]]
        places = parts["places"]
        self._parts = deque(((*place, loss) for place, loss in zip(places, losses, strict=True)), maxlen=MOST)

    def take(self) -> Losses:
        """The losses since the last call; nothing here waits for the device."""
        parts, self._parts = list(self._parts), deque(maxlen=MOST)
        if len(parts) == MOST:  # of the first step some may be lost: a part of its loss is not its loss
            parts = [part for part in parts if part[0] != parts[0][0]]
        return Losses(parts, _together(parts))


def _together(parts: Sequence[Part]) -> Tensor | None:
    """The losses that are on a device, shape (k,); None if there is none."""
    there = [loss for _, _, loss in parts if isinstance(loss, Tensor)]
    if not there:
        return None
    wide = torch.float32 if needs_host(there[0].device) else torch.float64
    return torch.stack([loss.to(there[0].device, wide) for loss in there])


def mean_over_ranks(ranks: Ranks, losses: Sequence[Loss]) -> list[Loss]:
    """The loss of each step over the data of all ranks: the mean of theirs, whose gradient all of them follow.

    Every rank must call this.

    Args:
        ranks: the processes.
        losses: of this rank, of the steps since the last call.
    """
    first = min((loss.step for loss in losses), default=math.inf)
    last = max((loss.step for loss in losses), default=-math.inf)
    ends = torch.tensor([[-first], [last]], dtype=torch.float64, device="cpu")
    first, last = (ranks.merge(ends, lambda parts: parts.amax(0))[:, 0] * torch.tensor([-1, 1], device="cpu")).tolist()
    if first > last:  # no rank has any
        return []
    first, last = max(int(first), int(last) - MOST + 1), int(last)
    table = torch.zeros(last - first + 1, 4, dtype=torch.float64, device="cpu")
    for loss in losses:
        if loss.step >= first:
            table[loss.step - first] = table.new_tensor([loss.value, 1, loss.batch_idx, loss.backwards])
    return [
        Loss(first + place, int(batch_idx), total / count, int(backwards))
        for place, (total, count, batch_idx, backwards) in enumerate(ranks.merge(table, _summed).tolist())
        if count
    ]


def _summed(parts: Tensor) -> Tensor:
    """The sum and the number of losses of several ranks; the rest is that of the first rank that has one."""
    first = (parts[:, :, 1] > 0).long().argmax(0)
    rest = parts[first, torch.arange(parts.shape[1], device=parts.device), 2:]
    return torch.cat([parts[:, :, :2].sum(0), rest], dim=1)
