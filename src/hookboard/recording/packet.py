"""`Packet`: what one flush brings to the host, in one copy; its layout, and how it is laid out anew."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.measure import BINS, EMPTY, elements_in, looked_at
from hookboard.recording.sending import sent
from hookboard.sites import Site


class Extent(NamedTuple):
    """What a packet holds of a site beside its row.

    Args:
        channels: how many channels it has; 0 if they are not measured.
        has_bins: whether it has a histogram.
        dtype: of its tensors; None if unknown.
    """

    channels: int = 0
    has_bins: bool = False
    dtype: torch.dtype | None = None

    @property
    def rows(self) -> int:
        """The number of its rows of channels: of a wide tensor every k-th channel has one."""
        return looked_at(self.channels)

    def holds(self, other: "Extent") -> bool:
        """Whether there is room for what the other has."""
        return other.channels in (0, self.channels) and (self.has_bins or not other.has_bins)

    def joined(self, other: "Extent") -> "Extent":
        """The extent that has room for both; for the channels of the other, where they are not as many."""
        return Extent(other.channels or self.channels, self.has_bins or other.has_bins, self.dtype or other.dtype)


Layout = dict[Site, Extent]
"""The order of the rows in a packet, and what else it holds."""


@dataclass(frozen=True)
class Packet:
    """What one flush brings to the host, float64.

    Args:
        rows: shape (sites, width): the merged row of each site; NaN where measuring it has failed.
        channels: shape (rows of channels of all sites, WIDTH): the merged rows of the channels; NaN where they do not
            fit.
        bins: shape (sites with a histogram, BINS); NaN where not all of the site was counted.
        flags: shape (k,): numbers of at least 0, of each the largest that any rank reports.
        along: shape (n,): numbers of this rank that come along.
    """

    rows: Tensor
    channels: Tensor
    bins: Tensor
    flags: Tensor
    along: Tensor

    def to_host(self) -> Callable[[], "Packet"]:
        """Start the one transfer to the CPU; returns what gives the packet there, see `sent`."""
        if self.rows.is_cpu:
            return lambda: self
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)]
        shapes = [part.shape for part in parts]
        arrived = sent(torch.cat([part.flatten() for part in parts]))

        def packet() -> Packet:
            flat = arrived().split([shape.numel() for shape in shapes])
            return Packet(*[part.view(shape) for part, shape in zip(flat, shapes, strict=True)])

        return packet


def packed_bins(bins_of: Mapping[Site, Tensor], layout: Layout, device: torch.device) -> Tensor:
    """The bins of all sites in a layout that have a histogram, shape (their number, BINS), float64."""
    bins = torch.zeros(sum(extent.has_bins for extent in layout.values()), BINS, dtype=torch.float64, device=device)
    for row, site in zip(bins, (site for site, extent in layout.items() if extent.has_bins), strict=True):
        if site in bins_of:
            row.copy_(bins_of[site])
    return bins


def relaid(packet: Packet, given: Layout, wanted: Layout, empty: Sequence[float]) -> Packet:
    """A packet in another layout, on the host.

    A site that was not measured gets what changes nothing in a merge. One that was, and has other channels than wanted
    or no histogram where one is wanted, gets NaN there.

    Args:
        packet: on the host.
        given: its layout.
        wanted: the other one.
        empty: the row of no values.
    """
    if [*map(_sizes, given.items())] == [*map(_sizes, wanted.items())]:
        return packet
    place = {site: row for row, site in enumerate(given)}
    is_measured = (elements_in(packet.rows) > 0).tolist()
    channels = dict(zip(given, packet.channels.split([extent.rows for extent in given.values()]), strict=True))
    counted = iter(packet.bins)
    bins = {site: next(counted) for site, extent in given.items() if extent.has_bins}

    def nothing(site: Site, otherwise: Sequence[float], rows: int) -> Tensor:
        is_partly = site in place and is_measured[place[site]]
        return packet.rows.new_tensor([[math.nan] * len(otherwise) if is_partly else otherwise]).repeat(rows, 1)

    order = torch.tensor([place.get(site, len(given)) for site in wanted], dtype=torch.long, device="cpu")
    some_channels, some_bins = [packet.channels[:0]], [packet.bins[:0]]
    for site, extent in wanted.items():
        own = channels.get(site)
        fits = own is not None and given[site].channels == extent.channels
        some_channels.append(own if own is not None and fits else nothing(site, EMPTY, extent.rows))
        if extent.has_bins:
            some_bins.append(bins[site][None] if site in bins else nothing(site, [0.0] * BINS, 1))
    return dataclasses.replace(
        packet,
        rows=torch.cat([packet.rows, packet.rows.new_tensor([list(empty)])])[order],
        channels=torch.cat(some_channels),
        bins=torch.cat(some_bins),
    )


def _sizes(part: tuple[Site, Extent]) -> tuple[Site, int, bool]:
    site, extent = part
    return site, extent.channels, extent.has_bins
