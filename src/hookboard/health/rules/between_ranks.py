"""`ranks_differ`: weights that should be the same on all ranks and are not."""

from collections.abc import Iterator, Sequence

from hookboard.base.messages import listed
from hookboard.health.look import Apart
from hookboard.health.rule import Finding, Rule
from hookboard.health.run import Run

MOST_NAMED = 8
"""Of more ranks with the same weight only the number is said (a choice)."""

MOST_DIGITS = 9
"""The most digits of an RMS, if fewer would not tell them apart (a choice)."""


def ranks_differ(run: Run) -> Iterator[Finding]:
    """Report weights that have been the same on all ranks, or get the same gradients there, and differ."""
    if not run.now.apart:
        return
    first, *others = run.now.apart
    who = f"{len(others)} other weights differ" if others[1:] else "".join(f"{one.weight} differs" for one in others)
    and_others = f"; {who} too" if others else ""
    advice = "broadcast the weights from rank 0 to all ranks, and look for code that changes weights on some ranks only"
    gradients = ", but its gradients are the same on all ranks" if first.has_same_gradients else ""
    if first.has_same_gradients is False:
        gradients = ", and so do its gradients"
        advice = (
            "average the gradients over the ranks: call the DistributedDataParallel module, not the model inside it, "
            "and exit no_sync() before the last backward pass of a step"
        )
    evidence = f"{first.weight} differs between ranks{gradients}; the weight's RMS is {_rms(first)}{and_others}"
    module = first.weight.rpartition(".")[0]
    yield Finding(module, evidence, advice, "alarm", len(run.now.apart), is_hard=True)


def _rms(difference: Apart) -> str:
    for digits in range(3, MOST_DIGITS + 1):
        each = [f"{rms:.{digits}g}" for _, rms in difference.groups]
        if len({*each}) == len(each):
            break
    return listed((f"{rms} on {_named(ranks)}" for rms, (ranks, _) in zip(each, difference.groups, strict=True)), 3)


def _named(ranks: Sequence[int]) -> str:
    *others, last = map(str, ranks)
    if not others:
        return f"rank {last}"
    return f"{len(ranks)} ranks" if len(ranks) > MOST_NAMED else f"ranks {', '.join(others)} and {last}"


RANKS_DIFFER = Rule("ranks_differ", ranks_differ, gives="alarm", at_once=True)
