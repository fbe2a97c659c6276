"""What the rules of other tools ask of a look."""

import math
from collections.abc import Iterator

from benchmarks.health.alarms import Alarm

from hookboard.health.look import Look
from hookboard.measure.row import Reading
from hookboard.model.layers import Layer
from hookboard.model.sites import Role

LOOKS_PER_EPOCH = 2


def alarm(says: str, module: str, since: int, means: str) -> Alarm:
    return Alarm(says, module, since, frozenset(means.split()))


def matrices(layers: dict[str, Layer]) -> Iterator[tuple[str, str]]:
    """Layer and weight, of every weight of two or more dimensions."""
    for layer in layers.values():
        for name in layer.weights:
            if len(layer.shapes[name]) > 1:
                yield layer.name, name


def of_role(look: Look, role: Role) -> Iterator[tuple[str, Reading]]:
    return ((site.name, reading) for site, reading in look.readings.items() if site.role == role)


def l2(reading: Reading) -> float:
    return reading.moments.rms * math.sqrt(reading.moments.count)


def variance(reading: Reading) -> float:
    count = reading.moments.count
    return reading.moments.deviation**2 * count / (count - 1) if count > 1 else 0.0


def has_nonfinite(reading: Reading) -> bool:
    return reading.moments.nonfinite > 0


def layer_of(layers: dict[str, Layer], weight: str) -> str:
    return next((layer.name for layer in layers.values() if weight in layer.weights), weight.rpartition(".")[0])


def update_ratios(look: Look) -> dict[str, float]:
    """L2 norm of the update over that of the weight before, by weight."""
    before = dict(of_role(look, "parameter_before"))
    return {
        name: l2(update) / l2(before[name])
        for name, update in of_role(look, "parameter_update")
        if name in before and l2(before[name]) > 0
    }
