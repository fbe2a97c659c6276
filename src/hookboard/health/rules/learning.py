"""`spike` and `not_learning`: the course of the loss."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hookboard.health.look import Loss
from hookboard.health.losses import Spike, is_new_level
from hookboard.health.robust import median_of
from hookboard.health.rule import Rule, Severity, Symptom
from hookboard.health.rules.evaluation import STEPS_BEFORE_SETTLED, begin_of, may_differ
from hookboard.health.rules.shared import UPDATE_RATIO_SMALL, agreement_of
from hookboard.health.run import Run

GRADIENT_SPIKE_FACTOR = 10.0
"""A gradient is a spike if it is this many times the usual one, and its logarithm as many robust standard deviations
above. ZClip clips from 2.5 deviations; a spike that is reported should be beyond doubt."""

GRADIENT_HISTORY_LOOKS = 16
"""Number of looks that must precede a spike of the gradient."""

AGREEING_GRADIENT_COSINE = 0.3
"""Gradients whose median cosine from look to look is above this agree: the model only needs to train on."""

ANSWER_SPREAD_MIN = 0.1
"""The data is at fault only if outputs differ between samples by this much: where they hardly do, the signal is lost
inside the model (chosen on the tuning half of the benchmark)."""

ANSWER_SPREAD_SHARE_MIN = 0.15
"""Or by this share of their RMS (chosen on the tuning half of the benchmark)."""


def spike(run: Run) -> Iterator[Symptom]:
    """Report one step far outside its own history; an alarm if the loss was well before it and never came back."""
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
    """Return True if a loss is that of the last batch of an epoch, usually a smaller one with a noisier loss."""
    ends = {before.batch_idx for before, after in pairwise(run.losses.recent) if after.batch_idx < before.batch_idx}
    return loss.batch_idx in ends


def _of_loss(found: Spike, harm: str, severity: str) -> Symptom:
    loss = found.loss
    evidence = (
        f"the loss was {loss.value:.3g} at step {loss.step}, batch {loss.batch_idx}; the median before was "
        f"{found.usual:.3g}, {found.score:.0f} robust deviations lower{harm}"
    )
    advice = f"check the samples of batch {loss.batch_idx}, and clip gradients"
    is_alarm = severity == "alarm"
    return Symptom(
        "", evidence, advice, "alarm" if is_alarm else "note", found.score, since=loss.step, batch_idx=loss.batch_idx
    )


def _harm_of(run: Run, found: Spike) -> str:
    """Return the harm that has lasted since a spike; "" if none, or if that one step did not cause it.

    It comes from a learning rate that jumped right before, or the losses after it are as high: other data, as in a
    curriculum, or another target.
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
        advice = f"check the samples of batch {look.batch_idx}, and clip gradients"
        yield Symptom("", evidence, advice, size=now - usual, since=look.step, batch_idx=look.batch_idx)


def not_learning(run: Run) -> Iterator[Symptom]:
    """Report a loss that stays at chance though the weights move: the data or the labels may be at fault.

    Or it falls far below 0, so that there is nothing to be learnt.
    """
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
    if not moved > UPDATE_RATIO_SMALL or _rises(run):
        return
    agreement = agreement_of(run)
    if agreement > AGREEING_GRADIENT_COSINE or not _speaks(run):
        return
    agree = "" if math.isnan(agreement) else f", and gradients of consecutive looks have a cosine of {agreement:.2f}"
    chance = "" if losses.chance is None else f" (chance: {losses.chance:.3g})"
    evidence = f"{losses.harm}{chance}, while a step moves the weights by {moved:.1g} of their size{agree}"
    advice = "check whether inputs and labels belong together, and the loss function"
    # Without chance nobody can tell it from a model that was trained before, and is trained on. And what has learnt how
    # frequent the classes are may be on a plateau, where masked language models stay for thousands of steps.
    is_certain = losses.chance is not None and not losses.has_come_down
    yield Symptom("", evidence, advice, "alarm" if is_certain else "note", since=first)


def _speaks(run: Run) -> bool:
    """Return True if outputs differ between samples, or did at the start, and did not only just begin to do so."""
    spreads = run.losses.spreads
    if not spreads:
        return True
    known = run.recent("sample_spread")[[i for i, layer in enumerate(run.layers) if layer.weights], -1]
    share = next((float(value) for value in known[::-1] if not math.isnan(value)), 0.0)
    differs = max(spreads[-1], run.losses.first_spread) >= ANSWER_SPREAD_MIN or share >= ANSWER_SPREAD_SHARE_MIN
    return differs and spreads[-1] < 2 * spreads[0]


def _rises(run: Run) -> bool:
    """Return True if learning rates still rise, as in a warm-up."""
    first, now = run.looks[0].stepped, run.now.stepped
    return any(name in first and stepped.rate > first[name].rate for name, stepped in now.items())


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
    about="a loss at chance level while no layer is sick: look at the data and labels; a loss that has no lower bound",
)
