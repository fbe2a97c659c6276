"""Runs of hand-made looks: a chain of layers that is healthy unless a test says otherwise."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from health.looks import layers, look, reading, row

from hookboard.health.rule import Finding, Rule
from hookboard.health.run import Flow, Run, StepFacts
from hookboard.measure.row import Reading
from hookboard.model.layers import Kind, Layer

WINDOW = 3

Rows = list[list[float]]


def linear(name: str, units: int = 8, takes: int = 8, kind: Kind = "linear", trainable: bool = True) -> Layer:
    weight, bias = f"{name}.weight", f"{name}.bias"
    names = frozenset({weight, bias} if trainable else ())
    return Layer(name, "Linear", kind, (weight, bias), names, {weight: (units, takes), bias: (units,)})


def without_weights(name: str, kind: Kind = "rectifier", type_: str = "ReLU") -> Layer:
    return Layer(name, type_, kind)


def noise(units: int, seed: int = 0, scale: float = 1.0, count: float = 100) -> Rows:
    """A row for each unit: around 0, each of another mean and deviation."""
    drawn = np.random.default_rng(seed).uniform(0.5, 1.5, units)
    return [row(count, mean=0.1 * scale * d, deviation=scale * d) for d in drawn]


def rectified(units: int, zeros: float = 60.0, count: float = 100) -> Rows:
    return [row(count, mean=0.4, deviation=0.5, zeros=zeros, low=0.0) for _ in range(units)]


def nothing(units: int, count: float = 100) -> Rows:
    """Units that are 0 at every sample."""
    return [row(count, mean=0.0, deviation=0.0, zeros=count) for _ in range(units)]


def outputs(name: str, rows: Rows) -> Reading:
    return reading(name, "output", rows)


def weights(
    name: str, units: int = 8, seed: int = 0, rows: Rows | None = None, gradient: Rows | None = None
) -> list[Reading]:
    """Of a layer's weight: itself, and its gradient."""
    values = noise(units, seed, 0.1) if rows is None else rows
    gradients = noise(units, seed + 1, 0.01) if gradient is None else gradient
    parts = (("parameter_before", values), ("parameter_grad", gradients))
    return [reading(f"{name}.weight", role, part) for role, part in parts]


def run_of(
    given: Sequence[Layer],
    readings: Callable[[int], Iterable[Reading]],
    count: int = 6,
    losses: Callable[[int], Sequence[float]] | None = None,
    every: int = 10,
) -> Run:
    """A run after so many looks, one in `every` steps; `losses` gives those of the steps since the look before."""
    run = Run(layers(*given), WINDOW)
    for number in range(count):
        seen = losses(number) if losses else ()
        run.see(look(every * number, list(readings(number)), seen))
    return run


def apart(**above: Sequence[str]) -> StepFacts:
    """What is known of a step in which each of these layers is fed by the ones that are given for it."""
    return StepFacts(Flow({name: sum(1 << i for i, o in enumerate(above) if o in above[name]) for name in above}))


def harmed(number: int) -> list[float]:
    """Losses that rise."""
    return list(np.random.default_rng(number).normal(2.3 if number else 1.0, 0.01, 10))


def falling(number: int) -> list[float]:
    return [2.3 * 0.98 ** (10 * number + i) for i in range(10)]


def findings(rule: Rule, run: Run) -> list[Finding]:
    return list(rule.judge(run))
