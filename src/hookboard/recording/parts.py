"""What stands before and behind a packet: tensors as they are measured, rows as they are read."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import FIELDS, Histogram, Plan, histograms, single_at_least
from hookboard.recording.packet import Layout, Packet
from hookboard.recording.readings import Readings, Results
from hookboard.sites import Site, Stage

_MIN, _MAX = FIELDS.index("min"), FIELDS.index("max")


class Arrived(NamedTuple):
    """What has been sent, on the host.

    Args:
        readings: a reading for every site of which a tensor was measured.
        flags: of each flag the largest over the ranks.
        along: the numbers that came along, of this rank.
    """

    readings: Readings
    flags: list[float]
    along: list[float]

    def filled(self) -> "Arrived":
        """The same, of the readings those of tensors that had an element."""
        return self._replace(readings=self.readings.filled())


Sent = Callable[[], Arrived]
"""What is on its way to the host, in one copy. It is to be called once, in any thread, which then waits for the device,
and for other ranks that merge what they measured."""


@dataclass
class Unpacked:
    """What a packet holds of each site; all parts have the same order.

    Args:
        sites: the sites.
        rows: their rows, shape (sites, width).
        channels: the rows of their channels; None where there are none.
        bins: their counts; None where there are none.
        dtypes: of their tensors; None where it is unknown.
        widths: how many channels each has, with or without a row.
    """

    sites: list[Site]
    rows: np.ndarray
    channels: list[np.ndarray | None]
    bins: list[np.ndarray | None]
    dtypes: list[torch.dtype | None]
    widths: list[int]

    def where(self, is_kept: np.ndarray) -> "Unpacked":
        """The same of some of the sites: those where `is_kept`, shape (sites,), is true."""
        if is_kept.all():
            return self
        kept = np.flatnonzero(is_kept).tolist()
        sites, channels, bins, dtypes, widths = self.sites, self.channels, self.bins, self.dtypes, self.widths
        return Unpacked(
            [sites[row] for row in kept],
            self.rows[kept],
            [channels[row] for row in kept],
            [bins[row] for row in kept],
            [dtypes[row] for row in kept],
            [widths[row] for row in kept],
        )

    def blanked(self, columns: Iterable[int]) -> "Unpacked":
        """Itself with NaN in these columns, which nobody has filled."""
        parts = [self.rows, *(part for part in self.channels if part is not None)]
        for column in columns:  # one slice after the other: a list of columns would be copied
            for part in parts:
                part[:, column] = math.nan
        return self


def as_taken(taken: Mapping[int, np.ndarray | Tensor | None], layout: Layout) -> Iterator[np.ndarray | None]:
    """What was taken of each site, where it needs no packet."""
    if not taken:
        return itertools.repeat(None, len(layout))
    found = map(taken.get, range(len(layout)))
    return (None if each is None else np.asarray(each) for each in found)


def channels_in(packet: Packet, layout: Layout) -> Iterator[np.ndarray | None]:
    """The rows of the channels of each site; None of those that do not have all of them."""
    rows, start = packet.channels.numpy(), 0
    for extent in layout.values():
        own = rows[start : start + extent.rows]
        start += extent.rows
        # A reading that is kept does not keep the packet.
        yield own.copy() if extent.channels and not math.isnan(own[0, 0]) else None


def bins_in(packet: Packet, layout: Layout) -> Iterator[np.ndarray | None]:
    """The counts of each site; None of those that do not have all of them."""
    counted = iter(packet.bins.numpy())
    for extent in layout.values():
        bins = next(counted) if extent.has_bins else None
        yield None if bins is None or math.isnan(bins[0]) else bins


def unpacked(
    packet: Packet,
    layout: Layout,
    mine: Layout,
    channels: Iterable[np.ndarray | None] | None = None,
    bins: Iterable[np.ndarray | None] | None = None,
) -> Unpacked:
    """What a packet holds of each site.

    Args:
        packet: on the host.
        layout: of the packet.
        mine: the sites of this rank, whose own tensors tell the dtype.
        channels: the rows of the channels of each site, where the packet has none.
        bins: the counts of each site, where the packet has none.
    """
    if layout is mine:
        dtypes = [extent.dtype for extent in layout.values()]
    else:
        dtypes = [mine.get(site, extent).dtype or extent.dtype for site, extent in layout.items()]
    channels = channels_in(packet, layout) if channels is None else channels
    bins = bins_in(packet, layout) if bins is None else bins
    widths = [extent.channels for extent in layout.values()]
    return Unpacked(list(layout), packet.rows.numpy(), list(channels), list(bins), dtypes, widths)


def results_of(plan: Plan, stage: Stage, with_histogram: bool, read: Unpacked) -> Results:
    """The statistics and histograms of all sites; no method, so that whoever keeps it does not keep the recorder."""
    drawn: list[Histogram | None] = [None] * len(read.sites)
    counted = [row for row, bins in enumerate(read.bins) if bins is not None] if with_histogram else []
    if counted:
        low, high = read.rows[counted][:, [_MIN, _MAX]].T
        found = histograms([bins for bins in read.bins if bins is not None], low, high)
        for row, histogram in zip(counted, found, strict=True):
            drawn[row] = histogram
    return Results(stage, plan.table(read.rows, read.bins, read.channels, read.dtypes), drawn)


def on_host(tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> Iterator[tuple[Site, Tensor, Tensor | None]]:
    """The same with tensors that are copied to the host."""
    for site, tensor, minus in tensors:
        yield site, tensor.detach().cpu(), None if minus is None else minus.cpu()


def difference(tensor: Tensor, minus: Tensor) -> Tensor:
    """In float32 at least: two neighbouring half-precision weights differ by less than their type resolves."""
    wide = single_at_least(tensor.dtype)
    return tensor.to(wide) - minus.to(wide)
