"""`ChannelBuffer`: the rows of channels of each site, until they are merged."""

import math
import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from hookboard.measure import EMPTY, WIDTH, merge_rows
from hookboard.recording.exchange import Layout
from hookboard.sites import Site

MOST_CALLS = 16
"""How many calls of a site are kept before their rows are merged."""


class ChannelBuffer:
    """The rows of the channels of each site. Several threads may append.

    Args:
        device: where they are merged.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._calls: dict[int, list[Tensor]] = {}
        self._unlike: set[int] = set()
        self._lock = threading.Lock()

    def append(self, owner: int, rows: Tensor | None) -> None:
        """Keep the rows of one call.

        Args:
            owner: the index of the site.
            rows: shape (channels, WIDTH), float64. None if the call had no channels, or another number of them than
                the calls before: then the site has none until the next `take`.
        """
        with self._lock:
            calls = self._calls.setdefault(owner, [])
            if rows is None or (calls and calls[0].shape != rows.shape):
                self._unlike.add(owner)
            if rows is None or owner in self._unlike:
                calls.clear()
                return
            calls.append(rows.to(self._device, non_blocking=True))
            if len(calls) >= MOST_CALLS:
                calls[:] = [_merged(calls)]

    def take(self) -> dict[int, Tensor | None]:
        """Empty the buffer; returns the merged rows of each owner, None where its calls had no channels in common."""
        with self._lock:
            calls, self._calls = self._calls, {}
            unlike, self._unlike = self._unlike, set()
        return {owner: None if owner in unlike else _merged(each) for owner, each in calls.items()}


def packed(rows_of: Mapping[Site, Tensor | None], layout: Layout, like: Tensor) -> Tensor:
    """The rows of all channels in a layout, shape (channels of all sites, WIDTH).

    A site that was not measured has empty rows. One that had other channels than the layout has NaN.

    Args:
        rows_of: what `take` has returned, by site.
        layout: how many channels each site has there.
        like: a tensor of the same dtype and device.
    """
    nothing = torch.tensor(EMPTY, dtype=like.dtype, device=like.device)
    parts = [like.new_zeros(0, WIDTH)]
    for site, extent in layout.items():
        if extent.channels:
            rows = rows_of.get(site, nothing.expand(extent.channels, WIDTH))
            if rows is None or len(rows) != extent.channels:
                rows = like.new_full((extent.channels, WIDTH), math.nan)
            parts.append(rows)
    return torch.cat(parts)


def _merged(calls: list[Tensor]) -> Tensor:
    if len(calls) == 1:
        return calls[0]
    channels = len(calls[0])
    owner = torch.arange(channels, device=calls[0].device).repeat(len(calls))
    return merge_rows(torch.cat(calls), owner, channels, ())
