"""`Recent`: the quantities of the latest looks, in one block of memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hookboard.health.quantities import QUANTITIES
from hookboard.health.timeline import in_order

RECENT = 64
"""How many looks there are numbers of."""


class Recent:
    """All quantities of the latest looks.

    They stand in a block of twice the length. When it is full, the later half moves to its beginning: so what is asked
    for is a part of the block, and nothing is put together anew at each look.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, np.ndarray] = {}
        self._end = 0

    def __getstate__(self) -> dict[str, Any]:
        """What can be asked for."""
        return {"_blocks": {quantity: self.of(quantity) for quantity in self._blocks}, "_end": min(self._end, RECENT)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """With room for more."""
        self._end = state["_end"]
        self._blocks = {quantity: _with_room(known) for quantity, known in state["_blocks"].items()}

    def add(self, column: Mapping[str, np.ndarray]) -> None:
        """Add a look: quantity to one number for each layer, shape (layers,)."""
        if self._end == 2 * RECENT:
            for block in self._blocks.values():
                block[:, : RECENT - 1] = block[:, RECENT + 1 :]
            self._end = RECENT - 1
        for quantity, values in column.items():
            if quantity not in self._blocks:
                self._blocks[quantity] = _with_room(np.empty((len(values), 0)))
            self._blocks[quantity][:, self._end] = values
        self._end += 1

    def of(self, quantity: str) -> np.ndarray:
        """Shape (layers, at most `RECENT`), float64; valid until the next look."""
        return self._blocks[quantity][:, max(0, self._end - RECENT) : self._end]

    def reorder(self, place: Sequence[int]) -> None:
        """Take the layers in another order, see `Timeline.reorder`."""
        for quantity in QUANTITIES if self._end else ():
            self._blocks[quantity] = np.ascontiguousarray(in_order(self._blocks[quantity].T, place, np.nan).T)


def _with_room(known: np.ndarray) -> np.ndarray:
    """A block that begins with these columns."""
    block = np.full((len(known), 2 * RECENT), np.nan)
    block[:, : known.shape[1]] = known
    return block
