"""`ChannelBuffer`: the rows of channels of each site, until they are merged."""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import EMPTY, WIDTH, ChannelRows, merge_rows
from hookboard.recording.packet import Layout
from hookboard.recording.streams import Streams
from hookboard.sites import Site

MOST_CALLS = 16
"""How many calls of a site are kept before their rows are merged."""


class ChannelBuffer:
    """The rows of the channels of each site. Several threads may append.

    Args:
        device: where they are merged.
        streams: those on which the rows are made.
    """

    def __init__(self, device: torch.device, streams: Streams | None = None) -> None:
        self._device = device
        self._streams = streams or Streams()
        self._calls: dict[int, list[ChannelRows]] = {}
        self._unlike: set[int] = set()
        self._lock = threading.Lock()

    def append(self, owner: int, rows: ChannelRows | bytearray | None) -> None:
        """Keep the rows of one call.

        Args:
            owner: the index of the site.
            rows: as numbers, or as the memory of a reader; None if the call had no channels. If it had none, or another
                number of them than the calls before, the site has none until the next `take`.
        """
        if isinstance(rows, bytearray):
            rows = np.frombuffer(rows).reshape(-1, WIDTH)
        with self._lock:
            if owner in self._unlike:
                return
            calls = self._calls.get(owner)
            if rows is None or (calls and calls[0].shape != rows.shape):
                self._unlike.add(owner)
                self._calls[owner] = []
            elif calls is None:
                self._calls[owner] = [rows]
            else:
                calls.append(rows)
                if len(calls) >= MOST_CALLS:
                    with self._streams.joined():
                        calls[:] = self._merged([calls])

    def take(self) -> dict[int, ChannelRows | None]:
        """Empty the buffer; returns the merged rows of each owner, None where its calls had no channels in common."""
        with self._lock:
            calls, self._calls = self._calls, {}
            unlike, self._unlike = self._unlike, set()
        with self._streams.joined():
            merged = iter(list(self._merged([each for owner, each in calls.items() if owner not in unlike])))
        return {owner: None if owner in unlike else next(merged) for owner in calls}

    def _merged(self, sites: Sequence[list[ChannelRows]]) -> Iterator[ChannelRows]:
        """The merged rows of the calls of each site; all sites in one merge, however many there are."""
        several = [calls for calls in sites if len(calls) > 1]
        parts = iter(self._merged_together(several) if several else ())
        for calls in sites:
            if len(calls) > 1:
                yield next(parts)
            else:
                yield calls[0] if isinstance(calls[0], np.ndarray) else _on(self._device, calls[0])

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


def packed(rows_of: Mapping[Site, ChannelRows | None], layout: Layout, device: torch.device) -> Tensor:
    """The rows of all channels in a layout, shape (rows of channels of all sites, WIDTH), float64.

    A site that was not measured has empty rows. One whose calls had no channels in common has NaN.

    Args:
        rows_of: what `take` has returned, by site.
        layout: how many channels each site has there.
        device: where they are wanted.
    """
    parts: list[ChannelRows] = [np.empty((0, WIDTH))]
    for site, extent in layout.items():
        if extent.channels:
            rows = rows_of.get(site, np.tile(EMPTY, (extent.rows, 1)))
            if rows is None or len(rows) != extent.rows:
                rows = np.full((extent.rows, WIDTH), math.nan)
            parts.append(rows)
    if device.type == "cpu":
        return torch.from_numpy(np.concatenate(parts))  # it takes tensors of the CPU too
    return torch.cat([_on(device, each) for each in parts])


def _on(device: torch.device, rows: ChannelRows) -> Tensor:
    tensor = rows if isinstance(rows, Tensor) else torch.from_numpy(rows)
    return tensor.to(device, non_blocking=True)
