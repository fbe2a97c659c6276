"""`NanWatch`: which NaN or Inf of a run have been told."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hookboard.base.ranks import Ranks
from hookboard.health import Loss, Nonfinite
from hookboard.tracing import BlackBox, late_event


@dataclass
class NanWatch:
    """Reports each NaN or Inf once.

    Args:
        box: finds the first NaN or Inf in its step; None where nobody asks for that.
        finds_late: whether a loss that is not finite is reported when it is read.
        told: number of NaN or Inf that have been reported.
    """

    box: BlackBox | None = None
    finds_late: bool = False
    told: int = 0

    def new_events(self) -> list[Nonfinite]:
        """Return the events that the black box has added since the last call, oldest first."""
        events = [] if self.box is None else self.box.events[self.told :]
        self.told += len(events)
        return events

    def late_events(self, losses: Sequence[Loss]) -> list[Nonfinite]:
        """Return the event of the first loss that is not finite, once in a fit; [] where a black box looks for it."""
        event = late_event(losses) if self.finds_late and not self.told else None
        self.told += event is not None
        return [] if event is None else [event]


def firsts_over_ranks(ranks: Ranks, events: list[Nonfinite]) -> list[Nonfinite]:
    """Return the first event of each step, over all ranks. Every rank must call this.

    As each rank has other batches, the evidence of an event that depends on the batch begins with the rank.
    """
    named = [
        event
        if event.during in ("start", "optimizer")
        else replace(event, evidence=f"Rank {ranks.rank}: {event.evidence}")
        for event in events
    ]
    return _firsts(ranks.gather(named))


def _firsts(ranks: Sequence[Sequence[Nonfinite]]) -> list[Nonfinite]:
    firsts: dict[int, Nonfinite] = {}
    for event in sorted((event for events in ranks for event in events), key=lambda event: event.order):
        firsts.setdefault(event.step, event)
    return list(firsts.values())
