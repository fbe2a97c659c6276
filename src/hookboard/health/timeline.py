"""`Timeline`: one number for each layer over the whole run, in at most 256 columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hookboard.health.quantities import Column

COLUMNS = 256


class Timeline:
    """All quantities of all layers over the run. When it is full, every second column is dropped."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        # Each look is a row here, so that memory is taken as the run goes on.
        self._values: dict[str, np.ndarray] = {}
        self._spoiled: dict[str, np.ndarray] = {}
        self._every = 1
        self._since = 0

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows that are still empty."""
        filled = {name: _first_of(vars(self)[name], len(self.steps)) for name in _BLOCKS}
        return {**vars(self), **filled}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """With them."""
        vars(self).update(state, **{name: _first_of(state[name], COLUMNS + 1) for name in _BLOCKS})

    def add(self, step: int, column: Column) -> None:
        """Add a look.

        Args:
            step: its optimizer step.
            column: what it shows.
        """
        self._since += 1
        if self._since < self._every:
            return
        self._since = 0
        self._write(self._values, column.values)
        self._write(self._spoiled, column.spoiled)
        self.steps.append(step)
        if len(self.steps) > COLUMNS:
            self.steps, self._every = self.steps[::2], 2 * self._every
            for block in (*self._values.values(), *self._spoiled.values()):
                block[: len(self.steps)] = block[::2]

    def of(self, quantity: str, first: int | None = None) -> np.ndarray:
        """A quantity, shape (layers, columns), float64; the columns belong to `steps`. Of the first few, if asked."""
        columns: np.ndarray = np.array(self._values[quantity][: len(self.steps)][:first]).T
        return columns

    def is_spoiled(self, quantity: str) -> np.ndarray:
        """Where what a quantity is taken of was not finite, shape (layers, columns), booleans."""
        return np.asarray(self._spoiled[quantity][: len(self.steps)].T)

    def reorder(self, place: Sequence[int]) -> None:
        """Take the layers in another order: the new first one is the old number `place[0]`, and so on.

        A number behind the last stands for a layer that is new.
        """
        self._values = {name: in_order(block, place, np.nan) for name, block in self._values.items()}
        self._spoiled = {name: in_order(block, place, False) for name, block in self._spoiled.items()}

    def _write(self, blocks: dict[str, np.ndarray], given: Mapping[str, np.ndarray]) -> None:
        for name, values in given.items():
            if name not in blocks:
                blocks[name] = np.empty((COLUMNS + 1, len(values)), values.dtype)
            blocks[name][len(self.steps)] = values


_BLOCKS = ("_values", "_spoiled")


def _first_of(blocks: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    """The first rows of each block; behind the last row nothing that means anything."""
    found = {}
    for name, block in blocks.items():
        found[name] = np.zeros((rows, block.shape[1]), block.dtype)
        found[name][: len(block)] = block[:rows]
    return found


def in_order(block: np.ndarray, place: Sequence[int], new: float) -> np.ndarray:
    """The columns of a block at these places; those behind the last are new.

    >>> in_order(np.array([[1.0, 2.0]]), [1, 0, 2], np.nan)
    array([[ 2.,  1., nan]])
    """
    filler = np.full((len(block), 1), new, block.dtype)
    return np.hstack([block, filler])[:, list(place)]
