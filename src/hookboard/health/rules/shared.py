"""What several rules need: the layer before another one, the rows of a weight, robust numbers, severity."""

import re
from collections.abc import Sequence

import numpy as np

from hookboard.health.measured import every_unit
from hookboard.health.run import Run, median_of
from hookboard.health.verdict import Severity
from hookboard.layers import Kind, Layer
from hookboard.recording import Numbers

MAD = 1.4826
"""A median absolute deviation times this is the standard deviation of normal numbers."""

BOUNDED: frozenset[Kind] = frozenset({"bounded"})
UNBOUNDED: frozenset[Kind] = frozenset({"rectifier", "smooth"})


def activations_of(run: Run, kinds: frozenset[Kind]) -> list[str]:
    """The types of those activations of some kinds that have run, each once; one that is a function is not seen."""
    return list(dict.fromkeys(layer.type for layer in run.layers if layer.kind in kinds and run.has_run(layer)))


def initialization(run: Run) -> str:
    """How the weights of a model begin that has these activations, as a clause of advice."""
    kinds = {"He": UNBOUNDED, "Xavier": BOUNDED}
    found = {name: activations_of(run, of) for name, of in kinds.items()}
    which = ", ".join(f"{name} for {' and '.join(types)}" for name, types in found.items() if types)
    return f"initialize for the activation in use{f' ({which})' if which else ''}"


def source_of(run: Run, layer: Layer, units: int | None = None) -> Layer | None:
    """The last layer with weights that runs before this one; with `units` of them, if given. None if there is none."""
    for other in reversed(run.layers[: run.place(layer.name)]):
        output = run.now.numbers(other.name, "output")
        has_units = units is None or (output is not None and output.channels is not None and output.width == units)
        if other.weights and other.kind != "embedding" and has_units:
            return other
    return None


def weight_of(run: Run, layer: Layer, width: int, every: int) -> np.ndarray | None:
    """The rows of the weight that belong to every so many units of a layer.

    Args:
        run: the run.
        layer: owns the weight.
        width: how many units there are.
        every: how many units lie between those that are meant.

    Returns:
        Shape (units, columns); None if no weight has a row for each of them.
    """
    rows = (
        unit_rows(run.now.numbers(name, "parameter"), layer.shapes.get(name), width, every) for name in layer.weights
    )
    return next((part for part in rows if part is not None), None)


def unit_rows(reading: Numbers | None, shape: Sequence[int] | None, width: int, every: int) -> np.ndarray | None:
    """The rows of every so many units in a reading of a weight of that shape, or of its gradient; see `weight_of`."""
    if reading is None or reading.channels is None or not shape or shape[0] != width:
        return None
    own = every_unit(shape)
    # What a model computes of other parameters may have other units than these.
    if every % own or len(reading.channels) != -(-width // own):
        return None
    return reading.channels[:: every // own]


def counted(some: int, seen: int, what: str, sample_of: int | None) -> str:
    """How many of those that were looked at, which are a sample of so many unless that is None.

    >>> counted(3, 8, "units", None), counted(412, 1024, "units", 14_336)
    ('3 of 8 units', '412 of the 1,024 units looked at, of 14,336')
    """
    if sample_of is None:
        return f"{some} of {seen} {what}"
    return f"{some:,} of the {seen:,} {what} looked at, of {sample_of:,}"


def was_zero(run: Run, layer: Layer) -> bool:
    """Whether all its weights with two or more dimensions, or all it has, were 0 before the first measured step."""
    return bool(run.initial.began_at_zero[run.place(layer.name)])


def robust_z(value: float, others: np.ndarray, floor: float) -> float:
    """How many robust deviations a value lies away from others.

    Args:
        value: the value.
        others: shape (n,); those that are not finite do not count.
        floor: the least deviation that is assumed.
    """
    finite = others[np.isfinite(others)]
    if not len(finite):
        return 0.0
    middle = float(np.median(finite))
    return (value - middle) / max(MAD * float(np.median(np.abs(finite - middle))), floor)


def slope(values: np.ndarray) -> float:
    """The median of the slopes between all pairs of values, per place (Theil and Sen); of at most 64 of them."""
    places = np.unique(np.linspace(0, len(values) - 1, min(len(values), 64)).astype(int))
    one, other = np.triu_indices(len(places), 1)
    return float(np.median((values[places[other]] - values[places[one]]) / (places[other] - places[one])))


def medians_of(values: np.ndarray) -> np.ndarray:
    """The median of the finite values of each column, shape (columns,); NaN if there is none."""
    return np.array([median_of(column) for column in values.T.tolist()])


def factor(decades: float) -> str:
    """A factor, of its logarithm to the base 10.

    >>> factor(2.4), factor(0.006)
    ('2.5e+02', '1.014')
    """
    value = 10**decades
    return f"{value:.3f}" if abs(value - 1) < 0.05 else f"{value:.2g}"  # over hundreds of layers 1.01 is much


def severity_of(run: Run) -> Severity:
    """An alarm if the loss shows harm, otherwise a note."""
    return "alarm" if run.losses.is_harmed else "note"


def harm_of(run: Run) -> str:
    """What harm the loss shows, as the end of a sentence; "" if none."""
    return f"; {run.losses.harm}" if run.losses.is_harmed else ""


def is_one_of_several(run: Run, layer: Layer) -> bool:
    """Whether a layer that has run has the same name but for a number, as the experts of a `ModuleList`."""
    pattern = re.compile(re.sub(r"\d+", r"\\d+", re.escape(layer.name)))
    return any(run.has_run(other) and pattern.fullmatch(other.name) for other in run.layers)
