"""`RowBuffer`: rows in the order in which they come, until they are merged."""

import math
import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import EMPTY, WIDTH, Columns, Row, Statistic, merge_rows, width_of

MOST_ROWS = 4096
"""How many rows are kept at most before those of each owner are merged, as in a long validation loop. Of wider
rows it is as many as take the same memory."""


class RowBuffer:
    """Rows in the order they came. Several threads may append.

    Args:
        more: what stands behind the moments in a row.
        device: where the rows are merged.
    """

    def __init__(self, more: Sequence[Columns | Statistic], device: torch.device) -> None:
        self.device = device
        self._more = more
        self._rows: list[tuple[int, Row]] = []
        self._least = MOST_ROWS * WIDTH // (WIDTH + width_of(more))
        self._most = self._least
        self._merging = threading.Lock()

    def __len__(self) -> int:
        """How many rows are kept."""
        return len(self._rows)

    @property
    def owners(self) -> set[int]:
        """Those of which there is a row."""
        return {owner for owner, _ in self._rows}

    def append(self, owner: int, row: Row) -> None:
        """Keep a row.

        Args:
            owner: the index of the site that the row belongs to.
            row: WIDTH + width_of(more) numbers.
        """
        self._rows.append((owner, row))  # needs no lock: it is one step for the interpreter
        if len(self._rows) >= self._most:
            self._merge_early()

    def take(self, owners: int) -> Tensor:
        """Empty the buffer.

        Args:
            owners: how many owners there are.

        Returns:
            The merged row of each, shape (owners, WIDTH + width_of(more)), float64, on the device. An owner without
            rows gets the row of an empty tensor.
        """
        with self._merging:
            rows = list(self._rows)
            del self._rows[: len(rows)]  # others may have come behind them
        return self._merged(rows, owners)

    def _merge_early(self) -> None:
        with self._merging:
            rows = list(self._rows)
            if len(rows) < self._most:  # another thread has done it
                return
            owners = sorted({owner for owner, _ in rows})
            merged = self._merged(rows, owners[-1] + 1)
            each = merged.tolist() if merged.is_cpu else merged.unbind()
            self._rows[: len(rows)] = [(owner, each[owner]) for owner in owners]
            self._most = max(self._least, 2 * len(owners))

    def _merged(self, rows: list[tuple[int, Row]], owners: int) -> Tensor:
        row_of = dict(rows)
        if len(row_of) == len(rows):  # there is nothing to merge
            nothing = [*EMPTY, *[math.nan] * width_of(self._more)]
            return self._block([row_of.get(owner, nothing) for owner in range(owners)])
        owner = self._on_device(torch.tensor([owner for owner, _ in rows], device="cpu"))
        return merge_rows(self._block([row for _, row in rows]), owner, owners, self._more)

    def _block(self, rows: list[Row]) -> Tensor:
        """One matrix of the rows, which are tensors where they were measured on another device than the CPU."""
        if any(isinstance(row, Tensor) for row in rows):
            return torch.stack([self._on_device(row if isinstance(row, Tensor) else _tensor(row)) for row in rows])
        return self._on_device(_tensor(rows))

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def _tensor(numbers: Sequence[object]) -> Tensor:
    """Floats as a tensor on the CPU; torch itself takes longer to read them from lists."""
    return torch.from_numpy(np.array(numbers, dtype=np.float64))
