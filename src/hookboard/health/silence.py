"""`Silence`: which units of a layer nothing has activated, and since when."""

import numpy as np

from hookboard.health.layers import Layer
from hookboard.health.look import Look
from hookboard.measure import FIELDS

_COUNT, _ZEROS, _MAX = map(FIELDS.index, ("count", "zeros", "max"))

EXACT = frozenset({"rectifier", "dropout"})
"""Kinds whose units are silent where they give exactly 0."""

NEGATIVE = frozenset({"linear", "conv", "norm"})
"""Kinds whose units a rectifier behind them would silence: those that give nothing above 0, and not 0 alone, as they do
where nothing comes in."""

USUAL = 0.75
"""The share of the units of a layer whose earlier silences count as usual there (a choice)."""


class Silence:
    """The silent units of one layer: those that gave nothing at any sample and place since some step.

    All arrays have the shape (units,).

    Args:
        units: how many there are.
    """

    def __init__(self, units: int) -> None:
        self.since = np.zeros(units)
        """The optimizer step of the first look of the silence that lasts."""
        self.looks = np.zeros(units, dtype=np.int64)
        """For how many looks it lasts; 0 for a unit that is active."""
        self.samples = np.zeros(units)
        """Over how many values (samples and places) it lasts."""
        self.ended = np.zeros(units, dtype=np.int64)
        """The longest silence that ended, in looks."""
        self._was_silent = False  # whether any unit was silent at the last look

    def see(self, step: int, samples: np.ndarray, is_silent: np.ndarray | None) -> None:
        """Add a look.

        Args:
            step: its optimizer step.
            samples: how many values each unit gave, shape (units,). Where there are none, nothing is known.
            is_silent: whether all of them were silent, shape (units,); None if no unit was, as in most layers at most
                looks.
        """
        if is_silent is None:
            if not self._was_silent:
                return
            is_silent = np.zeros(len(samples), dtype=bool)
        back = ~is_silent & (samples > 0) & (self.looks > 0)
        if back.any():
            self.ended[back] = np.maximum(self.ended[back], self.looks[back])
            self.looks[back], self.samples[back] = 0, 0
        silent = is_silent & (samples > 0)
        if silent.any():
            self.since[silent & (self.looks == 0)] = step
            self.looks += silent
            self.samples += silent * samples
        self._was_silent = bool(self.looks.any())

    def lasting(self, looks: int, samples: int) -> np.ndarray:
        """Which units have been silent for so many looks and values, shape (units,).

        A unit that was silent before and came back, alone or with most of its layer, must be silent for more than
        twice as long.
        """
        if not self._was_silent and looks > 0:
            return np.zeros(len(self.looks), dtype=bool)
        lasts = (self.looks >= looks) & (self.samples >= samples)
        if self.ended.any() and lasts.any():
            usual = np.sort(self.ended)[int(USUAL * len(self.ended))]
            lasts &= self.looks > 2 * np.maximum(self.ended, usual)
        return lasts


def silent_in(look: Look, layer: Layer) -> tuple[np.ndarray, np.ndarray | None] | None:
    """How many values each unit of a layer gave, and whether all were silent (None: no unit was).

    None if that cannot be told: where an output is not finite, its units are neither silent nor active.
    """
    if layer.kind not in EXACT and layer.kind not in NEGATIVE:
        return None
    row = look.table.places.first("output").get(layer.name)
    channels = None if row is None else look.table.channels[row]
    if channels is None or not look.table.is_finite[row]:
        return None
    samples = channels[:, _COUNT]
    if layer.kind in EXACT:
        return samples, None if look.table.rows[row, _ZEROS] == 0 < samples.min() else channels[:, _ZEROS] >= samples
    highest = channels[:, _MAX]
    if highest.min() > 0:
        return samples, None
    return samples, (highest <= 0) & (channels[:, _ZEROS] < samples)
