"""Bring rows from the device to the host, merged over ranks: one collective, one transfer."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.measure import Columns, Statistic, merge_rows
from hookboard.ranks import Ranks
from hookboard.recording.sending import sent
from hookboard.sites import Site


class Extent(NamedTuple):
    """What a packet holds of a site beside its row.

    Args:
        channels: the number of its channels; 0 if they are not measured.
        has_bins: whether it has a histogram.
        dtype: of its tensors; None if unknown.
    """

    channels: int = 0
    has_bins: bool = False
    dtype: torch.dtype | None = None

    def holds(self, other: "Extent") -> bool:
        """Whether there is room for what the other has. The number of channels never changes once it is agreed."""
        return bool(self.channels or not other.channels) and (self.has_bins or not other.has_bins)

    def joined(self, other: "Extent") -> "Extent":
        """The extent that has room for both."""
        return Extent(self.channels or other.channels, self.has_bins or other.has_bins, self.dtype or other.dtype)


Layout = dict[Site, Extent]
"""The order of the rows in a packet, and what else it holds."""


@dataclass(frozen=True)
class Packet:
    """What one flush brings to the host, float64.

    Args:
        rows: shape (sites, width): the merged row of each site; NaN where measuring it has failed.
        channels: shape (channels of all sites, WIDTH): the merged rows of the channels; NaN where they do not fit.
        bins: shape (sites with a histogram, BINS); NaN where not all of the site was counted.
        flags: shape (k,): numbers of at least 0, of each the largest that any rank reports.
        along: shape (n,): numbers of this rank that come along.
        status: shape (1,): NaN if the rank has given up, 1 if it has sites that the layout lacks, else 0.
    """

    rows: Tensor
    channels: Tensor
    bins: Tensor
    flags: Tensor
    along: Tensor
    status: Tensor

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

    def over(self, ranks: Ranks, more: Sequence[Columns | Statistic]) -> "Packet":
        """The same merged over all ranks, in one collective."""
        mine = [self.rows.flatten(), self.channels.flatten(), self.flags, self.status]
        each, bins = ranks.gather_and_sum(torch.cat(mine), self.bins.flatten())
        rows, channels, flags, status = each.split([part.numel() for part in mine], dim=1)
        return Packet(
            rows=_over_ranks(rows, self.rows, more),
            channels=_over_ranks(channels, self.channels, ()),
            bins=bins.view_as(self.bins),
            flags=flags.amax(0),
            along=self.along,
            status=status.sum(0),
        )


def _over_ranks(each: Tensor, mine: Tensor, more: Sequence[Columns | Statistic]) -> Tensor:
    """The rows of all ranks merged, shape (n, width); from shape (ranks, n * width) and the rows of this rank."""
    owner = torch.arange(len(mine), device=mine.device).repeat(len(each))
    return merge_rows(each.reshape(-1, mine.shape[1]), owner, len(mine), more)


class Exchange:
    """Brings what was measured to the host, merged over ranks.

    Args:
        ranks: the processes that merge what they measured; None if nothing is merged.
        more: what stands behind the moments in a row.
    """

    def __init__(self, ranks: Ranks | None, more: Sequence[Columns | Statistic]) -> None:
        self._ranks = ranks
        self._more = more
        self._agreed: Layout = {}
        self._has_given_up = self._is_told = False

    @property
    def is_collective(self) -> bool:
        """Whether every rank must take part in each flush."""
        return self._ranks is not None

    def give_up(self) -> bool:
        """Stop measuring on this rank.

        Returns:
            Whether this rank must still take part in the next flush, to tell the others.
        """
        self._has_given_up = True
        return self.is_collective and not self._is_told

    def bring(self, mine: Layout, pack: Callable[[Layout, float], Packet]) -> tuple[Layout, Callable[[], Packet]]:
        """The layout of all ranks, and what gives their packet on the host.

        All ranks must pack in the same layout. If a rank has a new site, or has channels or a histogram of one for the
        first time, the ranks agree on a new layout, which costs one more exchange. To see whether they must, the host
        waits here for the device, once; where nothing is merged it does not.

        Args:
            mine: the sites of this rank.
            pack: makes the packet for a layout and a status.

        Raises:
            RuntimeError: a rank has given up: the ranks can no longer merge.
        """
        if self._ranks is None:
            return mine, pack(mine, 0.0).to_host()
        while True:
            is_new = any(site not in self._agreed or not self._agreed[site].holds(mine[site]) for site in mine)
            status = math.nan if self._has_given_up else float(is_new)
            packet = pack(self._agreed, status).over(self._ranks, self._more).to_host()
            host = packet()
            if math.isnan(host.status):
                self._has_given_up = self._is_told = True
                raise RuntimeError("another rank has stopped measuring")
            if not host.status:
                return self._agreed, packet
            agreed: Layout = {}
            for site, extent in self._ranks.union([*self._agreed.items(), *mine.items()]):
                agreed[site] = agreed.get(site, extent).joined(extent)
            self._agreed = agreed
