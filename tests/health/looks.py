"""Looks made by hand, for tests of rules: every number is given, nothing is measured."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hookboard.health.look import Look, Loss, Stepped
from hookboard.measure.row import FIELDS, Moments, Places, Reading, Readings
from hookboard.model.layers import Layer
from hookboard.model.sites import Role, Site


def row(
    count: float = 100,
    mean: float = 0.0,
    deviation: float = 1.0,
    zeros: float = 0.0,
    low: float | None = None,
    high: float | None = None,
    nonfinite: float = 0.0,
) -> list[float]:
    """One row in the order of FIELDS. Extremes are three deviations away unless they are given."""
    low = mean - 3 * deviation if low is None else low
    high = mean + 3 * deviation if high is None else high
    return [count, mean, deviation, math.hypot(mean, deviation), zeros, nonfinite, 0.0, 0.0, low, high]


def dropped(count: float, zeros: float, spread: float = 1.0) -> list[float]:
    """A row of what a dropout leaves of numbers around 0: scaled, so that the deviation grows by the root."""
    return row(count, 0.0, spread * math.sqrt(count / (count - zeros)), zeros=zeros)


def reading(name: str, role: Role, rows: Sequence[Sequence[float]]) -> Reading:
    """A reading of a site: several rows are its channels, which should have equal counts; one row has no channels."""
    channels = np.array(rows, dtype=np.float64)
    if len(rows) == 1:
        return Reading(Site(name, role), Moments(*channels[0]), {}, None)
    count, mean, deviation, abs_mean, *_ = channels.T
    whole = count.sum()
    middle = (count * mean).sum() / whole
    spread = math.sqrt((count * (deviation**2 + (mean - middle) ** 2)).sum() / whole)
    sums = dict(zip(FIELDS[4:8], channels[:, 4:8].sum(0), strict=True))
    moments = Moments(
        count=whole,
        mean=middle,
        deviation=spread,
        abs_mean=(count * abs_mean).sum() / whole,
        **sums,
        min=channels[:, 8].min(),
        max=channels[:, 9].max(),
    )
    return Reading(Site(name, role), moments, {}, None, channels=channels, width=len(channels))


def readings_of(made: Iterable[Reading]) -> Readings:
    """The table of readings in training."""
    made = list(made)
    names = dict.fromkeys(name for one in made for name in one.statistics)
    return Readings(
        Places([one.site for one in made]),
        np.array([one.moments for one in made], dtype=np.float64).reshape(-1, len(FIELDS)),
        [one.channels for one in made],
        [one.dtype for one in made],
        [one.width for one in made],
        {name: [one.statistics.get(name) for one in made] for name in names},
        [one.histogram for one in made],
        "train",
    )


def look(
    step: int,
    readings: Sequence[Reading],
    losses: Sequence[float] = (),
    stepped: Mapping[str, Stepped] | None = None,
) -> Look:
    """A look; the losses are those of the last steps."""
    first = step - len(losses) + 1
    points = [Loss(first + i, first + i, value) for i, value in enumerate(losses)]
    return Look(step, step, readings_of(readings), points, stepped or {})


def layers(*given: Layer) -> dict[str, Layer]:
    return {layer.name: layer for layer in given}
