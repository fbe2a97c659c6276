"""TheDeepChecker (Ben Braiek and Khomh, TOSEM 2023; repository `thedeepchecker/thedeepchecker`), its defaults.

Every 10 steps, from step 10 on: units whose 95th percentile of absolute activation is below 1e-5, or, of tanh and
sigmoid, whose saturation index is above 0.85, alarm for a layer with more than half of such; mean absolute gradient
below 1e-6 or above 1e6, or halved or doubled five times in a row; the mean update over the mean weight outside of 1e-4
to 0.1; a loss that is twice its minimum; NaN and Inf anywhere. At the first step the loss against that of chance.

Left out: its checks of the standard deviation of activations (0.5 to 2) and of a loss that stagnates, which are made
for fits to a single batch and would alarm on nearly everything here, and the similarity of training and evaluation.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

from benchmarks.health.alarms import Alarm
from benchmarks.health.published.seen import alarm, has_nonfinite, layer_of, matrices, of_role
from benchmarks.health.trace import Extra, Trace

from hookboard.health.look import Look

PERIOD, ROUNDS = 2, 5
DEAD, MOST, SATURATED = 1e-5, 0.5, 0.85
SMALLEST, LARGEST = 1e-6, 1e6
SLOW, FAST = -4, -1


def deepchecker(trace: Trace) -> list[Alarm]:
    alarms = list(_first_loss(trace))
    sizes: dict[str, list[float]] = {}
    for number, look in enumerate(trace.looks):
        for name, reading in of_role(look, "parameter_grad"):
            sizes.setdefault(name, []).append(reading.moments.abs_mean)
        alarms += _nonfinite(trace, look)
        if number and number % PERIOD == 0:
            alarms += _activations(trace, look, trace.extras.get(look.step, {}))
            alarms += _gradients(trace, look, sizes)
            alarms += _updates(trace, look)
            alarms += _loss(trace, look)
    return sorted(alarms, key=lambda one: one.since)


def _first_loss(trace: Trace) -> Iterator[Alarm]:
    if not trace.accuracies:
        return
    chance = math.log(128 if any(layer.kind == "embedding" for layer in trace.layers.values()) else 10)
    if abs(trace.losses[0] - chance) >= chance:
        yield alarm("poor initial loss", "", 0, "activation_scale exploding_gradient")


def _nonfinite(trace: Trace, look: Look) -> Iterator[Alarm]:
    for site, reading in look.readings.items():
        if has_nonfinite(reading):
            module = site.name if site.role in ("input", "output", "grad_output") else layer_of(trace.layers, site.name)
            yield alarm("numerical instability", module, look.step, "nonfinite")


def _activations(trace: Trace, look: Look, extras: dict[str, Extra]) -> Iterator[Alarm]:
    for name, extra in extras.items():
        if trace.layers[name].kind == "bounded":
            if (extra.saturation > SATURATED).mean() > MOST:
                yield alarm("saturated layer", name, look.step, "saturated")
        elif (extra.percentile < DEAD).mean() > MOST:
            yield alarm("dead layer", name, look.step, "dead_units")


def _gradients(trace: Trace, look: Look, sizes: dict[str, list[float]]) -> Iterator[Alarm]:
    for layer, name in matrices(trace.layers):
        recent = sizes.get(name, [])[-ROUNDS:]
        if not recent:
            continue
        steps = list(pairwise(recent)) if len(recent) == ROUNDS else []
        if recent[-1] < SMALLEST or (steps and all(after <= 0.5 * before for before, after in steps)):
            yield alarm("vanishing gradient", layer, look.step, "vanishing_gradient no_gradient")
        if recent[-1] > LARGEST or (steps and all(after >= 2 * before > 0 for before, after in steps)):
            yield alarm("exploding gradient", layer, look.step, "exploding_gradient")


def _updates(trace: Trace, look: Look) -> Iterator[Alarm]:
    for layer, name in matrices(trace.layers):
        update, before = look.of(name, "parameter_update"), look.of(name, "parameter_before")
        if before is not None and update is None:
            yield alarm("untrained weight", layer, look.step, "not_updated no_gradient")
        if update is None or before is None or not before.moments.abs_mean:
            continue
        ratio = update.moments.abs_mean / before.moments.abs_mean
        if not ratio:
            yield alarm("untrained weight", layer, look.step, "not_updated no_gradient")
        elif math.log10(ratio) > FAST:
            yield alarm("fast updates", layer, look.step, "update_too_large")
        elif math.log10(ratio) < SLOW:
            yield alarm("slow updates", layer, look.step, "update_too_small")


def _loss(trace: Trace, look: Look) -> Iterator[Alarm]:
    losses = trace.losses[: look.step + 1]
    period = PERIOD * trace.every
    means = [sum(losses[i : i + period]) / period for i in range(0, len(losses) - period + 1, period)]
    if any(not math.isfinite(loss) for loss in losses[-period:]):
        yield alarm("invalid loss", "", look.step, "nonfinite")
    elif len(means) >= ROUNDS and all(mean >= 2 * min(means) for mean in means[-ROUNDS:]) and min(means) > 0:
        yield alarm("diverging loss", "", look.step, "update_too_large exploding_gradient")
