"""`ColourScale`: the values that colours stand for."""

import math
from dataclasses import dataclass

import numpy as np

MAX_DECADES_BEYOND_BULK = 2.0
"""How many decades the scale extends at most beyond the 5th and the 95th percentile, unless they are further apart."""


@dataclass(frozen=True)
class ColourScale:
    """The range of values that the colours span.

    Args:
        low: the value of the first colour.
        high: the value of the last colour.
        is_log: True for a logarithmic scale.
        is_cut: whether there are values below `low`, and above `high`; they have the colour of that end.
    """

    low: float
    high: float
    is_log: bool = False
    is_cut: tuple[bool, bool] = (False, False)

    def shares(self, values: np.ndarray) -> np.ndarray:
        """Return the position of each value on the scale, from 0 to 1; NaN where the value is not finite."""
        finite = np.where(np.isfinite(values), values, np.nan)
        if self.is_log:
            with np.errstate(divide="ignore"):
                finite = np.log10(np.maximum(finite, 0.0))
            low, high = math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        return np.clip((finite - low) / (high - low), 0.0, 1.0)

    @property
    def ends(self) -> tuple[str, str]:
        """The labels of both ends, such as "<0.01" and "1"."""
        low, high = f"{self.low:.3g}", f"{self.high:.3g}"
        return ("<" if self.is_cut[0] else "") + low, (">" if self.is_cut[1] else "") + high

    def ticks(self) -> list[float]:
        """Return the powers of ten on a logarithmic scale; on a linear one, at most six round numbers.

        >>> ColourScale(0.0, 1.0).ticks(), ColourScale(-3.2, 4.1).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-2.0, 0.0, 2.0, 4.0])
        """
        if self.is_log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**exponent for exponent in range(first, last + 1)]
        if not self.low < self.high:
            return []
        power = math.floor(math.log10(self.high / 2 - self.low / 2))
        step = next(k for k in (1, 2, 5) if (self.high - self.low) / 10.0**power <= 5 * k)
        multiples = range(math.ceil(self.low / 10.0**power / step), math.floor(self.high / 10.0**power / step) + 1)
        return [float(f"{multiple * step}e{power}") for multiple in multiples]


def log_scale(values: np.ndarray) -> ColourScale:
    """Return a logarithmic scale that fits the values; far outliers are cut off.

    It spans at least one decade. If there is a 0, the scale begins half a decade lower: 0 has the lowest colour alone.
    """
    positive = values[np.isfinite(values) & (values > 0)]
    has_zero = bool((values == 0).any())
    if not len(positive):
        return ColourScale(0.1, 1.0, True, (has_zero, False))
    logs = np.log10(positive)
    least, greatest = float(logs.min()), float(logs.max())
    bottom, top = np.percentile(logs, [5, 95]).tolist()
    low, high = (
        max(least, bottom - max(MAX_DECADES_BEYOND_BULK, top - bottom)),
        min(greatest, top + max(MAX_DECADES_BEYOND_BULK, top - bottom)),
    )
    narrow = max(0.0, 1.0 - (high - low)) / 2
    low, high = low - narrow - (0.5 if has_zero else 0.0), high + narrow
    return ColourScale(10.0**low, 10.0**high, True, (has_zero or low > least, high < greatest))
