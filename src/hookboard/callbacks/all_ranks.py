"""`of_all_ranks`: the losses and the NaN or Inf of all ranks, in place of those of one."""

from collections.abc import Sequence
from dataclasses import replace

from hookboard.base.ranks import Ranks
from hookboard.health.look import Loss
from hookboard.health.rules.numerics import Nonfinite


def of_all_ranks(
    ranks: Ranks, losses: Sequence[Loss], events: Sequence[Nonfinite]
) -> tuple[list[Loss], list[Nonfinite]]:
    """Return the mean loss of each step, and the first NaN or Inf of each step, over all ranks.

    Args:
        ranks: the processes, all of which must call this.
        losses: the losses of this rank since the last call.
        events: the NaN or Inf that this rank has met since then.
    """
    everyones = ranks.gather((losses, events))
    return mean_losses([losses for losses, _ in everyones]), first_events([events for _, events in everyones])


def mean_losses(everyones: Sequence[Sequence[Loss]]) -> list[Loss]:
    """Return the loss of each step, averaged over the ranks that have it: its gradient is what all follow.

    Where ranks are at different batches of a step, it has the later one; and the rows of the batch in which one has the
    largest loss.
    """
    of_steps: dict[int, list[Loss]] = {}
    for rank, losses in enumerate(everyones):
        for loss in losses:
            worst = None if loss.worst is None else replace(loss.worst, rank=rank)
            of_steps.setdefault(loss.step, []).append(replace(loss, worst=worst))
    means = []
    for step, losses in sorted(of_steps.items()):
        rows = [loss.worst for loss in losses if loss.worst is not None]
        worst = max(rows, key=lambda each: max(each.losses), default=None)
        value = sum(loss.value for loss in losses) / len(losses)
        batch_idx, backwards = max(loss.batch_idx for loss in losses), max(loss.backwards for loss in losses)
        means.append(Loss(step, batch_idx, value, backwards, worst))
    return means


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
