"""`Decision`: whether, when and in which stages a callback watches a run, the same on all ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from hookboard.ranks import gathered
from hookboard.sites import Stage


@dataclass(frozen=True)
class Decision:
    """What a rank decides at the start of a run.

    Args:
        reason: why nothing can be watched; None if there is no such reason.
        every_n_steps: how many optimizer steps there are from one due step to the next.
        stages: the stages to watch.
        failure: says that the callback could not start, and why; None if it could.
    """

    reason: str | None
    every_n_steps: int
    stages: Sequence[Stage]
    failure: str | None = None


def agreed(mine: Decision) -> Decision:
    """The decision of rank 0, which alone writes. Every rank must call this, once for each callback.

    Ranks that decide for themselves wait for each other for ever: often rank 0 alone has a logger.

    Raises:
        ValueError: the callback could not start on another rank.
    """
    everyones = gathered(mine)
    failures = [f"on rank {rank}, {each.failure}" for rank, each in enumerate(everyones) if each.failure]
    if failures and not mine.failure:
        raise ValueError(failures[0])
    return everyones[0]
