"""Tries whether what the model learns from some batches tells the targets of others from exchanged ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hookboard.auditing import Finding
from hookboard.experiments.attempt import OutOfTimeError, Recipe, apart, copied, losses_of, train
from hookboard.experiments.targets import all_equal, exchanged, pairs_in

MIN_SAMPLES = 64
"""Fewer samples tell nothing of the others (a choice)."""

EXCHANGES = 19
"""How many times targets are exchanged at random: targets that are random are the best of 20 in one case of 20."""

PARTS = 4
"""After how many equal parts of the steps the other batches are looked at: a model that overfits is best in between."""

MEMORIZED, ENOUGH = 0.3, 0.9
"""The loss on the batches that are trained on must fall by the first part, or the trial says nothing; it ends at the
second (choices)."""


class LabelTrial(NamedTuple):
    """What was learned from some batches, by the loss on others.

    Args:
        steps: how many were taken.
        trained_on: the number of batches that were trained on.
        memorized: the part of the loss on these that is gone.
        right: the loss on the others.
        exchanged: the same with the targets of the others exchanged between samples, for each exchange.
    """

    steps: int
    trained_on: int
    memorized: float
    right: float
    exchanged: tuple[float, ...]

    @property
    def does_tell(self) -> bool:
        """Whether the targets fit better than each exchange of them."""
        return self.right < min(self.exchanged)


def tried_labels(recipe: Recipe, batches: Sequence[Any], factor: float, count: int) -> LabelTrial | None:
    """Train on the first half of the batches, and look at the other half; None if the budget is used up before.

    It ends as soon as the targets of the others are told from exchanged ones.

    Args:
        recipe: how.
        batches: pairs of inputs and targets; no sample is in two of them.
        factor: what the rates are multiplied by.
        count: optimizer steps at most.
    """
    if len(batches) < 2 or sum(len(pair.inputs) for pair in pairs_in(batches)) < MIN_SAMPLES:
        return None
    mine, others = batches[: len(batches) // 2], batches[len(batches) // 2 :]
    others_exchanged = [exchanged(others, seed) for seed in range(EXCHANGES)]
    trial = None
    try:
        with apart(recipe, batches):
            before, optimizer = _mean(losses_of(recipe, mine)), copied(recipe, factor)
            for part in range(1, PARTS + 1):
                train(recipe, mine, optimizer, count // PARTS)
                after, right = _mean(losses_of(recipe, mine)), _mean(losses_of(recipe, others))
                wrong = [_mean(losses_of(recipe, some)) for some in others_exchanged]
                memorized = (before - after) / max(abs(before), 1e-12)
                trial = LabelTrial(part * (count // PARTS), len(mine), memorized, right, tuple(wrong))
                if trial.does_tell or not memorized < ENOUGH:
                    return trial
    except OutOfTimeError:
        return None
    return trial


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def judge_labels(trial: LabelTrial, *, is_stuck: bool) -> list[Finding]:
    """Say that the targets fit no better than exchanged ones: a note, as a hard task needs more than some batches.

    Args:
        trial: of `tried_labels`.
        is_stuck: whether the loss has not fallen in the training either: then it is an alarm.
    """
    if trial.does_tell or not trial.memorized >= MEMORIZED:
        return []
    return [
        Finding(
            "labels",
            "alarm" if is_stuck else "note",
            "",
            f"tried on a copy: {said_of_labels(trial)}: the targets fit no better than exchanged ones",
            "look at some samples with their targets"
            + ("" if is_stuck else "; a hard task, or random targets in a trial, shows the same"),
        )
    ]


def said_of_labels(trial: LabelTrial) -> str:
    """Say what was measured."""
    return (
        f"after {trial.steps} steps on {trial.trained_on} batches, which take {trial.memorized:.0%} off their loss, "
        f"the loss on others is {trial.right:.3g}, and {min(trial.exchanged):.3g} to {max(trial.exchanged):.3g} with "
        "their targets exchanged between samples"
    )


def judge_equal(batches: Sequence[Any]) -> list[Finding]:
    """Find that all targets are the same class."""
    pairs = pairs_in(batches)
    count = sum(len(pair.targets) for pair in pairs)
    if not pairs or pairs[0].targets.is_floating_point() or pairs[0].targets.ndim > 1 or not all_equal(pairs):
        return []
    if count < MIN_SAMPLES:
        return []
    return [
        Finding(
            "labels",
            "alarm",
            "",
            f"all {count} targets of {len(batches)} batches are {pairs[0].targets[0]}: a model learns from them to "
            "give that always",
            "look at how the labels are made, and whether the data set is shuffled",
        )
    ]
