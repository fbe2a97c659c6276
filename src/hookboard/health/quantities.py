"""One number for each layer at each look: what rules compare and heat maps show."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.look import Look
from hookboard.measure import FIELDS
from hookboard.recording import Reading
from hookboard.sites import Role

Quantity = Callable[[Look, Layer], float]

_OF_UPDATES: tuple[Role, ...] = ("parameter_before", "parameter_update")

_OF_OUTPUTS: dict[str, Role] = {
    "activation_rms": "output",
    "gradient_rms": "grad_output",
    "dead_fraction": "output",
    "sample_spread": "output",
}

_COUNT, _MEAN, _DEVIATION, _ZEROS = map(FIELDS.index, ("count", "mean", "deviation", "zeros"))


def activation_rms(look: Look, layer: Layer) -> float:
    """The RMS of the layer's output."""
    return _rms(look.of(layer.name, "output"))


def gradient_rms(look: Look, layer: Layer) -> float:
    """The RMS of the gradient of the layer's output."""
    return _rms(look.of(layer.name, "grad_output"))


def weight_rms(look: Look, layer: Layer) -> float:
    """The RMS of all weights that the layer owns."""
    return _joint_rms(look, layer.weights, "parameter")


def weight_gradient_rms(look: Look, layer: Layer) -> float:
    """The RMS of the gradients of all its weights."""
    return _joint_rms(look, layer.weights, "parameter_grad")


def update_ratio(look: Look, layer: Layer) -> float:
    """The L2 norm of what the optimizer step has changed of its weights, over that of the weights before."""
    stepped = [name for name in layer.weights if look.of(name, "parameter_update") is not None]
    before = _joint_rms(look, stepped, "parameter_before")
    update = _joint_rms(look, stepped, "parameter_update")
    if before:
        return update / before
    return math.inf if update else math.nan


def dead_fraction(look: Look, layer: Layer) -> float:
    """The share of the output's channels that are 0 at every sample and place."""
    channels = _channels(look, layer)
    if channels is None:
        return math.nan
    seen = channels[:, _COUNT] > 0
    return float(np.mean(channels[seen, _ZEROS] == channels[seen, _COUNT])) if seen.any() else math.nan


def sample_spread(look: Look, layer: Layer) -> float:
    """How much the output differs from sample to sample (or place): its deviation within a channel over its RMS."""
    channels = _channels(look, layer)
    if channels is None:
        return math.nan
    deviation, mean = channels[:, _DEVIATION], channels[:, _MEAN]
    with np.errstate(over="ignore", invalid="ignore"):
        within, between = float(deviation @ deviation), float(mean @ mean)
    whole = within + between
    return math.sqrt(within / whole) if 0 < whole < math.inf else math.nan


QUANTITIES: dict[str, Quantity] = {
    quantity.__name__: quantity
    for quantity in (
        activation_rms,
        gradient_rms,
        weight_rms,
        weight_gradient_rms,
        update_ratio,
        dead_fraction,
        sample_spread,
    )
}
"""Every quantity by name."""


def is_spoiled(look: Look, layer: Layer, quantity: str) -> bool:
    """Whether what a quantity is taken of held NaN or +Inf, or nothing finite. -Inf alone may be a mask.

    Of outputs, their gradients and updates; False for any other quantity.
    """
    if quantity == "update_ratio":
        readings = [look.of(name, role) for name in layer.weights for role in _OF_UPDATES]
    else:
        role = _OF_OUTPUTS.get(quantity)
        readings = [] if role is None else [look.of(layer.name, role)]
    moments = [reading.moments for reading in readings if reading is not None]
    return any(m.nan or m.posinf or (m.nonfinite and not m.count) for m in moments)


def _rms(reading: Reading | None) -> float:
    return math.nan if reading is None or not reading.moments.count else reading.moments.rms


def _joint_rms(look: Look, names: Iterable[str], role: Role) -> float:
    readings = [reading for name in names if (reading := look.of(name, role)) is not None]
    count = sum(reading.moments.count for reading in readings)
    return math.sqrt(sum(r.moments.square_sum for r in readings if r.moments.count) / count) if count else math.nan


def _channels(look: Look, layer: Layer) -> np.ndarray | None:
    reading = look.of(layer.name, "output")
    return None if reading is None else reading.channels
