"""The scalars of the page: what is usual over the layers, and the worst layer; and the charts that show them."""

from collections.abc import Sequence

import numpy as np

from hookboard.health.run import Run
from hookboard.health.verdict import Verdict
from hookboard.writers import Layout

SHOWN = {
    "activation_rms": "RMS of activations",
    "gradient_rms": "RMS of gradients",
    "update_ratio": "update-to-weight ratio",
    "dead_fraction": "share of dead units",
}
"""The quantities of the page, in words."""

PERCENTILES = {"p10": 10, "median": 50, "p90": 90}


def scalars(run: Run, verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Four numbers for each quantity of the latest look, by tag: 16 whatever the number of layers.

    A quantity that no layer has is left out.
    """
    found: dict[str, float] = {}
    for quantity in SHOWN:
        values = run.recent(quantity)[:, -1]
        finite = values[np.isfinite(values)]
        if len(finite):
            levels = np.percentile(finite, list(PERCENTILES.values())).tolist()
            found |= {f"health/{quantity}/{name}": level for name, level in zip(PERCENTILES, levels, strict=True)}
            found[f"health/{quantity}/worst"] = _worst(quantity, values, run, verdicts)
    return found


def layout() -> Layout:
    """The charts of TensorBoard's custom scalars: for each quantity what is usual, and the worst layer."""
    usual = {
        f"{words}: median, 10 to 90 % of layers": ["Margin", _tags(quantity, "median", "p10", "p90")]
        for quantity, words in SHOWN.items()
    }
    worst = {
        f"{words}: worst layer and median": ["Multiline", _tags(quantity, "worst", "median")]
        for quantity, words in SHOWN.items()
    }
    return {"health: all layers": usual, "health: the worst layer": worst}


def _tags(quantity: str, *names: str) -> list[str]:
    return [f"health/{quantity}/{name}" for name in names]


def _worst(quantity: str, values: np.ndarray, run: Run, verdicts: Sequence[Verdict]) -> float:
    """The value of the layer with the worst verdict; without one, the value farthest from the others.

    Of dead units the greatest share.
    """
    finite = values[np.isfinite(values)]
    if quantity == "dead_fraction":
        return float(finite.max())
    for verdict in verdicts:
        place = run.place(verdict.module)
        if verdict.until is None and place < len(values) and np.isfinite(values[place]):
            return float(values[place])
    logs = np.log10(np.maximum(finite, np.finfo(np.float64).tiny))
    return float(finite[np.argmax(np.abs(logs - np.median(logs)))])
