"""`train_eval_gap`: the same layer speaks another language in validation."""

from collections.abc import Iterator

from hookboard.health.comparison import Comparison, Gap
from hookboard.health.rule import Rule
from hookboard.health.run import Run
from hookboard.health.verdict import Symptom

GAP = 1.0
"""Training and validation differ if in some layer the mean of the median channel lies this many deviations away, or if
the RMS differs by a factor of e (a choice: what a batch of 32 gives by chance is 0.2)."""

BEGINS = 0.25
"""The gap begins at the first layer, right before that one, where it is this large already (a choice)."""

FAR = 4.0
"""And if the difference is this many times that between two looks in training."""

SETTLED = 32
"""Steps before which running statistics are still far from what they follow."""


def train_eval_gap(run: Run) -> Iterator[Symptom]:
    """Where the outputs in validation begin to be unlike those in training at the same time.

    Running statistics lag behind while the learning rate is large, so that one evaluation proves nothing: it is an
    alarm if two in a row show it, up to the last layer.
    """
    found: list[Gap] = []
    for comparison in run.comparisons:
        begin = begin_of(comparison) if comparison.step >= SETTLED else None
        found = [] if begin is None else [*found, begin]
    if not found:
        return
    # The layer that was named first stays the one.
    gaps, first = run.comparisons[-1].gaps, found[0]
    largest = max(gaps, key=lambda gap: gap.size)
    is_alarm = len(found) > 1 and gaps[-1].size > GAP / 2
    evidence = (
        f"in validation its outputs have an RMS of {first.evaluation:.2g}, in training {first.training:.2g}, and its "
        f"channels lie {first.size:.1f} deviations away ({first.usual:.2g} between two looks in training); the largest "
        f"gap is {largest.size:.1f}, in {largest.layer.name}"
    )
    advice = "look at running statistics of norms (momentum, eval mode), at dropout, and at how validation data is made"
    yield Symptom(first.layer.name, evidence, advice, "alarm" if is_alarm else "note", largest.size)


def begin_of(comparison: Comparison) -> Gap | None:
    """The first layer of the stretch that leads to the first clear gap; None if there is none."""
    gaps = list(comparison.gaps)
    clear = next((i for i, gap in enumerate(gaps) if _is_far(gap, GAP)), None)
    if clear is None:
        return None
    while clear and _is_far(gaps[clear - 1], BEGINS):
        clear -= 1
    return gaps[clear]


def _is_far(gap: Gap, limit: float) -> bool:
    return gap.size > limit and not gap.size <= FAR * gap.usual


TRAIN_EVAL_GAP = Rule("train_eval_gap", train_eval_gap)
