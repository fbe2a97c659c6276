"""`StatisticColumns`: the statistics of many sites."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class StatisticColumns(NamedTuple):
    """The statistics of many sites: a column for each statistic.

    Args:
        names: of the statistics.
        values: shape (sites, statistics), float64.
        is_there: whether a site has a statistic, same shape, bool.
    """

    names: tuple[str, ...]
    values: np.ndarray
    is_there: np.ndarray

    @staticmethod
    def of(sites: Sequence[Mapping[str, float]]) -> "StatisticColumns":
        """Make the columns of statistics that are given for each site by name."""
        names = tuple(dict.fromkeys(name for statistics in sites for name in statistics))
        shape = len(sites), len(names)
        values = np.array([[given.get(name, np.nan) for name in names] for given in sites], np.float64)
        is_there = np.array([[name in given for name in names] for given in sites], bool)
        return StatisticColumns(names, values.reshape(shape), is_there.reshape(shape))

    def at(self, row: int) -> dict[str, float]:
        """Return the statistics of one site by name; those that it does not have are left out."""
        found = zip(self.names, self.values[row].tolist(), self.is_there[row].tolist(), strict=True)
        return {name: value for name, value, is_there in found if is_there}

    def where(self, is_kept: np.ndarray) -> "StatisticColumns":
        """Return the statistics of some of the sites: those where `is_kept`, shape (sites,), is true."""
        return StatisticColumns(self.names, self.values[is_kept], self.is_there[is_kept])

    def joined(self, columns: Mapping[str, np.ndarray], rows: np.ndarray) -> "StatisticColumns":
        """Return the same with other values in some columns, which are added where they are new.

        Args:
            columns: name to values, shape (sites,) each.
            rows: the sites that have them, shape (sites,), bool.
        """
        names = tuple(dict.fromkeys([*self.names, *columns]))
        values, is_there = np.full((len(self.values), len(names)), np.nan), np.zeros((len(rows), len(names)), bool)
        values[:, : len(self.names)], is_there[:, : len(self.names)] = self.values, self.is_there
        for name, column in columns.items():
            place = names.index(name)
            values[rows, place], is_there[rows, place] = column[rows], True
        return StatisticColumns(names, values, is_there)
