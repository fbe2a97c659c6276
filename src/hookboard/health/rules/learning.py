"""The loss over the run, and validation against training: `spike`, `not_learning`, `train_eval_gap`."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from hookboard.health.look import Loss
from hookboard.health.losses import (
    BLOCK_STEPS,
    CLEAR_NOISE_DEVIATIONS,
    DIVERGED_FACTOR,
    LEVEL_NOISE_DEVIATIONS,
    PRETRAINED_CHANCE_SHARE,
    RISE_NOISE_DEVIATIONS,
    STEPS_BEFORE_STUCK,
    STUCK_SHARE,
    starts_high,
)
from hookboard.health.robust import median, median_of
from hookboard.health.rule import Rule, Severity, Symptom
from hookboard.health.rules.scale import DROPOUT_KINDS, dropped_share, uses_batch_statistics
from hookboard.health.rules.shared import (
    UPDATE_RATIO_SMALL,
    agreement_of,
    harm_of,
    of_their_size,
    severity_of,
    to_stable_rate,
)
from hookboard.health.rules.training_step import are_targets_unscaled
from hookboard.health.run import Run
from hookboard.health.spikes import Spike, is_new_level
from hookboard.health.stage_comparison import Gap, StageComparison
from hookboard.layers import Kind
from hookboard.measure import FIELDS
from hookboard.messages import listed
from hookboard.recording import Reading

GRADIENT_SPIKE_FACTOR = 10.0
"""A gradient is a spike if it is this many times the usual one, and its logarithm as many robust standard deviations
above the usual logarithm. ZClip clips from 2.5 deviations; a spike that is reported should be beyond doubt."""

GRADIENT_HISTORY_LOOKS = 16
"""Number of looks that must precede a spike of the gradient."""

AGREEING_GRADIENT_COSINE = 0.3
"""Gradients whose median cosine from look to look is above this agree: the model only needs to train on."""

UNRELATED_GRADIENT_COSINE = 0.1
"""Gradients with a median cosine of at most this size are called unrelated (a choice)."""

ANSWER_SPREAD_MIN = 0.1
"""The data is at fault only if outputs differ between samples by this much: where they hardly do, the signal is lost
inside the model (chosen on the tuning half of the benchmark)."""

ANSWER_SPREAD_SHARE_MIN = 0.15
"""Or if outputs differ between samples by this share of their RMS (chosen on the tuning half of the benchmark)."""


def spike(run: Run) -> Iterator[Symptom]:
    """Report a step whose loss or gradient is far above its history; never where there are several losses.

    It is an alarm if the loss was well before that step and never came back down, or if validation has differed from
    training since then; otherwise a note.
    """
    losses = run.losses
    if losses.is_mixed:
        return
    for found in reversed(losses.spikes):
        harm = _harm_of(run, found)
        if harm:
            yield _of_loss(found, f"; {harm} since then", "alarm")
            return
    if losses.spikes and losses.spikes[-1].loss in run.now.losses and not _ends_epoch(run, losses.spikes[-1].loss):
        yield _of_loss(losses.spikes[-1], "", "note")
        return
    yield from _of_gradient(run)


def _ends_epoch(run: Run, loss: Loss) -> bool:
    """Return True if a loss is that of the last batch of an epoch: a smaller batch has a noisier loss."""
    ends = {before.batch_idx for before, after in pairwise(run.losses.recent) if after.batch_idx < before.batch_idx}
    return loss.batch_idx in ends


def _of_loss(found: Spike, harm: str, severity: str) -> Symptom:
    loss = found.loss
    evidence = (
        f"the loss was {loss.value:.3g} at step {loss.step}, batch {loss.batch_idx}; the median before was "
        f"{found.usual:.3g}, {found.score:.0f} robust deviations lower{harm}"
    )
    is_alarm = severity == "alarm"
    advice = f"check the samples of batch {loss.batch_idx}, and clip gradients"
    if not is_alarm:
        advice = f"nothing, unless it comes back; then {advice}"
    return Symptom(
        "", evidence, advice, "alarm" if is_alarm else "note", found.score, since=loss.step, batch_idx=loss.batch_idx
    )


def _harm_of(run: Run, found: Spike) -> str:
    """Return the harm that has lasted since a spike, as a clause; "" if there is none, or it has another cause.

    Another cause is a learning rate that jumped right before, or other data or targets: then the losses after the spike
    are about as high.
    """
    if is_new_level(found, run.losses.after(found.loss.step)):
        return ""
    if any(jump.step <= found.loss.step <= 2 * jump.seen - jump.step + 1 for jump in run.rate_jumps):
        return ""
    if run.losses.is_worse_since(found.loss.step):
        return run.losses.harm
    before = [one for one in run.comparisons if one.step < found.loss.step and one.step >= STEPS_BEFORE_SETTLED]
    after = [one for one in run.comparisons if one.step >= found.loss.step]
    begins = [begin_of(one) for one in after]
    if before and not any(map(begin_of, before)) and begins and all(gap and may_differ(run, gap) for gap in begins):
        return "validation differs from training"
    return ""


def _of_gradient(run: Run) -> Iterator[Symptom]:
    levels = run.recent("weight_gradient_rms")
    # Where no layer exceeds its least one by as much, their median does not exceed the usual one.
    is_higher = levels[:, -1] > 0.99 * GRADIENT_SPIKE_FACTOR * levels.min(axis=1)
    if levels.shape[1] <= GRADIENT_HISTORY_LOOKS or not is_higher.any():
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(levels)
    logs = logs[np.isfinite(logs).all(axis=1)]
    if not len(logs):
        return
    course = np.median(logs, axis=0)
    before, now = course[:-1], float(course[-1])
    usual = float(np.median(before))
    deviation = max(1.4826 * float(np.median(np.abs(before - usual))), 0.1)
    if now - usual > max(math.log(GRADIENT_SPIKE_FACTOR), GRADIENT_SPIKE_FACTOR * deviation) and now > before.max():
        look = run.now
        evidence = (
            f"gradients of the weights were {math.exp(now - usual):.0f} times as large as usual at step {look.step}, "
            f"batch {look.batch_idx}"
        )
        advice = f"nothing, unless it comes back; then check the samples of batch {look.batch_idx}, and clip gradients"
        yield Symptom("", evidence, advice, size=now - usual, since=look.step, batch_idx=look.batch_idx)


def not_learning(run: Run) -> Iterator[Symptom]:
    """Report a loss that stays at its start or at chance although the weights move, or falls without a lower bound."""
    losses = run.losses
    first = losses.first[0].step if losses.first else run.now.step
    if losses.is_boundless:
        evidence = f"the loss fell from {losses.start:.3g} to {losses.lowest:.3g}: it has no lower bound"
        # A likelihood may be far below 0 as well; what has no bound takes the outputs along.
        severity: Severity = "alarm" if run.has_blown_up else "note"
        yield Symptom("", evidence, "check the sign of the loss", severity, since=first)
        return
    if not losses.is_stuck:
        return
    ratios = run.recent("update_ratio")[:, -run.window :]
    moved = median_of(ratios[np.isfinite(ratios)])
    if not moved > UPDATE_RATIO_SMALL or _rate_rises(run):
        return
    agreement = agreement_of(run)
    if agreement > AGREEING_GRADIENT_COSINE or not _tells_samples_apart(run):
        return
    chance = "" if losses.chance is None else f" (chance: {losses.chance:.3g})"
    far = of_their_size(moved, digits=1)
    evidence = f"{losses.harm}{chance}, while a step moves the weights by {far}{_cosine(agreement)}"
    advice = "try other learning rates; then check whether inputs and labels belong together, and the loss function"
    # Without chance nobody can tell it from a model that was trained before, and is trained on. And what has learnt how
    # frequent the classes are may be on a plateau, where masked language models stay for thousands of steps.
    is_certain = losses.chance is not None and not losses.has_come_down
    yield Symptom("", evidence, advice, "alarm" if is_certain else "note", since=first)


WORSE_THAN_CONSTANT_FACTOR = 2.0
"""A loss that ends this many times above that of the best constant answer has learned nothing, even if it still falls
(a choice: the constant is that of one batch)."""

END_STEPS = 16
"""The loss at the end is the median of the last quarter of the steps, and of at least this many (a choice)."""


def judge_end(run: Run) -> Symptom | None:
    """Judge the loss at the end of a training.

    It is reported if it is no better than that of always giving the same answer: chance for a classifier, otherwise
    `Run.constant_loss`, if that is known (twice as much, if the loss has come down from its start). It is also reported
    if a classifier that began well below chance ends clearly above its first loss; or above it at all, if the first
    steps raised it and it never came back.

    Returns:
        An alarm, or a note if there were few steps, the learning rate still rises, or a dropout drops most values; None
        if nothing is to report, for a resumed training, and if the last loss is not finite.
    """
    losses = run.losses
    if not losses.is_known or not losses.is_finite or losses.first[0].step > 0:
        return None
    last = losses.last(max(losses.steps // 4, END_STEPS))
    level, error = median(last), 1.25 * losses.noise / math.sqrt(len(last))  # of the median
    if not (losses.is_of_classifier and losses.chance is not None):
        return _no_better(run, level, error)
    if losses.first[0].value >= PRETRAINED_CHANCE_SHARE * losses.chance:
        return _no_better(run, level, error)
    first, peak = losses.first[0].value, median([loss.value for loss in losses.first[1 : 1 + BLOCK_STEPS]])
    little = STUCK_SHARE * losses.chance
    has_leapt = peak > first + max(little, CLEAR_NOISE_DEVIATIONS * losses.noise) and losses.best > first
    lost = 0.0 if has_leapt else max(little, RISE_NOISE_DEVIATIONS * losses.noise)
    if not level - LEVEL_NOISE_DEVIATIONS * error > first + lost:
        return None
    leapt = f" (the first {BLOCK_STEPS} steps raised that to {peak:.3g}, and it never came back)" if has_leapt else ""
    evidence = (
        f"the training ended after {losses.steps:,} steps with a loss of {level:.3g}, and the model had {first:.3g} at "
        f"the first step{leapt}: it is worse than it was; chance gives {losses.chance:.3g}{_cosine(agreement_of(run))}"
    )
    return Symptom("", evidence, "lower the learning rate, or warm it up from 0", _severity_at_end(run))


def _cosine(agreement: float) -> str:
    """Return the result of `agreement_of` as the end of a sentence; "" if it is NaN."""
    how = "hardly related" if abs(agreement) > UNRELATED_GRADIENT_COSINE else "unrelated"
    if abs(agreement) > AGREEING_GRADIENT_COSINE:
        how = "related" if agreement > 0 else "opposed"
    return (
        ""
        if math.isnan(agreement)
        else (
            f"; from look to look the gradients point in {how} directions (each unit's mean gradient has a median cosine "
            f"of {agreement:.2f})"
        )
    )


NOISY_DROPPED_SHARE = 0.7
"""Share of values that a dropout drops, from which the training loss says little of the model without it (a choice)."""


def _severity_at_end(run: Run) -> Severity:
    dropouts = np.flatnonzero(run.arrays.of_kind(DROPOUT_KINDS)).tolist()
    is_noisy = any(dropped_share(run, place) >= NOISY_DROPPED_SHARE for place in dropouts)
    return "note" if run.losses.steps < STEPS_BEFORE_STUCK or _rate_rises(run) or is_noisy else "alarm"


def _no_better(run: Run, level: float, error: float) -> Symptom | None:
    """Return the symptom of a loss that is no better than a constant answer's, see `judge_end`; None if it is better.

    Args:
        run: the run.
        level: the loss at the end of the run.
        error: the standard error of `level`.
    """
    losses = run.losses
    reference, what = run.constant_loss, "the best constant answer to the first batch gives"
    if losses.is_of_classifier and losses.chance is not None:
        reference, what = losses.chance, "chance gives"
        is_no_better = level - LEVEL_NOISE_DEVIATIONS * error >= (1 - STUCK_SHARE) * reference
    else:
        # The loss of the constant is known no better than that of any other batch.
        least = level - LEVEL_NOISE_DEVIATIONS * losses.noise
        is_at_start = losses.start - level <= STUCK_SHARE * losses.start and least >= (1 - STUCK_SHARE) * reference
        is_no_better = reference > 0 and (is_at_start or least > WORSE_THAN_CONSTANT_FACTOR * reference)
    if not is_no_better:
        return None
    evidence = (
        f"the training ended after {losses.steps:,} steps with a loss of {level:.3g}, after {losses.start:.3g} at the "
        f"start; {what} {reference:.3g}"
    )
    if level - LEVEL_NOISE_DEVIATIONS * error > DIVERGED_FACTOR * max(losses.start, losses.first[0].value):
        advice = f"lower the learning rate{to_stable_rate(run)}, or warm it up from 0"
        # A classifier's chance is the same for all data.
        advice += "" if reference == losses.chance else "; nothing, if the targets of later batches are larger"
        return Symptom("", evidence, advice, _severity_at_end(run))
    agreement = agreement_of(run)
    evidence += _cosine(agreement)
    if losses.steps < STEPS_BEFORE_STUCK or losses.is_falling or agreement > AGREEING_GRADIENT_COSINE:
        advice = "raise the learning rate, or train longer"
    else:
        advice = "try other learning rates; then check whether inputs and labels belong together, and the loss function"
    # Slightly below chance it may be on a plateau that it leaves later, as transformers do.
    is_on_plateau = losses.has_come_down and level + LEVEL_NOISE_DEVIATIONS * error < reference
    return Symptom("", evidence, advice, "note" if is_on_plateau else _severity_at_end(run))


def _tells_samples_apart(run: Run) -> bool:
    """Return True if the model's outputs differ between samples, or did at the start.

    False if their spread has doubled over the kept looks: the model then begins to learn. True if unknown.
    """
    spreads = run.losses.spreads
    if not spreads:
        return True
    known = run.recent("sample_spread")[[i for i, layer in enumerate(run.layers) if layer.weights], -1]
    share = next((float(value) for value in known[::-1] if not math.isnan(value)), 0.0)
    differs = max(spreads[-1], run.losses.first_spread) >= ANSWER_SPREAD_MIN or share >= ANSWER_SPREAD_SHARE_MIN
    return differs and spreads[-1] < 2 * spreads[0]


def _rate_rises(run: Run) -> bool:
    """Return True if a learning rate is higher now than at the oldest look that is kept, as in a warm-up."""
    first, now = run.looks[0].stepped, run.now.stepped
    return any(name in first and stepped.rate > first[name].rate for name, stepped in now.items())


EMBEDDING_RMS_LARGE = 0.5
"""RMS of an embedding at the start from which it may make outputs too wide: torch initializes with 1 (a choice)."""


def initial_loss(run: Run) -> Iterator[Symptom]:
    """Report a first loss far above that of the same answer to all samples: the model's outputs are too wide."""
    losses = run.losses
    if not losses.is_known or losses.first[0].step > 0 or are_targets_unscaled(run):
        return
    reference, what = run.constant_loss, "the best constant answer gives"
    if losses.is_of_classifier and losses.chance is not None:
        reference, what = losses.chance, "chance gives"
    loss = losses.first[0].value  # those after it show what the first steps did
    if not (reference > 0 and starts_high(reference, loss)):
        return
    first = run.first or run.now
    wide = [
        layer.name
        for layer in run.layers
        if layer.kind == "embedding" and any(_is_wide(first.of(name, "parameter_before")) for name in layer.weights)
    ]
    advice = "initialize the last layer smaller, and check the scale of its input"
    if wide:
        advice = f"initialize {listed(wide, 3)} smaller, such as nn.init.normal_(weight, std=0.1): torch begins with 1"
    evidence = (
        f"the first loss was {loss:.3g}, where {what} {reference:.3g}: the outputs of the model are too wide at the "
        f"start{harm_of(run)}"
    )
    yield Symptom("", evidence, advice, severity_of(run), size=loss / reference, since=losses.first[0].step)


def _is_wide(weight: Reading | None) -> bool:
    return weight is not None and weight.moments.rms >= EMBEDDING_RMS_LARGE


INITIAL_LOSS = Rule(
    "initial_loss",
    initial_loss,
    about="a first loss far above that of a constant answer or of chance",
)

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


def overfitting(run: Run) -> Iterator[Symptom]:
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
    when = f"its lowest, at step {known[lowest].step},"
    advice = "stop at the lowest (EarlyStopping, the best checkpoint), or use more data, augmentation or weight decay"
    if lowest == 0:
        when = f"the first validation, at step {known[0].step},"
        advice = (
            "check whether the training targets belong to their inputs, also after augmentation, and whether both data "
            "sets are prepared alike; otherwise use more data, a smaller model, or weight decay"
        )
    evidence = (
        f"the loss in validation rose from {low:.3g} in {when} to {values[-1]:.3g}, while that in training fell from "
        f"{run.losses.start:.3g} to {run.losses.level():.3g}"
    )
    yield Symptom("", evidence, advice, "note", size=(now - low) / max(abs(low), 1e-12), since=known[lowest].step)


def _has_other_data(run: Run) -> bool:
    """Return True if in the latest validation the gap begins at the very first layer: the data differ from training."""
    begin = begin_of(run.comparisons[-1]) if run.comparisons else None
    return begin is not None and begin.layer.name == run.comparisons[-1].gaps[0].layer.name


OVERFITTING = Rule(
    "overfitting",
    overfitting,
    at_once=True,
    of_evaluations=True,
    about="the loss in validation, where it is logged (`val_loss`), rises while that in training falls",
    gives="note",
)
SPIKE = Rule(
    "spike",
    spike,
    at_once=True,
    look_at="health/gradient_rms",
    about="one step whose loss or gradient is far outside its history",
)
NOT_LEARNING = Rule(
    "not_learning",
    not_learning,
    look_at="health/gradient_rms",
    about="a loss at chance level while no layer is sick: look at data and labels; a loss without lower bound; at the "
    "end of a training, one no better than a constant answer's, or than the first",
)


_COUNT, _MEAN, _DEVIATION = FIELDS.index("count"), FIELDS.index("mean"), FIELDS.index("deviation")

GAP_NOTE = 1.0
"""Training and validation differ if in some layer the mean of the median channel is this many standard deviations off,
or if the RMS differs by a factor of e (a choice: a batch of 32 gives 0.2 by chance)."""

GAP_BEGIN = 0.25
"""The gap begins at the first layer, right before the one with a clear gap, where it is already this large (a
choice)."""

GAP_FACTOR_OVER_TRAINING = 4.0
"""A gap must also be this many times that between two looks in training."""

OTHER_DATA_GAP = 4.0
"""The data itself is of another kind if the gap is this large at the input. Augmentation gives 0.3; the mean of a share
p of the samples is at most sqrt((1 - p) / p) standard deviations from that of all: 1 for one of two equal classes, 3
for one of ten."""

STRANGE_STATISTICS_DISTANCE = 0.25
"""Distance of running statistics from those of every look, and from averages over looks, above which they do not belong
to the batches that were seen. Healthy runs of the benchmark's tuning half reach 0.21, where a momentum of 0.03 has not
yet forgotten the initial 0 and 1."""

UNCHANGED_IN_EVALUATION_KINDS: frozenset[Kind] = frozenset(
    {"rectifier", "bounded", "smooth", "linear", "conv", "embedding"}
)
"""Kinds of layers that do in validation what they do in training."""

UNCHANGED_IN_EVALUATION_NORMS = {"LayerNorm", "GroupNorm", "RMSNorm"}
"""Types of norms that do in validation what they do in training."""

BATCH_ALIKE_SHARE = 0.95
"""How far the channel means of the last layer must move from batch to batch, as a share of the standard deviation
within one, for the samples of a batch to count as alike. Healthy runs with batch norm in the benchmark's tuning half
reach 0.31 after their first `LOOKS_BEFORE_BATCH_ALIKE` looks."""

BATCH_ALIKE_CHANCE_FACTOR = 3.0
"""For that the channel means must also move this many times as far as those of independent samples (a choice): with two
samples in a batch, those move by 1."""

LOOKS_BEFORE_BATCH_ALIKE = 16
"""Number of looks before which the outputs still move on their own."""

STEPS_BEFORE_SETTLED = 32
"""Number of steps before which running statistics are still far from what they follow."""


def train_eval_gap(run: Run) -> Iterator[Symptom]:
    """Report the layer at which outputs in validation begin to differ from those in training.

    It is an alarm if two evaluations in a row show it, the last layer differs too, some layer up to there may act
    differently in validation, and running statistics that merely lag behind do not explain it. Where it begins at the
    input, only a very large difference is an alarm. Batches whose samples are alike are reported too, if batch norms
    use their statistics.
    """
    yield from _batches_alike(run)
    found: list[Gap] = []
    for comparison in run.comparisons:
        begin = begin_of(comparison) if comparison.step >= STEPS_BEFORE_SETTLED else None
        found = [] if begin is None else [*found, begin]
    if not found:
        return
    # The layer that was named first stays the one; its numbers are those of the latest evaluation.
    gaps, first = run.comparisons[-1].gaps, found[0]
    now = next((gap for gap in gaps if gap.layer.name == first.layer.name), first)
    largest = max(gaps, key=lambda gap: gap.size)
    strange = _strange(list(run.comparisons)[-2:])
    evidence = (
        f"in validation its outputs have an RMS of {now.evaluation:.2g}, in training {now.training:.2g}, and its "
        f"channels lie {now.size:.1f} standard deviations away ({now.usual:.2g} between two looks in training); "
        f"the largest gap is {largest.size:.1f}, in {largest.layer.name}"
    )
    advice = "check running statistics of norms (momentum, eval mode), dropout, and how validation data is prepared"
    if first.layer.name == gaps[0].layer.name:
        # Where the data differ, norms may hide it from later layers.
        is_harm = min(gap.size for gap in found) > OTHER_DATA_GAP
        moved = ", or its weights have changed since" if first.layer.weights and run.has_blown_up else ""
        evidence += f"; it begins at the input: validation data differ from training data{moved}"
        advice = (
            "check how both are prepared, in training_step too: the normalization first, whether it is applied once in "
            "each, then the class balance"
        )
    else:
        is_harm = gaps[-1].size > GAP_NOTE / 2 and strange is not False and may_differ(run, first)
        if not may_differ(run, first):
            evidence += (
                "; no layer up to there behaves differently in validation: weights change fast, or the data differ"
            )
            advice = "check how validation data is prepared"
        elif strange:
            evidence += f"; the running statistics of {strange} match no batch seen lately"
        elif strange is False:
            evidence += "; running statistics match batches seen lately: they lag behind, or the data differ"
    severity: Severity = "alarm" if len(found) > 1 and is_harm else "note"
    yield Symptom(first.layer.name, evidence, advice, severity, largest.size)


def _strange(comparisons: Sequence[StageComparison]) -> str | Literal[False] | None:
    """Find a batch norm whose running statistics match no training batch, at all of some evaluations.

    Returns:
        The name of the first such norm; False if there is none; None if an evaluation has no known norm.
    """
    known = [{norm.layer.name: norm for norm in comparison.norms} for comparison in comparisons]
    if not known or not all(known):
        return None
    names = [
        name
        for name in known[-1]
        if all(name in one and one[name].before > STRANGE_STATISTICS_DISTANCE for one in known)
    ]
    return names[0] if names else False


def begin_of(comparison: StageComparison) -> Gap | None:
    """Return the gap of the layer where the first clear gap begins; None if no gap is clear.

    That is the first clear gap, or the earliest one in an unbroken series of gaps above GAP_BEGIN that leads to it.
    """
    gaps = list(comparison.gaps)
    clear = next((i for i, gap in enumerate(gaps) if _is_far(gap, GAP_NOTE)), None)
    if clear is None:
        return None
    while clear and gaps[clear - 1].size > GAP_BEGIN:
        clear -= 1
    return gaps[clear]


def may_differ(run: Run, gap: Gap) -> bool:
    """Return True if the layer, or one before it, may behave differently in validation, as dropout does."""
    return any(
        layer.computed
        or not (layer.kind in UNCHANGED_IN_EVALUATION_KINDS or layer.type in UNCHANGED_IN_EVALUATION_NORMS)
        for layer in run.layers[: run.place(gap.layer.name) + 1]
    )


def _batches_alike(run: Run) -> Iterator[Symptom]:
    """Report batches of samples that are alike, such as sorted by class, if batch norms use the batch's statistics."""
    if not run.arrays.batch_norms or run.seen < LOOKS_BEFORE_BATCH_ALIKE or run.losses.is_mixed:
        return
    norms = [run.layers[place] for place in run.arrays.batch_norms]
    norm = next((layer for layer in norms if layer.trainable), None)
    if norm is None:
        return
    last = next((layer for layer in reversed(run.layers) if layer.weights and run.now.of(layer.name, "output")), norm)
    rows = run.units(last.name, looks=len(run.looks))
    if last.kind == "norm" or rows is None or len(rows) < 3:
        return
    # Second differences leave out what moves steadily, as answers do that are being learnt: 6 = 1 + 4 + 1.
    moves = rows[2:, :, _MEAN] - 2 * rows[1:-1, :, _MEAN] + rows[:-2, :, _MEAN]
    between, within = (np.sqrt(np.mean(part**2, axis=0)) for part in (moves / math.sqrt(6), rows[:, :, _DEVIATION]))
    known = within > 0
    share = float(np.median(between[known] / within[known])) if known.any() else 0.0
    if not share > BATCH_ALIKE_SHARE:
        return
    # What independent samples give: the mean of n moves by 1 / sqrt(n), within a batch they deviate by less than 1.
    chance = 1 / math.sqrt(max(float(np.median(rows[:, :, _COUNT])) - 1, 1.0))
    if not share > BATCH_ALIKE_CHANCE_FACTOR * chance or not uses_batch_statistics(run, norm):
        return
    evidence = (
        f"the channels of {last.name} move by {share:.2g} standard deviations from batch to batch, where {chance:.2g} "
        f"is usual: samples of a batch are alike, and batch norms take their statistics from each batch{harm_of(run)}"
    )
    advice = "shuffle the data, or use norms that do not depend on the batch, such as GroupNorm"
    yield Symptom(norm.name, evidence, advice, "alarm", share)


def _is_far(gap: Gap, limit: float) -> bool:
    return gap.size > limit and gap.size > GAP_FACTOR_OVER_TRAINING * gap.usual  # never, if nothing tells what is usual


TRAIN_EVAL_GAP = Rule(
    "train_eval_gap",
    train_eval_gap,
    at_once=True,
    of_evaluations=True,
    look_at="health/activation_rms",
    about="a layer whose outputs in validation differ from those in training, unless different data, "
    "fast-changing weights or lagging running statistics explain it",
)
