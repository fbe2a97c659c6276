"""Tests whether targets can be learned: whether a model trained on some batches fits the targets of others."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hookboard.auditing import Targets
from hookboard.experiments.attempt import OutOfTimeError, Recipe, copy_of_optimizer, losses_of, restoring, train
from hookboard.experiments.targets import all_equal, exchanged, of_batches, samples_in
from hookboard.health import Finding

MIN_SAMPLES = 64
"""With fewer samples nothing is said of the targets (a choice)."""

EXCHANGES = 19
"""How many random permutations the targets are compared with: random targets fit best of 20 in one case of 20."""

EVALUATIONS = 4
"""How many times in a trial the held-out batches are evaluated: a model that overfits fits them best in between."""

MIN_MEMORIZED, ENOUGH_MEMORIZED = 0.3, 0.9
"""The share of the loss on the training batches that must be gone before anything is said, and at which a trial ends
(choices)."""


class LabelTrial(NamedTuple):
    """The losses of a model that was trained on one half of the batches.

    Args:
        steps: how many optimizer steps it took.
        trained_on: the number of batches in that half.
        memorized: the share of the loss on them that is gone.
        right: the loss on the held-out batches.
        exchanged: the loss on the held-out batches with permuted targets, for each permutation.
    """

    steps: int
    trained_on: int
    memorized: float
    right: float
    exchanged: tuple[float, ...]

    @property
    def fits_targets(self) -> bool:
        """Whether the held-out targets have a lower loss than every permutation of them."""
        return self.right < min(self.exchanged)


def tried_labels(
    recipe: Recipe, batches: Sequence[Any], targets: Targets, factor: float, count: int
) -> LabelTrial | None:
    """Train on the first half of the batches, and evaluate the other half with right and with permuted targets.

    Training ends early once the right targets fit best, or the first half is memorized. The model is restored.

    Args:
        recipe: how the model is trained.
        batches: at least two; no sample is in two of them.
        targets: their targets.
        factor: what the learning rates are multiplied by.
        count: how many optimizer steps at most.

    Returns:
        The last evaluation; None if the time is used up.
    """
    mine, others = batches[: len(batches) // 2], batches[len(batches) // 2 :]
    others_exchanged = [exchanged(others, targets, seed) for seed in range(EXCHANGES)]
    trial = None
    try:
        with restoring(recipe, batches):
            before, optimizer = _mean(losses_of(recipe, mine)), copy_of_optimizer(recipe, factor)
            for part in range(1, EVALUATIONS + 1):
                train(recipe, mine, optimizer, count // EVALUATIONS)
                after, right = _mean(losses_of(recipe, mine)), _mean(losses_of(recipe, others))
                wrong = [_mean(losses_of(recipe, some)) for some in others_exchanged]
                memorized = (before - after) / max(abs(before), 1e-12)
                trial = LabelTrial(part * (count // EVALUATIONS), len(mine), memorized, right, tuple(wrong))
                if trial.fits_targets or not memorized < ENOUGH_MEMORIZED:
                    return trial
    except OutOfTimeError:
        return None
    return trial


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def judge_labels(trial: LabelTrial) -> list[Finding]:
    """Return one note if the model fits its half, but the held-out targets no better than permuted ones; else []."""
    if trial.fits_targets or not trial.memorized >= MIN_MEMORIZED:
        return []
    return [
        Finding(
            "",
            f"tried on a copy: {said_of_labels(trial)}: the targets fit no better than exchanged ones",
            "look at some samples with their targets; a hard task, or random targets in a trial, shows the same",
            rule="labels",
        )
    ]


def said_of_labels(trial: LabelTrial) -> str:
    """Return the losses of a trial as a clause for a report."""
    return (
        f"after {trial.steps} steps on {trial.trained_on} batches, which take {trial.memorized:.0%} off their loss, "
        f"the loss on others is {trial.right:.3g}, and {min(trial.exchanged):.3g} to {max(trial.exchanged):.3g} with "
        "their targets exchanged between samples"
    )


def judge_equal(batches: Sequence[Any], targets: Targets) -> list[Finding]:
    """Return one alarm if all targets of at least MIN_SAMPLES samples are the same class number; otherwise []."""
    count = sum(samples_in(batches, targets))
    for path in targets.classes if count >= MIN_SAMPLES else ():
        labels = of_batches(batches, path)
        if not labels[0].is_floating_point() and labels[0].ndim == 1 and all_equal(labels):
            return [
                Finding(
                    "",
                    f"all {count} targets of {len(batches)} batches are {labels[0][0]}: a model learns from them to "
                    "give that always",
                    "look at how the labels are made, and whether the data set is shuffled",
                    "alarm",
                    rule="labels",
                )
            ]
    return []
