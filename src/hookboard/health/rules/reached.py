"""Which weights of a layer an optimizer steps, a gradient reaches, and have moved."""

import math
from collections.abc import Iterable, Sequence

from hookboard.health.look import Look
from hookboard.health.run import Run, median_of
from hookboard.layers import Layer
from hookboard.recording import Numbers

DONE = 1e-4
"""Share of its first gradient below which a layer that has moved has nothing more to learn (a choice)."""


def has_moved(run: Run, weight: str, unknown: bool = True) -> bool:
    """Whether a weight is another than at a look before, `unknown` if not seen: in a GAN optimizers take turns."""
    readings = [look.numbers(weight, "parameter") for look in run.looks]
    known = [(m.mean, m.deviation, m.min, m.max) for m in (r.moments for r in readings if r is not None)]
    return unknown if len(known) < 2 else any(numbers != known[-1] for numbers in known)


def is_done(run: Run, layer: Layer) -> bool:
    """Whether a layer has moved, and hardly any gradient is left of that at first: there is nothing more to learn."""
    place = run.place(layer.name)
    first, now = run.course("weight_gradient_rms", 1)[place, 0], run.recent("weight_gradient_rms")[place, -1]
    return bool(now < DONE * first and (run.course("update_ratio")[place] > 0).any())


def stepped_weights(look: Look, layer: Layer) -> list[str]:
    """Its trainable weights with gradients of their own that an optimizer stepped at this look.

    A large embedding of which only some rows were measured is left out: the tokens of the batch may be in none of them.
    """
    stepped = [name for name in layer.stepped if name in look.stepped]
    if layer.kind != "embedding":
        return stepped
    return [name for name in stepped if _is_whole(look, name, layer.shapes.get(name, ()))]


def _is_whole(look: Look, name: str, shape: Sequence[int]) -> bool:
    reading = look.numbers(name, "parameter")
    return reading is None or reading.moments.count + reading.moments.nonfinite >= math.prod(shape)


def main_weights(layer: Layer, names: Iterable[str]) -> list[str]:
    """Of some of its weights those with two or more dimensions; all of them if there is none."""
    names = list(names)
    return [name for name in names if len(layer.shapes.get(name, ())) > 1] or names


def has_gradient(look: Look, weight: str) -> bool:
    """Whether a gradient that is not all 0 has reached a weight."""
    return reaches(look.numbers(weight, "parameter_grad"))


def gets_zeros(look: Look, layer: Layer) -> bool:
    """Whether a gradient has come to all that a layer learns, and all of it is 0."""
    gradients = [look.numbers(name, "parameter_grad") for name in layer.trainable]
    return bool(gradients) and not any(gradient is None or reaches(gradient) for gradient in gradients)


def usual_gradient(run: Run) -> float:
    """The median over the layers that a gradient reaches; NaN if there is none. Before a dead layer none arrives."""
    gradients = run.recent("weight_gradient_rms")[:, -1]
    return median_of(gradients[gradients > 0].tolist())


def reaches(gradient: Numbers | None) -> bool:
    """Whether a gradient is there and not all 0."""
    if gradient is None:
        return False
    moments = gradient.moments
    # Of finite values with any other than 0 the mean or the deviation is not 0; both are 0 where there are none.
    return moments.deviation > 0 or abs(moments.mean) > 0 or moments.nonfinite > 0
