"""`RowBuffer`: rows in the order in which they come, until they are merged."""

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import WIDTH, Row, Statistic, merge_rows

MOST_ROWS = 4096
"""How many rows are kept at most before those of each owner are merged, as in a long validation loop."""


class RowBuffer:
    """Rows in the order they came, in preallocated memory on the device. Several threads may append.

    Args:
        own: the user's statistics, whose columns follow the moments.
        device: where the rows are kept.
        capacity: the number of rows for which memory is allocated at first.
    """

    def __init__(self, own: Sequence[Statistic], device: torch.device, capacity: int = 256) -> None:
        self.device = device
        self.owners: list[int] = []
        self._own = own
        self._lock = threading.Lock()
        self._blocks: list[Tensor] = []
        self._slots: list[Tensor | np.ndarray] = []
        self._grow(capacity)

    def append(self, owner: int, row: Row) -> None:
        """Keep a row.

        Args:
            owner: the index of the site that the row belongs to.
            row: WIDTH + len(own) numbers.
        """
        with self._lock:
            if len(self.owners) == len(self._slots):
                self._make_room()
            slot = self._slots[len(self.owners)]
            if isinstance(slot, Tensor):
                slot[:] = torch.as_tensor(row, dtype=torch.float64)
            else:
                slot[:] = row  # numpy takes floats as they are
            self.owners.append(owner)

    def take(self) -> tuple[Tensor, Tensor]:
        """Empty the buffer.

        Returns:
            The rows, shape (n, WIDTH + len(own)), and their owners, shape (n,), int64. The rows are valid until the
            next `append`.
        """
        rows = (torch.cat(self._blocks) if len(self._blocks) > 1 else self._blocks[0])[: len(self.owners)]
        owner = torch.tensor(self.owners, dtype=torch.long, device="cpu").to(self.device, non_blocking=True)
        self.owners.clear()
        return rows, owner

    def _make_room(self) -> None:
        if len(self.owners) >= MOST_ROWS:
            self._merge_in_place()
        if len(self.owners) > len(self._slots) // 2:
            self._grow(len(self._slots))

    def _merge_in_place(self) -> None:
        distinct = sorted(set(self.owners))
        merged = merge_rows(*self.take(), distinct[-1] + 1, self._own)
        for slot, index in zip(self._slots, distinct, strict=False):
            slot[:] = merged[index]
        self.owners.extend(distinct)

    def _grow(self, capacity: int) -> None:
        with torch.inference_mode(False):
            block = torch.empty(capacity, WIDTH + len(self._own), dtype=torch.float64, device=self.device)
        self._blocks.append(block)
        self._slots.extend(block.numpy() if self.device.type == "cpu" else block.unbind())
