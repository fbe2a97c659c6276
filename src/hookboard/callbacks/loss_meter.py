"""`LossMeter`: keeps the losses of all steps; those on a device are not read before the next look."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.base.ranks import Ranks
from hookboard.base.torch_private import version_of
from hookboard.health import Loss, WorstRows
from hookboard.measure import needs_host

MOST_LOSSES = 4096
"""How many losses are kept between two looks: the latest ones."""

LARGE_STORAGE = 4096
"""Of a loss that lies in more bytes than this, a copy is kept: the loss itself would keep all of them."""


class LossPart(NamedTuple):
    """What one backward pass started from.

    Args:
        step: its optimizer step.
        batch_idx: the index of its batch.
        loss: the loss; a tensor if it is on a device; None if it is not known any more.
        version: what the version counter of that tensor was.
        worst: see `Loss.worst`.
    """

    step: int
    batch_idx: int
    loss: float | Tensor | None
    version: int = 0
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
        for step, batch_idx, loss, _, worst in self.parts:
            value = next(on_host) if isinstance(loss, Tensor) else loss
            if value is None or (self.may_overflow and math.isinf(value)):
                unknown.add(step)
                continue
            before = losses.get(step)
            if before is None:
                losses[step] = Loss(step, batch_idx, value, worst=worst)
            else:
                backwards = before.backwards + (batch_idx == before.batch_idx)
                losses[step] = Loss(step, batch_idx, before.value + value, backwards, before.worst or worst)
        return [loss for step, loss in losses.items() if step not in unknown]


class LossMeter:
    """Keeps the loss of each backward pass until the next look; the device has nothing to do before."""

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
        if type(loss) is not Tensor or loss.untyped_storage().nbytes() > LARGE_STORAGE:
            loss = loss.clone()
        self._parts.append(LossPart(step, batch_idx, loss.reshape(()), version_of(loss)))
        return None

    def note_rows(self, worst: WorstRows) -> None:
        """Note which rows of the batch have the largest loss, for the loss that was added last."""
        if self._parts:
            self._parts.append(self._parts.pop()._replace(worst=worst))

    def take(self) -> Losses:
        """Return the losses since the last call and forget them: at most the last MOST_LOSSES.

        If there are as many, those of the oldest step are left out, because some of them may be lost.
        """
        parts, self._parts = _known(self._parts), deque(maxlen=MOST_LOSSES)
        if len(parts) == MOST_LOSSES:  # of the first step some may be lost: a part of its loss is not its loss
            parts = [part for part in parts if part.step != parts[0].step]
        return Losses(parts, _stacked(parts), self._may_overflow)


def _known(parts: Iterable[LossPart]) -> list[LossPart]:
    """Return the parts, without the losses that were changed since, or overwritten by a replayed CUDA graph.

    Such a graph writes the losses of all steps to one address, where only the last one is left.
    """
    addresses = [_address(part.loss) if isinstance(part.loss, Tensor) else None for part in parts]
    last = {address: part[:2] for address, part in zip(addresses, parts, strict=True)}
    return [
        part
        if not isinstance(part.loss, Tensor)
        or (address is not None and last[address] == part[:2] and version_of(part.loss) == part.version)
        else part._replace(loss=None)
        for address, part in zip(addresses, parts, strict=True)
    ]


def _address(loss: Tensor) -> int | None:
    """Return where a loss lies; None if a CUDA graph of torch.compile has taken its memory back."""
    try:
        return loss.data_ptr() or id(loss)  # 0 is that of a wrapper, such as a DTensor
    except RuntimeError:
        return None


def _stacked(parts: Sequence[LossPart]) -> Tensor | None:
    """Stack the losses that are tensors, shape (k,), in float64 if the first one's device has it; None if none are."""
    there = [part.loss for part in parts if isinstance(part.loss, Tensor)]
    if not there:
        return None
    wide = torch.float32 if needs_host(there[0].device) else torch.float64
    return torch.stack([loss.to(there[0].device) for loss in there]).to(wide)


def mean_over_ranks(ranks: Ranks, losses: Sequence[Loss]) -> list[Loss]:
    """Return the loss of each step, averaged over the ranks that have it: its gradient is what all follow.

    Of more than MOST_LOSSES steps only the last ones are returned. Where ranks are at different batches of a step, it
    has the later one.

    Args:
        ranks: the processes, all of which must call this.
        losses: the losses of this rank since the last call.
    """
    own = [loss.step for loss in losses]
    ends = [-min(own, default=math.inf), max(own, default=-math.inf)]
    before, last = ranks.max(torch.tensor(ends, dtype=torch.float64, device="cpu")).tolist()
    if -before > last:  # no rank has any
        return []
    first = max(int(-before), int(last) - MOST_LOSSES + 1)
    sums, most = torch.zeros(2, int(last) - first + 1, 2, dtype=torch.float64, device="cpu")
    for loss in losses:
        if loss.step >= first:
            sums[loss.step - first] = sums.new_tensor([loss.value, 1])
            most[loss.step - first] = sums.new_tensor([loss.batch_idx, loss.backwards])
    sums, most = ranks.sum(sums), ranks.max(most)
    return [
        Loss(first + place, int(batch_idx), total / count, int(backwards))
        for place, ((total, count), (batch_idx, backwards)) in enumerate(zip(sums.tolist(), most.tolist(), strict=True))
        if count
    ]


def with_rows(losses: Sequence[Loss], worst: Sequence[Mapping[int, WorstRows]]) -> list[Loss]:
    """Return the losses of all ranks, each with the rows of the rank on which one has the largest loss.

    Args:
        losses: the losses, averaged over the ranks.
        worst: for each rank, optimizer step to the rows of its batch.
    """
    found = dict[int, WorstRows]()
    for rank, of_steps in enumerate(worst):
        for step, rows in of_steps.items():
            if step not in found or max(rows.losses) > max(found[step].losses):
                found[step] = replace(rows, rank=rank)
    return [replace(loss, worst=found.get(loss.step)) for loss in losses]
