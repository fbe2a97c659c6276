"""DeepDiagnosis (Wardat et al., ICSE 2022; repository `DeepDiagnosis/ICSE2022`): the first symptom ends the training.

At the end of each epoch, layer by layer: a mean output that is NaN, Inf or 0; more than half of what a tanh or sigmoid
takes outside of -5 to 5 (every fifth epoch); the same mean for five epochs; an invalid loss or one that stays the same;
a mean gradient that is NaN, Inf or 0, or below 1e-7; in the last epoch a ReLU of which 70 % of the outputs are 0. What
it advises then looks at the range of the inputs (-1 to 1), the variance of weights (1e-5 to 10) and rate * gradient /
weight (1e-5 to 0.1); each is taken for a name of the cause too.
"""

import math
from collections.abc import Iterator

from benchmarks.health.alarms import Alarm
from benchmarks.health.published.seen import LOOKS_PER_EPOCH, alarm, l2, matrices, of_role, variance
from benchmarks.health.trace import Trace

from hookboard.health.look import Look

DEAD, SATURATED, VANISHING = 0.7, 0.5, 1e-7
EPOCHS = 5


def deepdiagnosis(trace: Trace) -> list[Alarm]:
    looks = trace.looks[LOOKS_PER_EPOCH::LOOKS_PER_EPOCH]
    for epoch, look in enumerate(looks):
        symptoms = _symptoms(
            trace,
            looks,
            epoch,
            {n: e.beyond[5.0] for n, e in trace.extras.get(look.step, {}).items() if hasattr(e, "beyond")},
        )
        first = next(symptoms, None)
        if first is not None:
            says, module, means = first
            return [alarm(says, module, look.step, f"{means} {_analysis(trace, look)}")]
    return []


def _symptoms(trace: Trace, looks: list[Look], epoch: int, beyond: dict[str, float]) -> Iterator[tuple[str, str, str]]:
    look, is_fifth = looks[epoch], (epoch + 1) % EPOCHS == 0
    for name, reading in of_role(look, "output"):
        mean = reading.moments.mean
        if reading.moments.nonfinite:
            yield "numerical problem, forward", name, "nonfinite"
        if mean == 0:
            yield "numerical problem, forward (0)", name, "dead_units no_gradient collapsed"
        is_rectifier = name in trace.layers and trace.layers[name].kind == "rectifier"
        if is_rectifier and epoch == len(looks) - 1 and reading.moments.zeros / reading.moments.count >= DEAD:
            yield "dead node", name, "dead_units"
        if is_fifth and beyond.get(name, 0) > SATURATED and trace.layers[name].kind == "bounded":
            yield "saturated activation", name, "saturated"
    if is_fifth:
        for name, _ in list(of_role(look, "output"))[:-1]:
            recent = [r.moments.mean for past in looks[epoch - 4 : epoch + 1] if (r := past.of(name, "output"))]
            if len(recent) == EPOCHS and len(set(recent)) == 1:
                yield "unchanged tensor", name, "not_updated update_too_small collapsed"
    losses = trace.losses[: look.step + 1]
    if any(not math.isfinite(loss) for loss in losses):
        yield "invalid loss", "", "nonfinite"
    if is_fifth and len({round(loss, 12) for loss in losses[-EPOCHS * LOOKS_PER_EPOCH * trace.every :]}) == 1:
        yield "loss not decreasing", "", "not_learning not_updated update_too_small"
    for layer, name in reversed(list(matrices(trace.layers))):
        gradient = look.of(name, "parameter_grad")
        if gradient is None:
            continue
        if gradient.moments.nonfinite:
            yield "numerical problem, gradient", layer, "nonfinite"
        if gradient.moments.mean == 0:
            yield "numerical problem, gradient (0)", layer, "no_gradient dead_units"
        if gradient.moments.abs_mean < VANISHING:
            yield "vanishing gradient", layer, "vanishing_gradient no_gradient"


def _analysis(trace: Trace, look: Look) -> str:
    """What the advice would name beside the symptom."""
    first = next((r for _, r in of_role(look, "input")), None)
    if first is not None and (first.moments.min < -1 or first.moments.max > 1) and first.moments.max > 10:
        return "input_scale"
    for _, name in matrices(trace.layers):
        weight = look.of(name, "parameter_before")
        if weight is not None and not 1e-5 <= variance(weight) <= 10:
            return "activation_scale symmetric_units"
    for _, name in matrices(trace.layers):
        weight, gradient = look.of(name, "parameter_before"), look.of(name, "parameter_grad")
        if weight is None or gradient is None or name not in look.stepped or not l2(weight):
            continue
        ratio = look.stepped[name].rate * l2(gradient) / l2(weight)
        if not 1e-5 <= ratio <= 0.1:
            return "update_too_large" if ratio > 0.1 else "update_too_small"
    return ""
