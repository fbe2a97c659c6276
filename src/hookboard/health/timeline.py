"""`Timeline`: one number for each layer over the whole run, in at most 256 columns."""

from collections.abc import Mapping, Sequence

import numpy as np

COLUMNS = 256

SPOILED = "spoiled: "
"""Before the name of a quantity: whether what it is taken of was not finite."""


class Timeline:
    """All quantities of all layers over the run. When it is full, every second column is dropped."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._columns: list[Mapping[str, np.ndarray]] = []
        self._every = 1
        self._since = 0

    def add(self, step: int, column: Mapping[str, np.ndarray]) -> None:
        """Add a look.

        Args:
            step: its optimizer step.
            column: quantity to one number for each layer, shape (layers,).
        """
        self._since += 1
        if self._since < self._every:
            return
        self._since = 0
        self.steps.append(step)
        self._columns.append(column)
        if len(self.steps) > COLUMNS:
            self.steps, self._columns, self._every = self.steps[::2], self._columns[::2], 2 * self._every

    def of(self, quantity: str, first: int | None = None) -> np.ndarray:
        """A quantity, shape (layers, columns), float64; the columns belong to `steps`. Of the first few, if asked."""
        return np.stack([column[quantity] for column in self._columns[:first]], axis=1)

    def is_spoiled(self, quantity: str) -> np.ndarray:
        """Where what a quantity is taken of was not finite, shape (layers, columns), booleans."""
        # NaN stands for a layer that was not there.
        return np.asarray(self.of(f"{SPOILED}{quantity}") == 1)

    def reorder(self, place: Sequence[int]) -> None:
        """Take the layers in another order: the new first one is the old number `place[0]`, and so on.

        A number behind the last stands for a layer that is new.
        """
        self._columns = [{name: in_order(values, place) for name, values in column.items()} for column in self._columns]


def in_order(values: np.ndarray, place: Sequence[int]) -> np.ndarray:
    """The values at these places; NaN for the place behind the last.

    >>> in_order(np.array([1.0, 2.0]), [1, 0, 2])
    array([ 2.,  1., nan])
    """
    return np.append(values, np.nan)[list(place)]
