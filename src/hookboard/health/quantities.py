"""One number for each layer at each look: what rules compare and heat maps show.

All layers of a look are computed at once: a call for each layer and quantity takes far longer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.look import Look
from hookboard.measure import FIELDS, dead_share
from hookboard.recording import Reading
from hookboard.sites import Role

QUANTITIES: dict[str, str] = {
    "activation_rms": "The RMS of the layer's output.",
    "gradient_rms": "The RMS of the gradient of the layer's output.",
    "weight_rms": "The RMS of all weights that the layer owns.",
    "weight_gradient_rms": "The RMS of the gradients of all its weights.",
    "update_ratio": "The L2 norm of what the step changed of its weights, over that of the weights before.",
    "dead_fraction": "The share of the output's channels that are 0 at every sample and place.",
    "sample_spread": "How much the output differs from sample to sample (or place): deviation in a channel over RMS.",
}
"""Every quantity by name."""

_MEAN, _DEVIATION = map(FIELDS.index, ("mean", "deviation"))

_TAKEN = attrgetter("count", "mean", "deviation", "nan", "posinf", "neginf")
_NOTHING = (0.0, math.nan, math.nan, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Column:
    """What a look shows of each layer.

    Args:
        values: by the name of the quantity, shape (layers,), float64; NaN where there was nothing.
        spoiled: by the same names: whether what the quantity is taken of held NaN or +Inf, or nothing finite, shape
            (layers,), booleans. -Inf alone may be a mask. Of outputs, their gradients and updates; False for weights
            and their gradients.
    """

    values: dict[str, np.ndarray]
    spoiled: dict[str, np.ndarray]


class _Rows:
    """The merged rows of one role, where there is one.

    Args:
        look: the look.
        names: of the modules or weights.
        role: the role.

    All arrays have the shape (names,).
    """

    def __init__(self, look: Look, names: Sequence[str], role: Role) -> None:
        self.readings = [look.of(name, role) for name in names]
        rows = [_NOTHING if reading is None else _TAKEN(reading.moments) for reading in self.readings]
        self.count, self._mean, self._deviation, nan, posinf, neginf = np.array(rows).reshape(-1, 6).T
        self.is_spoiled = (nan > 0) | (posinf > 0) | ((neginf > 0) & (self.count == 0))

    @property
    def rms(self) -> np.ndarray:
        """NaN where there is no value."""
        return np.where(self.count > 0, np.hypot(self._mean, self._deviation), np.nan)

    def joint_rms(self, owner: np.ndarray, owners: int) -> np.ndarray:
        """The RMS of all that belongs to each owner, shape (owners,).

        Args:
            owner: the index of the owner of each row.
            owners: how many there are.
        """
        squares = np.where(self.count > 0, self.rms * self.rms * self.count, 0.0)
        return np.sqrt(np.bincount(owner, squares, owners) / np.bincount(owner, self.count, owners))


def column_of(look: Look, layers: Sequence[Layer]) -> Column:
    """All quantities of these layers at a look."""
    names = [layer.name for layer in layers]
    weights = [name for layer in layers for name in layer.weights]
    owner = np.array([i for i, layer in enumerate(layers) for _ in layer.weights], dtype=np.intp)
    output, gradient = _Rows(look, names, "output"), _Rows(look, names, "grad_output")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratios, is_spoiled = _updates(look, weights, owner, len(layers))
        values = {
            "activation_rms": output.rms,
            "gradient_rms": gradient.rms,
            "weight_rms": _Rows(look, weights, "parameter").joint_rms(owner, len(layers)),
            "weight_gradient_rms": _Rows(look, weights, "parameter_grad").joint_rms(owner, len(layers)),
            "update_ratio": ratios,
            "dead_fraction": np.array([_dead_fraction(reading) for reading in output.readings], dtype=np.float64),
            "sample_spread": np.array([_sample_spread(reading) for reading in output.readings], dtype=np.float64),
        }
    never = np.zeros(len(layers), dtype=bool)
    spoiled = {
        "activation_rms": output.is_spoiled,
        "gradient_rms": gradient.is_spoiled,
        "weight_rms": never,
        "weight_gradient_rms": never,
        "update_ratio": is_spoiled,
        "dead_fraction": output.is_spoiled,
        "sample_spread": output.is_spoiled,
    }
    return Column(values, spoiled)


def _updates(look: Look, weights: Sequence[str], owner: np.ndarray, owners: int) -> tuple[np.ndarray, np.ndarray]:
    """The update ratio of each layer, and whether it is spoiled."""
    before, update = _Rows(look, weights, "parameter_before"), _Rows(look, weights, "parameter_update")
    is_spoiled = np.bincount(owner, before.is_spoiled | update.is_spoiled, owners) > 0
    moved = np.array([reading is not None for reading in update.readings], dtype=bool)
    before.count[~moved] = 0.0
    whole, step = before.joint_rms(owner, owners), update.joint_rms(owner, owners)
    ratios = np.where(whole != 0, step / whole, np.where(step != 0, np.inf, np.nan))
    return ratios, is_spoiled


def _dead_fraction(reading: Reading | None) -> float:
    if reading is None or reading.channels is None:
        return math.nan
    if reading.moments.count and reading.moments.zeros == 0:
        return 0.0  # as in most layers; nothing else needs to be looked at
    return dead_share(reading.channels)


def _sample_spread(reading: Reading | None) -> float:
    if reading is None or reading.channels is None:
        return math.nan
    deviation, mean = reading.channels[:, _DEVIATION], reading.channels[:, _MEAN]
    within, between = float(deviation @ deviation), float(mean @ mean)
    whole = within + between
    return math.sqrt(within / whole) if 0 < whole < math.inf else math.nan
