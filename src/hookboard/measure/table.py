"""`Table`: the statistics of many sites."""

from typing import NamedTuple

import numpy as np


class Table(NamedTuple):
    """The statistics of many sites.

    Args:
        names: of the statistics.
        values: shape (sites, statistics), float64.
        is_there: whether a site has a statistic, same shape, bool.
    """

    names: tuple[str, ...]
    values: np.ndarray
    is_there: np.ndarray

    def of(self, row: int) -> dict[str, float]:
        """Those of one site by name; those that it does not have are left out."""
        found = zip(self.names, self.values[row].tolist(), self.is_there[row].tolist(), strict=True)
        return {name: value for name, value, is_there in found if is_there}
