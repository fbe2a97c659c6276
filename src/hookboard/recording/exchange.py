"""From the device of each rank to the host: one layout for all, one collective, one transfer."""

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
        flags: shape (k,): what any rank may raise, 0 or 1.
        status: shape (1,): NaN where the rank has given up, 1 where it has sites that the layout lacks, else 0.
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
        """What all ranks have together, in one collective."""
        mine = [self.rows.flatten(), self.flags, self.status]
        each, bins = ranks.gather_and_sum(torch.cat(mine), self.bins.flatten())
        rows, flags, status = each.split([part.numel() for part in mine], dim=1)
        sites, width = self.rows.shape
        owner = torch.arange(sites, device=rows.device).repeat(ranks.size)
        merged = merge_rows(rows.reshape(-1, width), owner, sites, own)
        return Packet(merged, bins.view_as(self.bins), flags.amax(0), status.sum(0))


class Exchange:
    """Brings what was measured to the host, of all ranks together where they merge.

    Args:
        ranks: the processes that merge; None where each is alone.
        own: the user's statistics, which stand behind the moments in a row.
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
        """Whether this rank must stay until the next flush, which tells the others that it measures no more."""
        stays, self._has_given_up = self.is_collective and not self._has_given_up, True
        return stays

    def bring(self, sites: list[Site], pack: Callable[[list[Site], Tensor], Packet]) -> tuple[list[Site], Packet]:
        """The sites of all ranks, and what is known of them, on the host.

        A site that is new to some rank costs one exchange more, once: all ranks must lay out their rows alike.

        Args:
            sites: those of this rank.
            pack: makes the packet for a layout, with the given status in it.

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
