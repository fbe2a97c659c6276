"""One number for each layer at each look: what rules compare and heat maps show.

All layers of a look are computed at once: a call for each layer and quantity takes far longer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.look import Look
from hookboard.measure import FIELDS, dead_share
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

_COUNT, _MEAN, _DEVIATION, _ZEROS, _NAN, _POSINF, _NEGINF = map(
    FIELDS.index, ("count", "mean", "deviation", "zeros", "nan", "posinf", "neginf")
)

_NOTHING = (0.0, math.nan, math.nan, math.nan, math.nan, 0.0, 0.0, 0.0, math.nan, math.nan)
"""The row of what was not measured."""


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

    def __init__(self, look: Look, names: tuple[str, ...], role: Role) -> None:
        places = look.table.places.rows(role, names)
        self.is_there = places >= 0
        rows = np.full((len(names), len(FIELDS)), _NOTHING)
        rows[self.is_there] = look.table.rows[places[self.is_there]]
        self.count, self.zeros = rows[:, _COUNT], rows[:, _ZEROS]
        self._mean, self._deviation = rows[:, _MEAN], rows[:, _DEVIATION]
        self.is_spoiled = (rows[:, [_NAN, _POSINF]] > 0).any(axis=1) | ((rows[:, _NEGINF] > 0) & (self.count == 0))
        self.channels = [None if place < 0 else look.table.channels[place] for place in places.tolist()]

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
    names = tuple(layer.name for layer in layers)
    weights = tuple(name for layer in layers for name in layer.weights)
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
            "dead_fraction": _dead_fractions(output),
            "sample_spread": np.array([_sample_spread(rows) for rows in output.channels], dtype=np.float64),
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


def _updates(look: Look, weights: tuple[str, ...], owner: np.ndarray, owners: int) -> tuple[np.ndarray, np.ndarray]:
    """The update ratio of each layer, and whether it is spoiled."""
    before, update = _Rows(look, weights, "parameter_before"), _Rows(look, weights, "parameter_update")
    is_spoiled = np.bincount(owner, before.is_spoiled | update.is_spoiled, owners) > 0
    before.count[~update.is_there] = 0.0
    whole, step = before.joint_rms(owner, owners), update.joint_rms(owner, owners)
    ratios = np.where(whole != 0, step / whole, np.where(step != 0, np.inf, np.nan))
    return ratios, is_spoiled


def _dead_fractions(output: _Rows) -> np.ndarray:
    # In most layers nothing is 0, and nothing else needs to be looked at.
    has_none = (output.count > 0) & (output.zeros == 0)
    shares = [
        math.nan if channels is None else 0.0 if none else dead_share(channels)
        for channels, none in zip(output.channels, has_none.tolist(), strict=True)
    ]
    return np.array(shares, dtype=np.float64)


def _sample_spread(channels: np.ndarray | None) -> float:
    if channels is None:
        return math.nan
    deviation, mean = channels[:, _DEVIATION], channels[:, _MEAN]
    within, between = float(deviation @ deviation), float(mean @ mean)
    whole = within + between
    return math.sqrt(within / whole) if 0 < whole < math.inf else math.nan
