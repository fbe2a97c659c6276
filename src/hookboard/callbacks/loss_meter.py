"""`LossMeter`: the loss of every optimizer step, read from the device only when a step is due."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hookboard.health import Loss
from hookboard.measure import needs_host
from hookboard.recording import sent

MOST = 4096
"""How many losses are kept between two reads."""


class LossMeter:
    """Keeps what each backward pass started from, on the device; the parts of one optimizer step are added up."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, int, float | Tensor]] = deque(maxlen=MOST)

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

    def send(self) -> Callable[[], list[Loss]]:
        """What waits for the device, once, and gives the losses since the last call, in the order of steps.

        Any thread may call it.
        """
        parts, self._parts = list(self._parts), deque(maxlen=MOST)
        values = _sent([value for _, _, value in parts])

        def arrived() -> list[Loss]:
            losses: dict[int, Loss] = {}
            for (step, batch_idx, _), value in zip(parts, values(), strict=True):
                before = losses.get(step)
                if before is None:
                    losses[step] = Loss(step, batch_idx, value)
                else:
                    backwards = before.backwards + (batch_idx == before.batch_idx)
                    losses[step] = Loss(step, batch_idx, before.value + value, backwards)
            return list(losses.values())

        return arrived


def _sent(values: Sequence[float | Tensor]) -> Callable[[], list[float]]:
    """What gives all as numbers, in any thread, see `hookboard.recording.sent`."""
    waiting = [value for value in values if isinstance(value, Tensor)]
    device = waiting[0].device if waiting else None
    wide = torch.float32 if device is not None and needs_host(device) else torch.float64
    copy = sent(torch.stack([value.to(device, wide) for value in waiting])) if waiting else None

    def arrived() -> list[float]:
        known = iter(copy().tolist() if copy is not None else ())
        return [next(known) if isinstance(value, Tensor) else value for value in values]

    return arrived


def mean_over_ranks(ranks: Sequence[Sequence[Loss]]) -> list[Loss]:
    """The loss of each step over the data of all ranks: the mean of theirs, whose gradient all of them follow.

    >>> mean_over_ranks([[Loss(0, 0, 1.0), Loss(1, 1, 1.0)], [Loss(0, 0, 3.0), Loss(1, 1, 2.0)]])
    [Loss(step=0, batch_idx=0, value=2.0, backwards=1), Loss(step=1, batch_idx=1, value=1.5, backwards=1)]
    """
    by_step: dict[int, list[Loss]] = {}
    for losses in ranks:
        for loss in losses:
            by_step.setdefault(loss.step, []).append(loss)
    return [replace(all_[0], value=sum(x.value for x in all_) / len(all_)) for _, all_ in sorted(by_step.items())]
