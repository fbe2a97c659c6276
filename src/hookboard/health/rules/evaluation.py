"""Validation against training: `overfitting` and `train_eval_gap`."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from hookboard.health.losses import CLEAR_NOISE_DEVIATIONS
from hookboard.health.robust import median
from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.run import Run
from hookboard.health.stage_comparison import Gap, StageComparison

EVALUATIONS_MIN = 4
"""Number of validations before which nothing is said of their losses (a choice)."""

EVALUATION_RISE_SHARE = 0.25
"""The loss in validation has risen if it is this share above its lowest (a choice)."""

EVALUATION_RISE_OF_START = 0.05
"""The loss in validation must also have risen by this share of the first training losses: where next to nothing is
left, a rise does no harm (a choice)."""

EVALUATION_RISE_FACTOR = 2.0
"""The loss in validation must also have risen by this many times the median second difference between validations,
which is 1.7 standard deviations of their noise (a choice)."""


def overfitting(run: Run) -> Iterator[Finding]:
    """Report a loss in validation that rises while that in training falls."""
    known = [loss for loss in run.evaluation_losses if math.isfinite(loss.value)]
    if len(known) < EVALUATIONS_MIN or not run.losses.is_learning or _has_other_data(run):
        return
    values = [loss.value for loss in known]
    lowest = values.index(min(values))
    low, now = values[lowest], min(values[-2:])
    usual = median(np.abs(np.diff(values, 2)))
    enough = max(
        EVALUATION_RISE_SHARE * abs(low),
        EVALUATION_RISE_OF_START * abs(run.losses.start),
        EVALUATION_RISE_FACTOR * usual,
    )
    if now - low < enough:
        return
    when = f"its lowest, at step {known[lowest].step}"
    advice = (
        "stop at the lowest validation loss (EarlyStopping, the best checkpoint), or use more data, augmentation or "
        "weight decay"
    )
    if lowest == 0:
        when = f"the first validation, at step {known[0].step}"
        advice = (
            "check that the training targets match their inputs, including after augmentation, and that both data sets "
            "are preprocessed in the same way; otherwise use more data, a smaller model, or weight decay"
        )
    evidence = (
        f"the validation loss rose from {low:.3g} ({when}) to {values[-1]:.3g}, while the training loss fell from "
        f"{run.losses.first[0].value:.3g} to {run.losses.level():.3g}"
    )
    yield Finding("", evidence, advice, "note", size=(now - low) / max(abs(low), 1e-12), since=known[lowest].step)


def _has_other_data(run: Run) -> bool:
    """Return True if in the latest validation the gap begins at the very first layer: the data differ from training."""
    begin = begin_of(run.comparisons[-1]) if run.comparisons else None
    return begin is not None and begin.layer.name == run.comparisons[-1].gaps[0].layer.name


OVERFITTING = Rule("overfitting", overfitting, at_once=True, of="evaluation", gives="note")

GAP_NOTE = 1.0
"""Gap (`Gap.size`) in a layer by which training and validation differ (a choice: a batch of 32 gives 0.2 by chance)."""

GAP_BEGIN = 0.25
"""The gap begins at the first layer, right before the one with a clear gap, where it is this large (a choice)."""

GAP_FACTOR_OVER_TRAINING = 4.0
"""A gap must also be this many times that between two looks in training."""

OTHER_DATA_GAP = 4.0
"""The data is of another kind if the gap is this large at the input. Augmentation gives 0.3; the mean of a share p of
samples is at most sqrt((1 - p) / p) deviations from that of all: 1 for one of two equal classes, 3 for one of ten."""

STRANGE_STATISTICS_DISTANCE = 0.25
"""Distance from those of each look, and from averages over looks, above which running statistics are of other batches.
Healthy runs (tuning half) reach 0.21, where a momentum of 0.03 has not yet forgotten the initial 0 and 1."""

VALIDATION_HARM_SHARE = 0.25
"""Share of what training has gained that must be lost in validation to be harm (that of `RISE_SHARE_OF_GAIN`)."""

STEPS_BEFORE_SETTLED = 32
"""Number of steps before which running statistics are still far from what they follow."""


def train_eval_gap(run: Run) -> Iterator[Finding]:
    """Report the layer at which outputs in validation begin to differ from those in training, if that does harm."""
    found: list[Gap] = []
    for comparison in run.comparisons:
        begin = begin_of(comparison) if comparison.step >= STEPS_BEFORE_SETTLED else None
        found = [] if begin is None else [*found, begin]
    is_harmed = _is_validation_harmed(run)
    if not found or is_harmed is False:
        return
    now, largest = found[-1], max(run.comparisons[-1].gaps, key=lambda gap: gap.size)
    evidence = (
        f"its outputs have an RMS of {now.evaluation:.2g} in validation and {now.training:.2g} in training, and its "
        f"channels differ by {now.size:.1f} standard deviations ({now.usual:.2g} between two measurements in "
        f"training); the largest gap is {largest.size:.1f}, in {largest.layer.name}"
    )
    if is_harmed:
        evidence += (
            f"; the logged validation loss is {run.evaluation_losses[-1].value:.3g}, and the training loss "
            f"{run.losses.level():.3g} (if both are in the same units)"
        )
    is_large, origin, advice = _why(run, found)
    # Two evaluations in a row must show it. Running statistics that are on their way make it a note.
    is_alarm = len(found) > 1 and is_large and not _settle(run)
    severity: Severity = "alarm" if is_alarm else "note"
    yield Finding(now.layer.name, evidence + origin, advice, severity, largest.size, is_hard=is_alarm)


def _why(run: Run, found: Sequence[Gap]) -> tuple[bool, str, str]:
    """Return whether a gap may be the fault of what is named, what else was seen, as a clause, and advice."""
    gaps, first = run.comparisons[-1].gaps, found[-1]
    data = "check how the validation data is preprocessed"
    if run.comparisons[-1].has_other_weights:
        return (
            False,
            "; validation ran with other weights than training, as when their average is swapped in",
            ("check the weights that are swapped in for validation"),
        )
    if first.layer.name == gaps[0].layer.name:
        # Where the data differ, norms may hide it from later layers.
        moved = ", or the layer's weights have changed since" if first.layer.weights and run.has_blown_up else ""
        origin = f"; the gap begins at the input, so the validation data or its handling differs{moved}"
        advice = "check how both are preprocessed, including in training_step (each must be normalized exactly once)"
        advice += ", and then the class balance" if run.losses.is_of_classifier else ""
        return min(gap.size for gap in found) > OTHER_DATA_GAP, origin, advice
    if not may_differ(run, first):
        origin = "; this layer behaves the same in both, so either the weights change quickly or the data differ"
        return False, origin, data
    strange = _strange(list(run.comparisons)[-2:])
    origin = f"; the running statistics of {strange} match none of the recent batches" if strange else ""
    if strange and _settle(run):
        origin += ", but they have come closer since the previous validation"
    if strange is False:
        origin = "; the running statistics match recent batches, so either they lag behind or the data differs"
    advice = (
        f"check the running statistics of normalization layers (momentum, evaluation mode), dropout, and {data[6:]}"
    )
    return gaps[-1].size > GAP_NOTE / 2 and strange is not False, origin, advice


def _is_validation_harmed(run: Run) -> bool | None:
    """Return whether the loss in validation is far above that in training; None if it is not known."""
    known = [loss.value for loss in run.evaluation_losses[-2:]]
    if not known or not run.losses.is_known:
        return None
    lost, gained = min(known) - run.losses.level(), run.losses.start - run.losses.level()
    return not lost <= max(VALIDATION_HARM_SHARE * gained, CLEAR_NOISE_DEVIATIONS * run.losses.noise)


def _settle(run: Run) -> bool:
    """Return True if running statistics, as they get closer now, match before the run has become twice as long."""
    if len(run.comparisons) < 2:
        return False
    earlier, now = list(run.comparisons)[-2:]
    before = {norm.layer.name: norm.before for norm in earlier.norms}
    strange = [(one.before, before.get(one.layer.name, 0.0)) for one in now.norms]
    strange = [(left, had) for left, had in strange if left > STRANGE_STATISTICS_DISTANCE]
    if not strange or not all(left < had < math.inf for left, had in strange):
        return False
    times = max((left - STRANGE_STATISTICS_DISTANCE) / (had - left) for left, had in strange)
    return times * (now.step - earlier.step) <= now.step


def _strange(comparisons: Sequence[StageComparison]) -> str | Literal[False] | None:
    """Return the batch norm whose running statistics match training batches least; False if none, None if unknown."""
    known = [{norm.layer.name: norm for norm in comparison.norms} for comparison in comparisons]
    if not known or not all(known):
        return None
    distances = {
        name: norm.before
        for name, norm in known[-1].items()
        if all(name in one and one[name].before > STRANGE_STATISTICS_DISTANCE for one in known)
    }
    farthest = max(distances, key=lambda name: distances[name], default="")
    return farthest or False


def begin_of(comparison: StageComparison) -> Gap | None:
    """Return the gap of the layer where the first clear gap begins; None if no gap is clear."""
    gaps = list(comparison.gaps)
    # Where nothing tells what is usual, no gap is clear: nothing is above NaN.
    is_clear = [gap.size > GAP_NOTE and gap.size > GAP_FACTOR_OVER_TRAINING * gap.usual for gap in gaps]
    if not any(is_clear):
        return None
    begin = is_clear.index(True)
    # It may begin earlier, in an unbroken series of gaps that leads to it.
    while begin and gaps[begin - 1].size > max(GAP_BEGIN, gaps[begin - 1].usual):
        begin -= 1
    return gaps[begin]


def may_differ(run: Run, gap: Gap) -> bool:
    """Return True if the layer of a gap, or one after the last compared before it, may act otherwise in validation."""
    place = run.place(gap.layer.name)
    known = [run.place(one.layer.name) for one in run.comparisons[-1].gaps]
    before = max((one for one in known if one < place), default=-1)
    return any(layer.has_modes or layer.is_computed for layer in run.layers[before + 1 : place + 1])


TRAIN_EVAL_GAP = Rule("train_eval_gap", train_eval_gap, at_once=True, of="evaluation", look_at="health/activation_rms")
