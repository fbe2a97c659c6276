"""The loss over the run: `spike`, `not_learning`, and what is said of it at the end."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hookboard.base.messages import listed
from hookboard.health.look import Loss
from hookboard.health.losses import (
    BLOCK_STEPS,
    CLEAR_NOISE_DEVIATIONS,
    DIVERGED_FACTOR,
    FIRST_STEP_LEAP,
    LEVEL_NOISE_DEVIATIONS,
    PRETRAINED_CHANCE_SHARE,
    RISE_NOISE_DEVIATIONS,
    STEPS_BEFORE_STUCK,
    STUCK_SHARE,
    Spike,
    is_new_level,
)
from hookboard.health.robust import median, median_of
from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.rules.shared import UPDATE_RATIO_SMALL, are_targets_unscaled, clip_too, to_stable_rate
from hookboard.health.run import Run
from hookboard.measure.row import FIELDS

AGREEING_GRADIENT_COSINE = 0.3
"""Gradients whose median cosine from look to look is above this agree: the model only needs to train on."""

OTHER_RATE = "change the learning rate; then check the loss function, and that inputs and labels match"

UNRELATED_GRADIENT_COSINE = 0.1
"""Gradients with a median cosine of at most this size are called unrelated (a choice)."""

ANSWER_SPREAD_MIN = 0.1
"""The data is at fault only if outputs differ between samples by this much: where they hardly do, the signal is lost
inside the model (chosen on the tuning half of the benchmark)."""

ANSWER_SPREAD_SHARE_MIN = 0.15
"""Or if outputs differ between samples by this share of their RMS (chosen on the tuning half of the benchmark)."""


def spike(run: Run) -> Iterator[Finding]:
    """Report a step whose loss is far above its history: an alarm if it was well before and never came back down."""
    losses = run.losses
    if losses.is_mixed:
        return
    for found in reversed(losses.spikes):
        harm = _harm_of(run, found)
        if harm:
            yield _of_loss(run, found, f"; afterwards, {harm}", "alarm")
            return
    if losses.spikes and losses.spikes[-1].loss in run.now.losses and not _ends_epoch(run, losses.spikes[-1].loss):
        yield _of_loss(run, losses.spikes[-1], "", "note")


def _ends_epoch(run: Run, loss: Loss) -> bool:
    """Return True if a loss is that of the last batch of an epoch: a smaller batch has a noisier loss."""
    ends = {before.batch_idx for before, after in pairwise(run.losses.recent) if after.batch_idx < before.batch_idx}
    return loss.batch_idx in ends


def _of_loss(run: Run, found: Spike, harm: str, severity: Severity) -> Finding:
    loss = found.loss
    evidence = (
        f"the loss was {loss.value:.3g} at step {loss.step}, batch {loss.batch_idx}; it had been around "
        f"{found.usual:.3g}{harm}"
    )
    worst = loss.worst
    evidence += "" if worst is None else f"; {worst.clause}"
    which = "the samples" if worst is None else f"row{'s' * (len(worst.rows) > 1)} {listed(map(str, worst.rows), 5)}"
    advice = f"check {which} of batch {loss.batch_idx}{clip_too(run, ', and clip gradients')}"
    if severity == "note":
        advice = f"ignore this spike unless it recurs; if it does, {advice}"
    return Finding(
        "",
        evidence,
        advice,
        severity,
        found.score,
        since=loss.step,
        batch_idx=loss.batch_idx,
        rows=() if worst is None else worst.rows,
    )


def _harm_of(run: Run, found: Spike) -> str:
    """Return the harm that has lasted since a spike, as a clause; "" if there is none, or it has another cause."""
    # Other data or targets, or a learning rate that jumped right before.
    if is_new_level(found, run.losses.after(found.loss.step)):
        return ""
    if any(jump.step <= found.loss.step <= 2 * jump.seen - jump.step + 1 for jump in run.rate_jumps):
        return ""
    return run.losses.harm if run.losses.is_worse_since(found.loss.step) else ""


def not_learning(run: Run) -> Iterator[Finding]:
    """Report a loss that diverges, stays where it was although the weights move, or falls without a lower bound."""
    losses = run.losses
    first = losses.first[0].step if losses.first else run.now.step
    if losses.is_boundless:
        evidence = (
            f"the loss fell from {losses.first[0].value:.3g} to {losses.lowest:.3g} and seems to have no lower bound"
        )
        # A likelihood may be far below 0 as well; what has no bound takes the outputs along.
        severity: Severity = "alarm" if run.has_blown_up else "note"
        yield Finding("", evidence, "check the sign of the loss", severity, since=first)
        return
    if losses.has_diverged and losses.level() > FIRST_STEP_LEAP * abs(losses.first[0].value):
        advice = f"lower the learning rate{to_stable_rate(run)}, or warm it up from 0"
        yield Finding("", losses.harm, advice, "alarm", since=first, is_lasting=True)
        return
    if not losses.is_stuck:
        return
    ratios = run.recent("update_ratio")[:, -run.window :]
    moved = median_of(ratios[np.isfinite(ratios)])
    if not moved > UPDATE_RATIO_SMALL or _rate_rises(run):
        return
    agreement = _agreement(run)
    is_far = are_targets_unscaled(run)  # then all gradients agree: towards the targets' mean
    if not is_far and (agreement > AGREEING_GRADIENT_COSINE or not _tells_samples_apart(run)):
        return
    chance = "" if losses.chance is None else f" (chance level: {losses.chance:.3g})"
    evidence = f"{losses.harm}{chance}, while the update-to-weight ratio is {moved:.1g}{_cosine(agreement)}"
    # Without chance nobody can tell it from a model that was trained before, and is trained on. And what has learnt how
    # frequent the classes are may be on a plateau, where masked language models stay for thousands of steps.
    is_certain = is_far or (losses.chance is not None and not losses.has_come_down)
    # What has lost what it had learnt is sick since then, not from the start.
    since = losses.best_step + BLOCK_STEPS if losses.has_risen and losses.best_step >= 0 else first
    yield Finding("", evidence, _advice(run), "alarm" if is_certain else "note", since=since, is_lasting=is_far)


_MEAN = FIELDS.index("mean")


def _agreement(run: Run) -> float:
    """Return the median cosine of weights' gradients (means of channels) from look to look; NaN if unknown."""
    # The gradients of two logits are opposite: from look to look their cosine is 1 or -1, by chance.
    units = 3 if run.losses.is_of_classifier else 1
    cosines = []
    for before, after in pairwise(run.looks):
        for site, reading in after.readings.items():
            if site.role == "parameter_grad" and reading.channels is not None:
                earlier = before.of(site.name, "parameter_grad")
                if earlier is not None and earlier.channels is not None and len(reading.channels) >= units:
                    cosines.append(_similarity(reading.channels[:, _MEAN], earlier.channels[:, _MEAN]))
    return median_of(cosines)


def _similarity(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b)) if a.shape == b.shape else 0.0
    return float(a @ b) / size if size > 0 else math.nan


def _advice(run: Run, then: str = OTHER_RATE) -> str:
    """Return what to try where a loss does not fall: what is not trained comes first, as no rate can help that."""
    said = {found.rule: found.evidence for found in run.facts.findings}
    outside = said.get("not_in_optimizer", "").partition(",")[0]
    frozen = [layer.name for layer in run.layers if layer.weights and run.now.frozen >= {*layer.weights}]
    first = f"check whether {listed(frozen, 3)} should be frozen; then " if frozen else ""
    first += f"add the missing parameters to the optimizer ({outside}); then " if outside else ""
    return f"{first}{then}"


WORSE_THAN_CONSTANT_FACTOR = 2.0
"""A loss that ends this many times above the best constant's has learned nothing, even if it falls (a choice)."""

FAR_FROM_CONSTANT_FACTOR = 100.0
"""A loss that ends this many times above the best constant's did not end too early, however it falls (a choice)."""

END_STEPS = 16
"""The loss at the end is the median of the last quarter of the steps, and of at least this many (a choice)."""


def ended_without_learning(run: Run) -> Iterator[Finding]:
    """Report the loss at the end if it is no better than a constant answer's, or a trained classifier's got worse."""
    losses = run.losses
    if not losses.is_known or not losses.is_finite or losses.first[0].step > 0:  # it was resumed
        return
    last = losses.last(max(losses.steps // 4, END_STEPS))
    level, error = median(last), 1.25 * losses.noise / math.sqrt(len(last))  # of the median
    if (
        not (losses.is_of_classifier and losses.chance is not None)
        or losses.first[0].value >= PRETRAINED_CHANCE_SHARE * losses.chance
    ):
        yield from _no_better(run, level, error)
        return
    first, peak = losses.first[0].value, _peak(run, STUCK_SHARE * losses.chance)
    lost = 0.0 if peak else max(STUCK_SHARE * losses.chance, RISE_NOISE_DEVIATIONS * losses.noise)
    if not level - LEVEL_NOISE_DEVIATIONS * error > first + lost:
        return
    leapt = f" (the first {BLOCK_STEPS} steps raised it to {peak:.3g}, and it never recovered)" if peak else ""
    evidence = (
        f"training ended after {losses.steps:,} steps with a loss of {level:.3g}, up from {first:.3g} at the first "
        f"step{leapt}, so the model got worse (chance level: {losses.chance:.3g}){_cosine(_agreement(run))}"
    )
    yield Finding("", evidence, "lower the learning rate, or warm it up from 0", _severity_at_end(run))


def _peak(run: Run, little: float) -> float | None:
    """Return the loss that the first steps led to, if it rose by `little` or more and never came back; or None."""
    first, peak = run.losses.first[0].value, median([loss.value for loss in run.losses.first[1 : 1 + BLOCK_STEPS]])
    has_leapt = peak > first + max(little, CLEAR_NOISE_DEVIATIONS * run.losses.noise) and run.losses.best > first
    return peak if has_leapt else None


def _cosine(agreement: float) -> str:
    if math.isnan(agreement):
        return ""
    how = "nearly uncorrelated" if abs(agreement) > UNRELATED_GRADIENT_COSINE else "uncorrelated"
    if abs(agreement) > AGREEING_GRADIENT_COSINE:
        how = "correlated" if agreement > 0 else "opposed"
    return (
        f"; gradients are {how} between measurements (each unit's mean gradient has a median cosine of {agreement:.2f})"
    )


NOISY_DROPPED_SHARE = 0.7
"""Share of values that a dropout drops, from which the training loss says little of the model without it (a choice)."""


def _severity_at_end(run: Run) -> Severity:
    dropouts = np.flatnonzero(run.arrays.of_kind(frozenset({"dropout"}))).tolist()
    is_noisy = any(_dropped_share(run, place) >= NOISY_DROPPED_SHARE for place in dropouts)
    return "note" if run.losses.steps < STEPS_BEFORE_STUCK or _rate_rises(run) or is_noisy else "alarm"


DROPOUT_FACTOR = 1.5
"""What a dropout leaves, scaled, has its squares within this factor (a choice: chance gives 1.1, a ReLU at least 2)."""


def _dropped_share(run: Run, place: int) -> float:
    """Return which share of the nonzero values of its input a dropout sets to 0; NaN if unknown."""
    output = run.now.of(run.layers[place].name, "output")
    before = run.now.of(run.layers[place - 1].name, "output") if place else None
    if output is None or before is None or output.moments.count != before.moments.count:
        return math.nan
    left = before.moments.count - before.moments.zeros
    kept = (output.moments.count - output.moments.zeros) / left if left else math.nan
    # The layer before may not be its input: a dropout scales the sum of squares by 1 / (1 - share), a ReLU does not.
    squares = (output.moments.rms**2, before.moments.rms**2)
    is_scaled = kept * squares[0] <= DROPOUT_FACTOR * squares[1] and squares[1] <= DROPOUT_FACTOR * kept * squares[0]
    return 1 - kept if is_scaled or not kept else math.nan


def _no_better(run: Run, level: float, error: float) -> Iterator[Finding]:
    """Report a loss that is no better than a constant answer's: chance, or for other losses `Run.constant_loss`."""
    losses = run.losses
    reference, what = run.constant_loss, "the best constant prediction for the first batch gives"
    if losses.is_of_classifier and losses.chance is not None:
        reference, what = losses.chance, "chance level is"
        is_no_better = level - LEVEL_NOISE_DEVIATIONS * error >= (1 - STUCK_SHARE) * reference
    else:
        # The loss of the constant is known no better than that of any other batch.
        least = level - LEVEL_NOISE_DEVIATIONS * losses.noise
        is_at_start = losses.start - level <= STUCK_SHARE * losses.start and least >= (1 - STUCK_SHARE) * reference
        is_no_better = reference > 0 and (is_at_start or least > WORSE_THAN_CONSTANT_FACTOR * reference)
    if not is_no_better:
        return
    first, peak = losses.first[0].value, _peak(run, STUCK_SHARE * reference)
    leapt = f" (the first {BLOCK_STEPS} steps raised it to {peak:.3g}, and it never recovered)" if peak else ""
    evidence = (
        f"training ended after {losses.steps:,} steps with a loss of {level:.3g}; it was {first:.3g} at the first "
        f"step{leapt}, and {what} {reference:.3g}"
    )
    if peak or level - LEVEL_NOISE_DEVIATIONS * error > DIVERGED_FACTOR * max(losses.start, first):
        advice = f"lower the learning rate{to_stable_rate(run)}, or warm it up from 0"
        # A classifier's chance is the same for all data.
        advice += "" if reference == losses.chance else "; ignore this if the targets of later batches are larger"
        yield Finding("", evidence, advice, _severity_at_end(run))
        return
    agreement = _agreement(run)
    evidence += _cosine(agreement)
    if losses.steps < STEPS_BEFORE_STUCK or losses.is_falling or agreement > AGREEING_GRADIENT_COSINE:
        advice = _advice(run, "train longer, or try other learning rates")
    else:
        advice = _advice(run)
    # Slightly below chance it may be on a plateau that it leaves later, as transformers do.
    is_on_plateau = losses.has_come_down and level + LEVEL_NOISE_DEVIATIONS * error < reference
    is_open = is_on_plateau or (
        level < FAR_FROM_CONSTANT_FACTOR * reference and losses.is_learning and losses.is_within_reach(reference)
    )  # it ended too early
    yield Finding("", evidence, advice, "note" if is_open else _severity_at_end(run))


def _tells_samples_apart(run: Run) -> bool:
    """Return True if outputs differ between samples, or did at first, unless their spread doubled; True if unknown."""
    spreads = run.losses.spreads
    if not spreads:
        return True
    known = run.recent("sample_spread")[[i for i, layer in enumerate(run.layers) if layer.weights], -1]
    share = next((float(value) for value in known[::-1] if not math.isnan(value)), 0.0)
    differs = max(spreads[-1], run.losses.first_spread) >= ANSWER_SPREAD_MIN or share >= ANSWER_SPREAD_SHARE_MIN
    return differs and spreads[-1] < 2 * spreads[0]  # otherwise the model begins to learn


def _rate_rises(run: Run) -> bool:
    first, now = run.looks[0].stepped, run.now.stepped
    return any(name in first and stepped.rate > first[name].rate for name, stepped in now.items())


SPIKE = Rule("spike", spike, at_once=True, look_at="health/gradient_rms")
NOT_LEARNING = Rule("not_learning", not_learning, look_at="health/gradient_rms")
ENDED_WITHOUT_LEARNING = Rule("not_learning", ended_without_learning, of="end")
