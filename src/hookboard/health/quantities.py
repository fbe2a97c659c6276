"""One number for each layer at each look: what rules compare and heat maps show.

All layers of a look are computed at once: a call for each layer and quantity takes far longer.
"""

from dataclasses import dataclass

import numpy as np

from hookboard.health.sheet import Rows, Sheet

QUANTITIES: dict[str, str] = {
    "activation_rms": "The RMS of the layer's output.",
    "gradient_rms": "The RMS of the gradient of the layer's output.",
    "weight_rms": "The RMS of all weights that the layer owns.",
    "weight_gradient_rms": "The RMS of the gradients of all its weights.",
    "update_ratio": "The L2 norm of what the step changed of its weights, over that of the weights before.",
    "dead_fraction": "The share of the output's channels (of more than 4096: of every k-th) that are 0 throughout.",
    "sample_spread": "How much the output differs from sample to sample (or place): deviation in a channel over RMS.",
}
"""Every quantity by name."""


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


def column_of(sheet: Sheet) -> Column:
    """All quantities of all layers at a look."""
    output, gradient, layers = sheet.rows("output"), sheet.rows("grad_output"), len(sheet.table.names)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ratios, is_spoiled = _updates(sheet)
        values = {
            "activation_rms": output.rms,
            "gradient_rms": gradient.rms,
            "weight_rms": _joint_rms(sheet, sheet.rows("parameter")),
            "weight_gradient_rms": _joint_rms(sheet, sheet.rows("parameter_grad")),
            "update_ratio": ratios,
            "dead_fraction": _dead_fractions(output),
            "sample_spread": _sample_spreads(output),
        }
    never = np.zeros(layers, dtype=bool)
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


def _joint_rms(sheet: Sheet, rows: Rows, counted: np.ndarray | None = None) -> np.ndarray:
    """The RMS of all weights of each layer, shape (layers,).

    Args:
        sheet: the look.
        rows: of each weight.
        counted: which weights count, shape (weights,); left out, all.
    """
    count = rows.count if counted is None else rows.count * counted
    squares = np.where(count > 0, rows.rms * rows.rms * count, 0.0)
    owner, layers = sheet.table.owner, len(sheet.table.names)
    return np.sqrt(np.bincount(owner, squares, layers) / np.bincount(owner, count, layers))


def _updates(sheet: Sheet) -> tuple[np.ndarray, np.ndarray]:
    """The update ratio of each layer, and whether it is spoiled."""
    before, update = sheet.rows("parameter_before"), sheet.rows("parameter_update")
    table = sheet.table
    is_spoiled = np.bincount(table.owner, before.is_spoiled | update.is_spoiled, len(table.names)) > 0
    whole, step = _joint_rms(sheet, before, update.is_there), _joint_rms(sheet, update)
    ratios = np.where(whole != 0, step / whole, np.where(step != 0, np.inf, np.nan))
    return ratios, is_spoiled


def _dead_fractions(output: Rows) -> np.ndarray:
    """The share of channels with nothing but zeros, of those with a finite value."""
    units = output.units
    dead = units.is_zero
    if output.nonfinite.any():
        is_finite = [units.column(field) == 0 for field in ("nan", "posinf", "neginf")]
        dead = np.logical_and.reduce([dead, *is_finite])
    shares = np.full(len(output.count), np.nan)
    shares[units.places] = units.each(np.add, dead, np.intp) / units.each(np.add, units.has_values, np.intp)
    return shares


def _sample_spreads(output: Rows) -> np.ndarray:
    units = output.units
    mean = units.column("mean")
    within = units.within
    whole = within + units.each(np.add, mean * mean)
    spreads = np.full(len(output.count), np.nan)
    spreads[units.places] = np.where((whole > 0) & (whole < np.inf), np.sqrt(within / whole), np.nan)
    return spreads
