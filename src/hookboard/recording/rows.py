"""Rows as they come in, each with its owner, until they are merged."""

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import WIDTH, Row, Statistic, merge_rows

MOST_ROWS = 4096
"""Rows that are kept apart. Of more, as a whole validation loop gives, each owner's are merged before the next."""


class RowBuffer:
    """Rows in the order they came, in preallocated memory on the device. Several threads may append.

    Args:
        own: the user's statistics, which stand behind the moments.
        device: where the rows are kept.
        capacity: for how many rows there is memory at first.
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
        """Keep a row of WIDTH + len(own) numbers."""
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
        """The rows and their owners, to be used before the next is appended; the buffer is empty afterwards."""
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
