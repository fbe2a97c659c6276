"""`RowBuffer` and `ChannelBuffer`: keep the rows of tensors and of their channels until a flush merges them."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import (
    WIDTH,
    ChannelRows,
    Columns,
    Row,
    empty_row,
    merge_rows,
    report_missing_kernel,
    uploaded_from,
    width_of,
)

MOST_ROWS = 4096
"""Maximum number of rows that are kept before those of each site are merged, as in a long validation loop. Of wider
rows it is as many as take the same memory."""

MOST_CALLS = 16
"""Maximum number of calls of a site whose rows of channels are kept before they are merged."""


class RowBuffer:
    """Keeps rows in the order in which they come. Several threads may append.

    Args:
        more: the columns that follow the moments in a row.
        device: where the rows are merged.
    """

    def __init__(self, more: Sequence[Columns], device: torch.device) -> None:
        self.device = device
        self.kept: list[tuple[int, Row]] = []
        """(index of a site, one of its rows): those merged early, by index, then the others as they were appended."""
        self._more = more
        self._empty = empty_row(more)
        self._least = MOST_ROWS * WIDTH // (WIDTH + width_of(more))
        self._most = self._least
        self._merging = threading.Lock()

    @property
    def indices(self) -> set[int]:
        """The indices of the sites that have a row."""
        return {index for index, _ in self.kept}

    def append(self, index: int, row: Row) -> None:
        """Keep a row; if very many are kept, merge those of each site.

        Args:
            index: the index of the site.
            row: WIDTH + width_of(more) numbers.
        """
        # Needs no lock: it is one step for the interpreter.
        self.kept.append((index, row))
        if len(self.kept) >= self._most:
            self._merge_early()

    def take(self) -> list[tuple[int, Row]]:
        """Empty the buffer, and return what it held: (index of the site, row) pairs, as `merged` takes them."""
        with self._merging:
            rows = self.kept[:]
            del self.kept[: len(rows)]  # others may have come after them
            return rows

    def merged(self, rows: list[tuple[int, Row]], sites: int) -> Tensor:
        """Merge the rows of each site.

        Args:
            rows: the rows that `take` has returned.
            sites: the number of sites.

        Returns:
            Shape (sites, WIDTH + width_of(more)), float64, on the device. A site without rows gets the row of an empty
            tensor.
        """
        if not sites:
            return torch.empty(0, WIDTH + width_of(self._more), dtype=torch.float64, device=self.device)
        if self.device.type == "cpu":
            report_missing_kernel()
        return self._merged(rows, sites)

    def _merge_early(self) -> None:
        with self._merging:
            if len(self.kept) < self._most:  # another thread has done it
                return
            rows = self.kept[:]
            indices = sorted({index for index, _ in rows})
            merged = self._merged(rows, indices[-1] + 1)
            each = merged.tolist() if merged.is_cpu else merged.unbind()
            self.kept[: len(rows)] = [(index, each[index]) for index in indices]
            self._most = max(self._least, 2 * len(indices))

    def _merged(self, rows: list[tuple[int, Row]], sites: int) -> Tensor:
        row_of = dict(rows)
        if len(row_of) == len(rows):  # there is nothing to merge
            return self._block([row_of.get(index, self._empty) for index in range(sites)])
        owner = uploaded_from(torch.tensor([index for index, _ in rows], device="cpu"), self.device)
        return merge_rows(self._block([row for _, row in rows]), owner, sites, self._more)

    def _block(self, rows: Sequence[Row]) -> Tensor:
        """Return the rows as one float64 matrix on the device."""
        if Tensor not in map(type, rows):
            return uploaded_from(torch.from_numpy(np.array(rows, np.float64)), self.device)
        others = [row for row in rows if not isinstance(row, Tensor)]  # of sites without a row, which are all alike
        empty = uploaded_from(torch.tensor(others[:1], dtype=torch.float64, device="cpu"), self.device).unbind()
        return torch.stack([row if isinstance(row, Tensor) else empty[0] for row in rows])


class ChannelBuffer:
    """Keeps the rows of the channels of each site. One thread at a time may use it.

    Args:
        device: where the rows are merged.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._calls: dict[int, list[ChannelRows] | None] = {}

    def append(self, index: int, rows: ChannelRows | None) -> None:
        """Keep the rows of the channels of one call.

        Args:
            index: the index of the site.
            rows: one row per channel; None if the call had no channels. After such a call, or one with another number
                of channels than before, nothing is kept for the site until the next `take`.
        """
        calls = self._calls.setdefault(index, [])
        if calls is None:
            return
        if rows is None or (calls and calls[0].shape != rows.shape):
            self._calls[index] = None
            return
        calls.append(rows)
        if len(calls) >= MOST_CALLS:
            calls[:] = self._merged([calls])

    def take(self) -> dict[int, list[ChannelRows] | None]:
        """Empty the buffer, and return what it held, as `merged` takes it.

        Returns:
            Index of the site -> the rows of each of its calls; None if its calls have no channels in common.
        """
        calls, self._calls = self._calls, {}
        return calls

    def merged(self, calls: Mapping[int, list[ChannelRows] | None]) -> dict[int, ChannelRows | None]:
        """Merge the rows of the calls of each site into one row per channel.

        Args:
            calls: what `take` has returned.

        Returns:
            Index of the site -> its rows, shape (channels, WIDTH), on the device; None as in `calls`.
        """
        if not calls:
            return {}
        merged = iter(self._merged([each for each in calls.values() if each is not None]))
        return {index: None if each is None else next(merged) for index, each in calls.items()}

    def _merged(self, sites: Sequence[list[ChannelRows]]) -> list[ChannelRows]:
        """Return the merged rows of each site, on the device, in the order of `sites`. All are merged in one call.

        Args:
            sites: for each site the rows of its calls, one or more.
        """
        several = [calls for calls in sites if len(calls) > 1]
        parts = iter(self._merged_together(several) if several else ())
        return [
            next(parts)
            if len(calls) > 1
            else calls[0]
            if isinstance(calls[0], np.ndarray)
            else _on(self._device, calls[0])
            for calls in sites
        ]

    def _merged_together(self, sites: Sequence[list[ChannelRows]]) -> Sequence[Tensor]:
        rows = [each for calls in sites for each in calls]
        counts = [len(calls[0]) for calls in sites]
        owner, start = [], 0
        for calls, channels in zip(sites, counts, strict=True):
            owner += len(calls) * [np.arange(start, start + channels)]
            start += channels
        if self._device.type == "cpu":
            block = torch.from_numpy(np.concatenate(rows))  # it takes tensors of the CPU too
        else:
            block = torch.cat([_on(self._device, each) for each in rows])
        merged = merge_rows(block, _on(self._device, np.concatenate(owner)), start, ())
        return list(torch.split(merged, counts))


def _on(device: torch.device, rows: ChannelRows) -> Tensor:
    return rows if isinstance(rows, Tensor) else uploaded_from(torch.from_numpy(rows), device)
