"""`clipping` and `weight_decay`: what holds the steps of the optimizers back."""

import math
from collections.abc import Iterator

from hookboard.health.look import Look
from hookboard.health.robust import median_of
from hookboard.health.rule import Rule, Severity, Symptom
from hookboard.health.rules.shared import UPDATE_RATIO_SMALL, harm_of, severity_of
from hookboard.health.run import Run

CLIPPED_SHARE = 0.1
"""Clipping is worth a note if it leaves at most this share of each gradient, at all of the latest looks (a choice:
published recipes clip the first gradients by as much, and hardly any later)."""

DECAY_SHARE_ALARM = 0.01
"""Weight decay that takes this share of a weight in each step, and outweighs the gradient, is an alarm whatever the
loss does: in 100 steps it leaves a third of a weight (a choice)."""


def clipping(run: Run) -> Iterator[Symptom]:
    """Report gradients that are clipped to much less than what arrives, again and again.

    An optimizer such as Adam makes steps of the same size all the same: there it is a note.
    """
    largest = min((held.largest_norm for held in run.held_back.values()), default=math.inf)
    if not math.isfinite(largest) or len(run.looks) < run.window or run.now.overflowed:
        return
    norms = [gradient_norm(look, run) for look in run.looks]
    if not min(norms) * CLIPPED_SHARE >= largest:
        return
    usual = median_of(norms)
    evidence = (
        f"gradients are clipped to a norm of {largest:.2g} at each of the last {len(norms)} looks, where it is "
        f"{min(norms):.2g} to {max(norms):.2g}: {largest / usual:.1g} of them is left{harm_of(run)}"
    )
    is_adaptive = all(stepped.is_adaptive for stepped in run.now.stepped.values())
    severity: Severity = "note" if is_adaptive else severity_of(run)
    yield Symptom("", evidence, f"set gradient_clip_val to about {usual:.1g}", severity, size=usual / largest)


def gradient_norm(look: Look, run: Run) -> float:
    """Return the L2 norm of the gradients of all weights that an optimizer steps; of a large weight from a sample."""
    sizes = {name: math.prod(shape) for layer in run.layers for name, shape in layer.shapes.items()}
    readings = [(sizes.get(name, 0), look.of(name, "parameter_grad")) for name in look.stepped]
    squares = [size * reading.moments.rms**2 for size, reading in readings if reading is not None]
    return math.sqrt(sum(square for square in squares if math.isfinite(square)))


def weight_decay(run: Run) -> Iterator[Symptom]:
    """Report weight decay that moves the weights as far as the gradient does, or farther, in most layers.

    Where it is added to the gradient, both are compared. Where it is taken from the weight, the whole step is: parts
    that are independent add up as squares, so that the gradient's part is the smaller one if the step is less than the
    root of 2 times the decay's.
    """
    look, added, taken = run.now, [], []
    if run.losses.is_at_zero or look.overflowed or not any(held.decay for held in run.held_back.values()):
        return
    for layer in run.layers:
        name = next((name for name in layer.weights if len(layer.shapes.get(name, ())) > 1), "")
        held, stepped = run.held_back.get(name), look.stepped.get(name)
        before, gradient = look.of(name, "parameter_before"), look.of(name, "parameter_grad")
        if held is None or stepped is None or before is None or gradient is None or not before.moments.rms > 0:
            continue
        if held.is_decoupled:
            update = look.of(name, "parameter_update")
            if update is not None:
                taken.append((stepped.rate * held.decay, update.moments.rms / before.moments.rms))
        else:
            added.append((held.decay * before.moments.rms, gradient.moments.rms, stepped.rate * held.decay))
    if taken:
        yield from _taken(run, median_of(share for share, _ in taken), median_of(ratio for _, ratio in taken))
    elif added:
        yield from _added(run, *(median_of(part) for part in zip(*added, strict=True)))


def _taken(run: Run, share: float, ratio: float) -> Iterator[Symptom]:
    if share >= UPDATE_RATIO_SMALL and ratio < math.sqrt(2) * share:
        evidence = (
            f"weight decay takes {share:.1%} of the weights in each step, and with the gradient a step moves them by "
            f"{ratio:.1%} of their size (in the median over the layers){harm_of(run)}"
        )
        advice = "lower weight_decay; 0.01 is the default of AdamW"
        is_hard = share >= DECAY_SHARE_ALARM
        severity: Severity = "alarm" if is_hard else severity_of(run)
        yield Symptom("", evidence, advice, severity, size=share, is_hard=is_hard)


def _added(run: Run, decay: float, gradient: float, share: float) -> Iterator[Symptom]:
    if share >= UPDATE_RATIO_SMALL and decay > gradient > 0:
        held = max(held.decay for held in run.held_back.values())
        evidence = (
            f"weight decay adds {decay:.2g} to gradients of {gradient:.2g} (RMS, in the median over the layers)"
            f"{harm_of(run)}"
        )
        advice = f"lower weight_decay to at most {held * gradient / decay / 10:.1g}, a tenth of the gradient"
        yield Symptom("", evidence, advice, severity_of(run), size=decay / gradient)


CLIPPING = Rule(
    "clipping",
    clipping,
    look_at="health/gradient_rms",
    about="the Trainer clips gradients to less than a tenth of what arrives, at each look; an alarm if the loss shows "
    "harm and the steps follow the size of the gradient, as those of SGD",
)
WEIGHT_DECAY = Rule(
    "weight_decay",
    weight_decay,
    look_at="health/update_ratio",
    about="weight decay moves the weights farther than the gradient does; an alarm if the loss shows harm, or if it "
    "takes 1 % of the weights in each step",
)
