"""`RowBuffer`: keeps the rows of tensors, and those of their channels, until a flush merges them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.measure.card import uploaded_from
from hookboard.measure.columns import Columns, empty_row, width_of
from hookboard.measure.merge import merge_rows
from hookboard.measure.native import report_missing_kernel
from hookboard.measure.row import WIDTH, ChannelRows, Row

MOST_ROWS = 4096
"""How many rows, the channels' included, are kept before the rows of each site are merged, as in a long validation
loop. Of wider rows fewer are kept, in the same memory."""

GROWTH = 4
"""Rows are merged again when this many times as many are kept as the last merge left."""

NO_CHANNELS: ChannelRows = np.empty((0, WIDTH))
"""In place of the rows of channels: they are not measured, or the tensor is empty."""

Kept = tuple[int, Row, ChannelRows | None]
"""What is kept of a tensor: the index of its site, its row, and the rows of its channels; None if it has none."""


class RowBuffer:
    """Keeps rows in the order in which they come, to be merged on `device`. One thread at a time may use it."""

    def __init__(self, more: Sequence[Columns], device: torch.device) -> None:
        self.device = device
        self.kept: list[Kept] = []
        """Those merged early, by the index of the site, then the others as they were appended."""
        self._more = more
        self._empty = empty_row(more)
        self._count = 0
        self._most = self._least = MOST_ROWS * WIDTH // (WIDTH + width_of(more))

    @property
    def indices(self) -> set[int]:
        """The indices of the sites that have a row."""
        return {index for index, _, _ in self.kept}

    def append(self, index: int, row: Row, channels: ChannelRows | None = NO_CHANNELS) -> None:
        """Keep the rows of a tensor; if very many are kept, merge those of each site.

        After None, or rows of another number of channels than before, a site has no channels until the next `take`.
        """
        self.kept.append((index, row, channels))
        self._count += 1 if channels is None else 1 + len(channels)
        if self._count >= self._most:
            self._merge_early()

    def take(self) -> list[Kept]:
        """Empty the buffer, and return what it held."""
        kept, self.kept, self._count = self.kept, [], 0
        return kept

    def rows(self, kept: Sequence[Kept], sites: int) -> Tensor:
        """Merge the rows of each site, shape (sites, width); of a site without rows it is that of an empty tensor."""
        if not sites:
            return torch.empty(0, WIDTH + width_of(self._more), dtype=torch.float64, device=self.device)
        if self.device.type == "cpu":
            report_missing_kernel()
        row_of = {index: row for index, row, _ in kept}
        if len(row_of) == len(kept):  # there is nothing to merge
            return self._block([row_of.get(index, self._empty) for index in range(sites)])
        owner = uploaded_from(torch.tensor([index for index, _, _ in kept], device="cpu"), self.device)
        return merge_rows(self._block([row for _, row, _ in kept]), owner, sites, self._more)

    def channels(self, kept: Sequence[Kept]) -> dict[int, ChannelRows | None]:
        """Merge the rows of the channels of each site that has some, in one call; None if its calls had others."""
        calls: dict[int, list[ChannelRows] | None] = {}
        for index, _, rows in kept:
            if rows is None:
                calls[index] = None
            elif len(rows):
                of_site = calls.setdefault(index, [])
                if of_site and of_site[0].shape != rows.shape:
                    calls[index] = None
                elif of_site is not None:
                    of_site.append(rows)
        merged = iter(self._merged([each for each in calls.values() if each is not None and len(each) > 1]))
        is_cpu, found = self.device.type == "cpu", dict[int, ChannelRows | None]()
        for index, each in calls.items():
            if each is None or len(each) > 1:
                found[index] = None if each is None else next(merged)
            else:
                found[index] = each[0] if is_cpu else self._here(each[0])
        return found

    def _merge_early(self) -> None:
        sites = sorted(self.indices)
        merged, channels = self.rows(self.kept, sites[-1] + 1), self.channels(self.kept)
        each = merged.tolist() if merged.is_cpu else merged.unbind()
        self.kept = [(index, each[index], channels.get(index, NO_CHANNELS)) for index in sites]
        self._count = sum(1 if rows is None else 1 + len(rows) for _, _, rows in self.kept)
        self._most = max(self._least, GROWTH * self._count)

    def _block(self, rows: Sequence[Row]) -> Tensor:
        """Return the rows as one float64 matrix on the device."""
        if Tensor not in map(type, rows):
            return uploaded_from(torch.from_numpy(np.array(rows, np.float64)), self.device)
        others = [row for row in rows if not isinstance(row, Tensor)]  # of sites without a row, which are all alike
        empty = uploaded_from(torch.tensor(others[:1], dtype=torch.float64, device="cpu"), self.device).unbind()
        return torch.stack([row if isinstance(row, Tensor) else empty[0] for row in rows])

    def _merged(self, sites: Sequence[list[ChannelRows]]) -> Sequence[Tensor]:
        """Return the merged rows of the channels of each site, from those of its calls."""
        if not sites:
            return []
        rows = [each for calls in sites for each in calls]
        counts = [len(calls[0]) for calls in sites]
        owner, start = [], 0
        for calls, channels in zip(sites, counts, strict=True):
            owner += len(calls) * [np.arange(start, start + channels)]
            start += channels
        if self.device.type == "cpu":
            block = torch.from_numpy(np.concatenate(rows))  # it takes tensors of the CPU too
        else:
            block = torch.cat([self._here(each) for each in rows])
        owners = uploaded_from(torch.from_numpy(np.concatenate(owner)), self.device)
        return torch.split(merge_rows(block, owners, start, ()), counts)

    def _here(self, rows: ChannelRows) -> Tensor:
        """Return rows on the device."""
        return rows if isinstance(rows, Tensor) else uploaded_from(torch.from_numpy(rows), self.device)
