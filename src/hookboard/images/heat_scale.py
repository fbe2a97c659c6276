"""The scale of a heat map: which values its colours stand for."""

import math
from dataclasses import dataclass

import numpy as np

MARGIN = 2.0
"""How many decades the scale goes beyond the bulk of the values, which lie between its 5th and 95th percentile."""


@dataclass(frozen=True)
class Scale:
    """The range of values that the colours span.

    Args:
        low: the value of the first colour.
        high: the value of the last colour.
        is_log: whether the logarithm of the value is drawn.
        is_cut: whether smaller, and whether greater values are drawn in the first and last colour.
    """

    low: float
    high: float
    is_log: bool
    is_cut: tuple[bool, bool] = (False, False)

    def shares(self, values: np.ndarray) -> np.ndarray:
        """Where values lie between the ends: from 0 to 1, and NaN where they are not finite."""
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
        """The values of both ends in words."""
        low, high = f"{self.low:.2g}", f"{self.high:.2g}"
        return ("<" if self.is_cut[0] else "") + low, (">" if self.is_cut[1] else "") + high

    def decades(self) -> list[float]:
        """The powers of ten within a logarithmic scale."""
        if not self.is_log:
            return []
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        return [10.0**exponent for exponent in range(first, last + 1)]


def log_scale(values: np.ndarray) -> Scale:
    """The scale on which all values can be told apart; far outliers are cut off.

    It is at least a decade wide. A value of 0 gets a colour that no other value has.
    """
    positive = values[np.isfinite(values) & (values > 0)]
    has_zero = bool((values == 0).any())
    if not len(positive):
        return Scale(0.1, 1.0, True, (has_zero, False))
    logs = np.log10(positive)
    least, greatest = float(logs.min()), float(logs.max())
    bottom, top = np.percentile(logs, [5, 95]).tolist()
    low, high = max(least, bottom - max(MARGIN, top - bottom)), min(greatest, top + max(MARGIN, top - bottom))
    narrow = max(0.0, 1.0 - (high - low)) / 2
    low, high = low - narrow - (0.5 if has_zero else 0.0), high + narrow
    return Scale(10.0**low, 10.0**high, True, (has_zero or low > least, high < greatest))
