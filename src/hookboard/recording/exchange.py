"""Bring rows from the device to the host, merged over ranks: one collective, one transfer."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hookboard.measure import Statistic, merge_rows
from hookboard.ranks import Ranks
from hookboard.sites import Site


@dataclass(frozen=True)
class Packet:
    """What one flush brings to the host, float64.

    Args:
        rows: shape (sites, width): the merged row of each site; NaN where measuring it has failed.
        bins: shape (sites with a histogram, BINS).
        flags: shape (k,): conditions that any rank may report, 0 or 1 each.
        status: shape (1,): NaN if the rank has given up, 1 if it has sites that the layout lacks, else 0.
    """

    rows: Tensor
    bins: Tensor
    flags: Tensor
    status: Tensor

    def to_host(self) -> "Packet":
        """The same on the CPU, in one transfer."""
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)]
        flat = torch.cat([part.flatten() for part in parts]).cpu()
        return Packet(*[a.view_as(b) for a, b in zip(flat.split([p.numel() for p in parts]), parts, strict=True)])

    def over(self, ranks: Ranks, own: tuple[Statistic, ...]) -> "Packet":
        """The same merged over all ranks, in one collective."""
        mine = [self.rows.flatten(), self.flags, self.status]
        each, bins = ranks.gather_and_sum(torch.cat(mine), self.bins.flatten())
        rows, flags, status = each.split([part.numel() for part in mine], dim=1)
        sites, width = self.rows.shape
        owner = torch.arange(sites, device=rows.device).repeat(ranks.size)
        merged = merge_rows(rows.reshape(-1, width), owner, sites, own)
        return Packet(merged, bins.view_as(self.bins), flags.amax(0), status.sum(0))


class Exchange:
    """Brings what was measured to the host, merged over ranks.

    Args:
        ranks: the processes that merge what they measured; None if nothing is merged.
        own: the user's statistics, whose columns follow the moments in a row.
    """

    def __init__(self, ranks: Ranks | None, own: tuple[Statistic, ...]) -> None:
        self._ranks = ranks
        self._own = own
        self._agreed: list[Site] = []
        self._has_given_up = False

    @property
    def is_collective(self) -> bool:
        """Whether every rank must take part in each flush."""
        return self._ranks is not None

    def give_up(self) -> bool:
        """Stop measuring on this rank.

        Returns:
            Whether this rank must still take part in the next flush, to tell the others.
        """
        stays, self._has_given_up = self.is_collective and not self._has_given_up, True
        return stays

    def bring(self, sites: list[Site], pack: Callable[[list[Site], Tensor], Packet]) -> tuple[list[Site], Packet]:
        """The sites of all ranks, and their packet on the host.

        All ranks must order their rows in the same way (the layout). If a rank has a new site, the ranks agree on a new
        layout, which costs one more exchange.

        Args:
            sites: the sites of this rank.
            pack: makes the packet for a layout and a status.

        Raises:
            RuntimeError: a rank has given up: the ranks can no longer merge.
        """
        if self._ranks is None:
            return sites, pack(sites, torch.zeros(1, dtype=torch.float64, device="cpu")).to_host()
        while True:
            is_new = not set(sites) <= set(self._agreed)
            status = torch.tensor([math.nan if self._has_given_up else is_new], dtype=torch.float64, device="cpu")
            host = pack(self._agreed, status).over(self._ranks, self._own).to_host()
            if math.isnan(host.status):
                self._has_given_up = True
                raise RuntimeError("another rank has stopped measuring")
            if not host.status:
                return self._agreed, host
            self._agreed = self._ranks.union([*self._agreed, *sites])
