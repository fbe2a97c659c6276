"""`ranks_differ`: weights that should be the same on all ranks and are not."""

from collections.abc import Iterator, Sequence

from hookboard.base.messages import listed
from hookboard.health.look import Apart
from hookboard.health.rule import Finding, Rule
from hookboard.health.run import Run

MOST_NAMED = 8
"""Of more ranks with the same weight only the number is said (a choice)."""

MOST_DIGITS = 9
"""The most digits of norms, if fewer would not tell them apart (a choice)."""


def ranks_differ(run: Run) -> Iterator[Finding]:
    """Report weights that have been the same on all ranks, or get the same gradients there, and differ."""
    if not run.now.apart:
        return
    first, *others = run.now.apart
    more = f"; so do {len(others)} other weights" if others else ""
    advice = "give all ranks the weights of rank 0, and look for what changes them on some ranks alone"
    gradients = "; its gradients are the same on all ranks" if first.has_same_gradients else ""
    if first.has_same_gradients is False:
        gradients = ", and so do its gradients"
        advice = (
            "average the gradients over the ranks: call the DistributedDataParallel module, not the model inside it, "
            "and leave no_sync() before the last backward pass of a step"
        )
    evidence = f"{first.weight} differs between ranks{gradients}: its norm is {_norms(first)}{more}"
    module = first.weight.rpartition(".")[0]
    yield Finding(module, evidence, advice, "alarm", len(run.now.apart), is_root=True, is_hard=True)


def _norms(apart: Apart) -> str:
    """Return the norm on each group of ranks, as in "5.91 on ranks 0 and 2, 20.3 on rank 1"."""
    for digits in range(3, MOST_DIGITS + 1):
        norms = [f"{norm:.{digits}g}" for _, norm in apart.groups]
        if len({*norms}) == len(norms):
            break
    return listed((f"{norm} on {_named(ranks)}" for norm, (ranks, _) in zip(norms, apart.groups, strict=True)), 3)


def _named(ranks: Sequence[int]) -> str:
    *others, last = map(str, ranks)
    if not others:
        return f"rank {last}"
    return f"{len(ranks)} ranks" if len(ranks) > MOST_NAMED else f"ranks {', '.join(others)} and {last}"


RANKS_DIFFER = Rule(
    "ranks_differ",
    ranks_differ,
    about="weights that were the same on all ranks, or get the same gradients there, and are not the same",
    gives="alarm",
    at_once=True,
)
