"""`Exchange`: what the ranks have measured, merged."""

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hookboard.measure import Columns, Statistic, elements_in, empty_row, merge_rows
from hookboard.ranks import Ranks
from hookboard.recording.packet import Layout, Packet, relaid


class Exchange:
    """Merges what the ranks have measured, flush by flush. All ranks must do so in the same order, in any one thread.

    Args:
        ranks: the processes.
        more: what stands behind the moments in a row.
    """

    def __init__(self, ranks: Ranks, more: Sequence[Columns | Statistic]) -> None:
        self._ranks = ranks
        self._more = more
        self._agreed: Layout = {}

    def merged(self, mine: Layout, packet: Packet) -> tuple[Layout, Packet]:
        """The layout that all ranks have agreed on, and the packet of all ranks in it.

        If a rank has a new site, or one that has other channels than before or a histogram for the first time, they
        agree anew.

        Args:
            mine: the layout of this rank's packet.
            packet: of this rank, on the host.

        Raises:
            RanksLostError: a rank no longer takes part.
        """
        is_measured = (elements_in(packet.rows) > 0).tolist()
        new = {
            site: extent
            for (site, extent), is_now in zip(mine.items(), is_measured, strict=True)
            if site not in self._agreed or (is_now and not self._agreed[site].holds(extent))
        }
        flags = torch.cat([packet.flags.new_tensor([bool(new)]), packet.flags])
        flags = self._ranks.merge(flags[:, None], lambda parts: parts.amax(0))[:, 0]
        if flags[0]:
            for site, extent in self._ranks.union(new.items()):
                self._agreed[site] = self._agreed.get(site, extent).joined(extent)
        packet = relaid(packet, mine, self._agreed, empty_row(self._more))
        all_ = dataclasses.replace(
            packet,
            rows=self._ranks.merge(packet.rows, functools.partial(_merged, more=self._more)),
            channels=self._ranks.merge(packet.channels, functools.partial(_merged, more=())),
            bins=self._ranks.merge(packet.bins, lambda parts: parts.sum(0)),
            flags=flags[1:],
        )
        return dict(self._agreed), all_


def _merged(parts: Tensor, more: Sequence[Columns | Statistic]) -> Tensor:
    """The rows of several ranks merged, shape (n, width); from shape (ranks, n, width)."""
    ranks, rows, width = parts.shape
    return merge_rows(parts.reshape(-1, width), torch.arange(rows, device=parts.device).repeat(ranks), rows, more)
