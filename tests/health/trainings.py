"""Whole trainings made by hand, for rules: a small chain of layers that is well, in which single readings are changed.

Of single numbers of a `Run`, without a judge, `runs.py` makes histories.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from health import looks
from health.looks import reading, row
from health.runs import linear

from hookboard.health.judge import Judge
from hookboard.health.look import Look, Stepped
from hookboard.health.rule import Finding, Rule
from hookboard.health.run import Run
from hookboard.measure.row import Reading
from hookboard.model.layers import Layer
from hookboard.model.sites import Role, Site

WINDOW = 3
VARIANTS = 16

Changes = Mapping[tuple[str, Role], Reading | None]
"""Readings to take in place of the usual ones; None for none."""


LAYERS = looks.layers(
    linear("fc0"), Layer("act0", "ReLU", "rectifier"), linear("fc1"), Layer("act1", "ReLU", "rectifier"), linear("head")
)
WEIGHTS = [weight for layer in LAYERS.values() for weight in layer.weights]
RNG = np.random.default_rng(0)


def usual(layers: Mapping[str, Layer] = LAYERS) -> list[Reading]:
    """The readings of a healthy step: activations 1, gradients 0.01, weights 0.1, updates 1e-4, eight channels."""
    outputs = [of(name, "output", 1.0, mean=0.5) for name in layers]
    head, *others = reversed(layers)
    # Behind a softmax the gradients of each sample add up to 0.
    balanced = reading(head, "grad_output", [row(100, mean, 0.01) for mean in [0.003, -0.003] * 4])
    gradients = [balanced, *(of(name, "grad_output", 0.01) for name in others)]
    names = [name for layer in layers.values() for name in layer.weights]
    parts = [(of(name, "parameter_grad", 0.01), _weight(name), of(name, "parameter_update", 1e-4)) for name in names]
    return [*outputs, *gradients, *(one for part in parts for one in part)]


@cache
def _variant(names: tuple[str, ...], number: int) -> list[Reading]:
    """One of a few healthy steps, because it takes long to make them."""
    return usual({name: LAYERS.get(name) or linear(name) for name in names})


@cache
def _weight(name: str) -> Reading:
    """The same at each look: what rules read of a move is `parameter_update`."""
    return of(name, "parameter_before", 0.1)


def of(name: str, role: Role, deviation: float, mean: float = 0.0, channels: int = 8) -> Reading:
    """A reading whose channels have means of their own."""
    means = mean + deviation * 0.3 * RNG.normal(size=channels)
    return reading(name, role, [row(100, float(m), deviation) for m in means])


def zeros(name: str, role: Role) -> Reading:
    return reading(name, role, [row(100, 0.0, 0.0, zeros=100, low=0.0, high=0.0)] * 8)


def training(
    looks_: int = 2 * WINDOW,
    change: Callable[[int], Changes] = lambda step: {},
    losses: Sequence[float] | None = None,
    every: int = 1,
    rate: float | Callable[[int], float] = 1e-3,
    held: Iterable[str] | Callable[[int], Iterable[str]] = tuple(WEIGHTS),
    layers: Mapping[str, Layer] = LAYERS,
    edit: Callable[[Look], Look] = lambda look: look,
) -> list[Look]:
    """The looks of a training, one in `every` steps.

    `change` gives what readings are changed at a step, `edit` changes a whole look; `losses` are those of all steps.
    """
    losses = falling(looks_ * every) if losses is None else losses
    made = []
    for i in range(looks_):
        step = (i + 1) * every - 1
        readings = {r.site: r for r in _variant(tuple(layers), i % VARIANTS)}
        for (name, role), one in change(step).items():
            if one is None:
                readings.pop(Site(name, role), None)
            else:
                readings[Site(name, role)] = one
        at = rate(step) if callable(rate) else rate
        names = held(step) if callable(held) else held
        stepped = {name: Stepped("AdamW", at, True) for name in names}
        one = looks.look(step, list(readings.values()), losses[i * every : step + 1], stepped)
        made.append(edit(one))
    return made


def falling(steps: int) -> list[float]:
    return (2.3 * 0.98 ** np.arange(steps) + 0.01 * np.random.default_rng(0).normal(size=steps)).tolist()


def stuck(steps: int) -> list[float]:
    return (2.3 + 0.02 * np.random.default_rng(0).normal(size=steps)).tolist()


def risen(steps: int) -> list[float]:
    """A loss that falls in the first half, and is back at its start in the second."""
    return [*np.linspace(2.3, 0.5, steps // 2), *stuck(steps - steps // 2)]


def seen(made: Iterable[Look], layers: Mapping[str, Layer] = LAYERS, window: int = WINDOW) -> Run:
    run = Run(layers, window)
    for one in made:
        run.see(one)
    return run


def findings(rule: Rule, made: Iterable[Look], layers: Mapping[str, Layer] = LAYERS) -> list[Finding]:
    """What the rule sees at the last look."""
    return list(rule.judge(seen(made, layers)))


def judged(rules: Sequence[Rule], made: Iterable[Look], layers: Mapping[str, Layer] = LAYERS) -> Judge:
    judge = Judge(rules, layers, WINDOW)
    for one in made:
        judge.see(one)
    return judge


def places(found: Iterable[Finding]) -> list[tuple[str, str]]:
    """Module and severity of each finding."""
    return [(finding.module, finding.severity) for finding in found]
