"""`of_all_ranks`: the losses and the NaN or Inf of all ranks, in place of those of one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from hookboard.base.ranks import Ranks
from hookboard.health.look import Loss, WorstRows
from hookboard.health.rules.numerics import Nonfinite


def of_all_ranks(
    ranks: Ranks, losses: Sequence[Loss], events: Sequence[Nonfinite]
) -> tuple[list[Loss], list[Nonfinite]]:
    """Return the mean loss of each step, with its worst rows, and the first NaN or Inf of each step, over all ranks.

    Args:
        ranks: the processes, all of which must call this.
        losses: the losses of this rank since the last call.
        events: the NaN or Inf that this rank has met since then.
    """
    worst = {loss.step: loss.worst for loss in losses if loss.worst is not None}
    means = mean_over_ranks(ranks, losses)
    if not ranks.is_any(bool(events or worst)):
        return means, []
    everyones = ranks.gather((events, worst))
    return with_rows(means, [worst for _, worst in everyones]), first_events([events for events, _ in everyones])


def mean_over_ranks(ranks: Ranks, losses: Sequence[Loss]) -> list[Loss]:
    """Return the loss of each step, averaged over the ranks that have it: its gradient is what all follow.

    Where ranks are at different batches of a step, it has the later one.
    """
    own = {loss.step: loss for loss in losses}
    steps = sorted(ranks.union(own))
    if not steps:
        return []
    numbers = [
        (loss.value, 1, loss.batch_idx, loss.backwards) if (loss := own.get(step)) else (0,) * 4 for step in steps
    ]
    rows = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    sums, most = ranks.sum(rows[:, :2]).tolist(), ranks.max(rows[:, 2:]).tolist()
    return [
        Loss(step, int(batch_idx), total / count, int(backwards))
        for step, (total, count), (batch_idx, backwards) in zip(steps, sums, most, strict=True)
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


def first_events(everyones: Sequence[Sequence[Nonfinite]]) -> list[Nonfinite]:
    """Return the first event of each step, of those of all ranks.

    As each rank has other batches, the evidence of an event that depends on the batch begins with the rank.
    """
    named = [
        event if event.during in ("start", "optimizer") else replace(event, evidence=f"Rank {rank}: {event.evidence}")
        for rank, events in enumerate(everyones)
        for event in events
    ]
    firsts: dict[int, Nonfinite] = {}
    for event in sorted(named, key=lambda event: event.order):
        firsts.setdefault(event.step, event)
    return list(firsts.values())
