"""The scalars of the page: what is usual over the layers, and the worst layer; and the charts that show them."""

from collections.abc import Sequence

import numpy as np

from hookboard.health.run import Run
from hookboard.health.spikes import median
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
        finite = sorted(values[np.isfinite(values)].tolist())
        if finite:
            found |= {f"health/{quantity}/{name}": percentile(finite, p) for name, p in PERCENTILES.items()}
            layer = worst(quantity, run, verdicts)
            if layer is not None:
                found[f"health/{quantity}/worst"] = layer[1]
    return found


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of finite numbers in ascending order, as NumPy gives it, which takes far longer for so few.

    >>> percentile([1.0, 2.0, 4.0], 75)
    3.0
    """
    at = (len(ordered) - 1) * (percent / 100)
    place = min(int(at), max(len(ordered) - 2, 0))
    low, high, share = ordered[place], ordered[min(place + 1, len(ordered) - 1)], at - place
    # Counted from the nearer one, the ends are met exactly.
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


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


def worst(quantity: str, run: Run, verdicts: Sequence[Verdict]) -> tuple[str, float] | None:
    """The name and the value of the layer with the worst verdict; without one, of that farthest from the others.

    Of dead units the greatest share. None if no layer has a finite value.
    """
    values = run.recent(quantity)[:, -1]
    places = np.flatnonzero(np.isfinite(values))
    if not len(places):
        return None
    if quantity == "dead_fraction":
        place = int(places[np.argmax(values[places])])
    else:
        lasting = (run.place(verdict.module) for verdict in verdicts if verdict.until is None)
        sick = next((place for place in lasting if place in places), None)
        place = _farthest(values, places) if sick is None else sick
    return run.layers[place].name, float(values[place])


def _farthest(values: np.ndarray, places: np.ndarray) -> int:
    """The one of these places whose value is farthest from the others, in its logarithm."""
    logs = np.log10(np.maximum(values[places], np.finfo(np.float64).tiny))
    return int(places[np.argmax(np.abs(logs - median(logs)))])


def _tags(quantity: str, *names: str) -> list[str]:
    return [f"health/{quantity}/{name}" for name in names]
