"""`Silence`: which units of a layer no sample activates, and since when."""

import numpy as np

from hookboard.health.run_table import LookArrays
from hookboard.layers import Kind

SILENT_AT_ZERO_KINDS: frozenset[Kind] = frozenset({"rectifier", "dropout"})
"""Kinds of layers whose units are silent where they give exactly 0."""

SILENT_BELOW_ZERO_KINDS: frozenset[Kind] = frozenset({"linear", "conv", "norm"})
"""Kinds of layers whose units a rectifier after them would silence: units that give nothing above 0, and not only 0, as
they do without any input."""

USUAL_SILENCE_QUANTILE = 0.75
"""Quantile of a layer's units whose longest earlier silence counts as usual there (a choice)."""


class Silence:
    """The silent units of one layer: those that no sample and place has activated since some step.

    All arrays have the shape (units,).

    Args:
        units: how many are looked at.
        width: how many the layer has. Left out: as many.
    """

    def __init__(self, units: int, width: int | None = None) -> None:
        self.width = units if width is None else width
        self.since = np.zeros(units)
        """The optimizer step of the first look of the current silence."""
        self.looks = np.zeros(units, dtype=np.int64)
        """Number of looks it has lasted; 0 for an active unit."""
        self.samples = np.zeros(units)
        """Number of values (samples and places) it has lasted."""
        self.ended = np.zeros(units, dtype=np.int64)
        """The longest silence that has ended, in looks."""
        self.is_any = False
        """True if any unit is silent now."""

    def see(self, step: int, samples: np.ndarray, is_silent: np.ndarray | None) -> None:
        """Add a look.

        Args:
            step: its optimizer step.
            samples: how many values each unit gave, shape (units,). Where there are none, nothing is known.
            is_silent: whether all of them were silent, shape (units,); None if no unit was, as in most layers at most
                looks.
        """
        if is_silent is None:
            if not self.is_any:
                return
            is_silent = np.zeros(len(samples), dtype=bool)
        if self.is_any:
            back = ~is_silent & (samples > 0) & (self.looks > 0)
            self.ended[back] = np.maximum(self.ended[back], self.looks[back])
            self.looks[back], self.samples[back] = 0, 0
        silent = is_silent & (samples > 0)
        if silent.any():
            self.since[silent & (self.looks == 0)] = step
            self.looks += silent
            self.samples += silent * samples
        self.is_any = bool(self.looks.any())

    def lasting(self, looks: int, samples: int) -> np.ndarray:
        """Return which units have been silent for this many looks and values, shape (units,).

        A unit that was silent before and came back, alone or with most of its layer, must be silent for more than
        twice as long.
        """
        if not self.is_any and looks > 0:
            return np.zeros(len(self.looks), dtype=bool)
        lasts = (self.looks >= looks) & (self.samples >= samples)
        if self.ended.any() and lasts.any():
            usual = np.sort(self.ended)[int(USUAL_SILENCE_QUANTILE * len(self.ended))]
            lasts &= self.looks > 2 * np.maximum(self.ended, usual)
        return lasts


def silent_in(look: LookArrays) -> list[tuple[str, int, np.ndarray, np.ndarray | None]]:
    """Return of each layer whose units can be silent: name, width, values of each unit, and which units are silent.

    Instead of the last there is None where no unit was silent. Layers are left out of which nothing can be told: where
    an output is not finite, its units are neither silent nor active.
    """
    outputs, layers = look.rows("output"), look.layers
    units = outputs.units
    count, highest, is_zero = units.columns["count"], units.columns["max"], units.is_zero
    is_exact = layers.of_kind(SILENT_AT_ZERO_KINDS)[units.places]
    is_negative = layers.of_kind(SILENT_BELOW_ZERO_KINDS)[units.places]
    some_zero, some_negative = units.each(np.logical_or, is_zero), units.each(np.minimum, highest) <= 0
    is_known = (is_exact | is_negative) & (outputs.nonfinite[units.places] == 0)
    may_be = (is_exact & some_zero) | (is_negative & some_negative)
    facts = (units.places, units.widths, units.starts, units.counts, is_exact, may_be)
    found = []
    for place, width, start, size, only_zero, some in zip(*[fact[is_known].tolist() for fact in facts], strict=True):
        part = slice(start, start + size)
        silent = None
        if some:
            silent = is_zero[part] if only_zero else (highest[part] <= 0) & ~is_zero[part]
        found.append((layers.names[place], width, count[part], silent))
    return found


def onsets(began: np.ndarray, since: int) -> tuple[int, str]:
    """Return the step at which most of the units fell silent (the first such step), and a clause that says since when.

    Args:
        began: the step since which each is silent, shape (units,).
        since: the step since which enough of them are to be reported.

    >>> onsets(np.array([10, 10, 10]), 10), onsets(np.array([0, 0, 10, 20, 30]), 20)
    ((10, 'since step 10'), (0, 'since step 30, 4 of them by step 20, 2 since step 0'))
    """
    steps, counts = np.unique(began, return_counts=True)
    onset, last, most = int(steps[counts.argmax()]), int(steps[-1]), int(counts.max())
    by_then = int((began <= since).sum())
    said = f"since step {last}"
    if since < last:
        said += f", {by_then} of them by step {since}"
    if onset != last and (onset != since or most < by_then):
        said += f", {most} since step {onset}"
    return onset, said
