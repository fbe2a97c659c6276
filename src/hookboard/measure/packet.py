"""`Packet`: what one flush copies to the host, and `Exchange`, which merges the packets of several ranks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.base.ranks import Ranks
from hookboard.measure.columns import Columns, empty_row
from hookboard.measure.histogram import BINS
from hookboard.measure.merge import merge_rows, merging
from hookboard.measure.rounds import Kind, Merging, once, run, together
from hookboard.measure.row import EMPTY, WIDTH, ChannelRows, channel_row_count, elements_in
from hookboard.model.sites import Site


class Extent(NamedTuple):
    """The layout of a site in a packet, besides its row; without channels that are measured, their number is 0."""

    channels: int = 0
    has_bins: bool = False
    dtype: torch.dtype | None = None

    @property
    def rows(self) -> int:
        """The number of rows of channels; for a wide tensor fewer than `channels`, as only every k-th has one."""
        return channel_row_count(self.channels)

    def holds(self, other: "Extent") -> bool:
        """Return True if this extent has room for all that the other one has."""
        return other.channels in (0, self.channels) and (self.has_bins or not other.has_bins)

    def joined(self, other: "Extent") -> "Extent":
        """Return an extent with room for both; where both have channels, it takes the number of `other`."""
        return Extent(other.channels or self.channels, self.has_bins or other.has_bins, self.dtype or other.dtype)


Layout = dict[Site, Extent]
"""The sites of a packet in their order, with the extent of each."""


@dataclass(frozen=True)
class Packet:
    """What one flush has measured, on the host. All parts are in the order of `layout`.

    Args:
        rows: shape (sites, width), float64: the merged row of each site; NaN where measuring it has failed.
        channels: the merged rows of the channels of each site, shape (rows of channels, WIDTH), float64; None where it
            was not measured, or its calls had no channels in common.
        bins: the counts of each site, shape (BINS,); None where it was not measured, or has no histogram.
        flags: shape (k,): numbers of at least 0, merged over the ranks by their maximum.
        along: shape (n,): further numbers, which are not merged.
    """

    layout: Layout
    rows: Tensor
    channels: Sequence[ChannelRows | None]
    bins: Sequence[Tensor | np.ndarray | None]
    flags: Tensor
    along: Tensor


class SiteNumbers(NamedTuple):
    """What was measured of a site on one device since the last flush, on the host.

    Args:
        channels: shape (rows of channels, WIDTH), float64; None if its tensors had no channels in common.
        bins: shape (BINS,); None without a histogram.
    """

    row: np.ndarray
    channels: ChannelRows | None
    bins: Tensor | None

    def joined(self, other: "SiteNumbers", more: Sequence[Columns]) -> "SiteNumbers":
        """Merge both, as if one device had measured all tensors."""
        both = torch.from_numpy(np.stack([self.row, other.row]))
        row = merge_rows(both, torch.zeros(2, dtype=torch.long, device="cpu"), 1, more)[0].numpy()
        if not elements_in(self.row) or not elements_in(other.row):  # an empty tensor leaves the channels of others
            filled = other if elements_in(other.row) else self
            return filled._replace(bins=self.bins if other.bins is None else other.bins)
        channels: Tensor | None = None
        if self.channels is not None and other.channels is not None and len(self.channels) == len(other.channels):
            both = torch.cat([torch.as_tensor(self.channels), torch.as_tensor(other.channels)])
            owner = torch.arange(len(self.channels), device="cpu").repeat(2)
            channels = merge_rows(both, owner, len(self.channels), ())
        counts = [each for each in (self.bins, other.bins) if each is not None]
        return SiteNumbers(row, channels, torch.stack(counts).sum(0) if counts else None)


class Exchange:
    """Merges the packets of all ranks, flush by flush. All ranks must call `merged` in the same order."""

    def __init__(self, ranks: Ranks, more: Sequence[Columns]) -> None:
        self._ranks = ranks
        self._more = more
        self._agreed: Layout = {}

    def merged(self, packet: Packet) -> Packet:
        """Return the merged packet of all ranks, in the layout that they have agreed on.

        They agree on a new layout if a rank has a new site, or a site with other channels than before or with a
        histogram for the first time.

        Raises:
            RanksLostError: a rank no longer takes part.
        """
        mine, is_measured = packet.layout, (elements_in(packet.rows) > 0).tolist()
        new = {
            site: extent
            for (site, extent), is_now in zip(mine.items(), is_measured, strict=True)
            if site not in self._agreed or (is_now and not self._agreed[site].holds(extent))
        }
        found = run(self._merging(packet, is_new=bool(new)), self._combined)
        if found[0][0]:
            for site, extent in self._ranks.union(new.items()):
                self._agreed[site] = self._agreed.get(site, extent).joined(extent)
            # Again: what the first exchange merged was in the old layout.
            found = run(self._merging(packet, is_new=False), self._combined)
        flags, rows, channels, bins = found
        # The dtype is that of the rank's own tensors, if it has measured any.
        agreed = self._agreed.items()
        layout = {site: each._replace(dtype=mine.get(site, each).dtype or each.dtype) for site, each in agreed}
        channels_of = _split(channels.numpy(), [each.rows for each in layout.values()])
        counted = _split(bins.numpy(), [int(each.has_bins) for each in layout.values()])
        return replace(
            packet,
            layout=layout,
            rows=rows,
            # Copies: a reading that is kept must not keep the packet.
            channels=[None if each is None else each.copy() for each in channels_of],
            bins=[None if each is None else each[0] for each in counted],
            flags=flags[1:],
        )

    def _combined(self, kind: Kind, numbers: Tensor) -> Tensor:
        if not numbers.numel():
            return numbers
        return self._ranks.sum(numbers) if kind == "sum" else self._ranks.max(numbers)

    def _merging(self, packet: Packet, *, is_new: bool) -> Merging[list[Tensor]]:
        """Merge the flags, the first of them whether the layout is new, with what the layout agreed so far has."""
        flags = torch.cat([packet.flags.new_tensor([is_new]), packet.flags]).double()
        rows, channels, bins = _blocks(packet, self._agreed, empty_row(self._more))
        return together(once("max", flags), merging(rows, self._more), merging(channels, ()), once("sum", bins))


def _blocks(packet: Packet, layout: Layout, empty: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, the rows of channels and the bins of all sites in a layout, each in one float64 block.

    A site that was not measured gets neutral elements. A measured site gets NaN where it has not what the layout says:
    other channels, or no histogram.
    """
    place = {site: row for row, site in enumerate(packet.layout)}
    is_measured = (elements_in(packet.rows) > 0).tolist()
    order = torch.tensor([place.get(site, len(place)) for site in layout], dtype=torch.long, device="cpu")
    channels, bins = [np.empty((0, WIDTH))], [np.empty((0, BINS))]
    for site, extent in layout.items():
        row = place.get(site)
        is_partial = row is not None and is_measured[row]  # channels or bins that it lacks are unknown, not empty
        own = None if row is None else packet.channels[row]
        counted = None if row is None else packet.bins[row]
        if extent.channels:
            fits = own is not None and (packet.layout[site].channels, len(own)) == (extent.channels, extent.rows)
            nothing = np.tile([math.nan] * WIDTH if is_partial else EMPTY, (extent.rows, 1))
            channels.append(np.asarray(own) if fits else nothing)
        if extent.has_bins:
            nothing = np.full(BINS, math.nan if is_partial else 0.0)
            bins.append((nothing if counted is None else np.asarray(counted))[None])
    rows = torch.cat([packet.rows, packet.rows.new_tensor([list(empty)])])[order]
    return rows, torch.from_numpy(np.concatenate(channels)), torch.from_numpy(np.concatenate(bins))


def _split(block: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray | None]:
    """Split a block into parts with these numbers of rows; a part without rows, or that begins with NaN, is None."""
    parts = np.split(block, np.cumsum(sizes)[:-1]) if sizes else []
    return [part if len(part) and not math.isnan(part[0, 0]) else None for part in parts]


def sent_together(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start the copies of tensors to the host; return a function that waits for them and returns them.

    On other devices than CUDA they are made at once; of a tensor on the CPU it is the tensor itself, not a copy.
    """
    hosts, events = list[Tensor](), dict[torch.device, torch.cuda.Event]()
    for tensor in tensors:
        if not tensor.is_cuda:
            hosts.append(tensor if tensor.is_cpu else tensor.cpu())
            continue
        # Only copies to pinned memory are asynchronous. What inference mode makes could not be changed outside of it.
        with torch.inference_mode(False):
            hosts.append(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True))
        hosts[-1].copy_(tensor, non_blocking=True)
        events.setdefault(tensor.device, torch.cuda.Event())
    for device, event in events.items():
        event.record(torch.cuda.current_stream(device))

    def arrived() -> list[Tensor]:
        for event in events.values():
            event.synchronize()
        return hosts

    return arrived
