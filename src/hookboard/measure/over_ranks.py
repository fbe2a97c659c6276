"""`Agreement`: merges what several ranks have measured, whose sites may differ."""

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch

from hookboard.base.ranks import Ranks
from hookboard.measure.histogram import BINS
from hookboard.measure.row import EMPTY, channel_row_count, elements_in, merge_over
from hookboard.measure.slab import Measured, Slot
from hookboard.measure.statistics import Plan
from hookboard.model.sites import Site


class Extent(NamedTuple):
    """What all ranks send of a site: rows of so many channels, its bins or not; and the dtype of its tensors."""

    width: int = 0
    has_bins: bool = False
    dtype: torch.dtype | None = None


class Agreement:
    """The sites that all ranks send at each step, in one order. They agree anew when one of them has something new.

    Args:
        ranks: the processes; all must merge as often.
        plan: what is measured.
    """

    def __init__(self, ranks: Ranks, plan: Plan) -> None:
        self._ranks, self._plan = ranks, plan
        self._extents: dict[Site, Extent] = {}

    def merged(self, found: Measured, slots: dict[Site, Slot], flags: list[float]) -> tuple[Measured, list[float]]:
        """Return what all ranks have measured, and the largest of each flag.

        What was measured whole on each rank, as parameters are, stays as it is. A site that is switched off on any rank
        is switched off on this one too.

        Args:
            found: what this rank has measured.
            slots: all sites of this rank; those of other ranks are added.
            flags: numbers of at least 0.

        Raises:
            RanksLostError: a rank no longer takes part.
        """
        mine = {slot.site: place for place, slot in enumerate(found.slots) if slot.is_shared}
        new = dict[Site, Extent]()
        for site, place in mine.items():
            width = 0 if found.channels[place] is None else found.widths[place]
            extent = Extent(width, found.bins[place] is not None, found.dtypes[place])
            known = self._extents.get(site)
            if known is None or extent.width not in (0, known.width) or extent.has_bins > known.has_bins:
                new[site] = extent
        told = torch.tensor([bool(new), *flags], dtype=torch.float64, device="cpu")
        is_new, *flags = self._ranks.max(told).tolist()
        if is_new:
            for site, (width, has_bins, dtype) in self._ranks.union(new.items()):
                known = self._extents.get(site, Extent())
                self._extents[site] = Extent(width or known.width, has_bins or known.has_bins, known.dtype or dtype)
        own = [place for place, slot in enumerate(found.slots) if not slot.is_shared]
        return self._over_ranks(found, mine, slots).followed_by(found.among(own)), flags

    def _over_ranks(self, found: Measured, mine: Mapping[Site, int], slots: dict[Site, Slot]) -> Measured:
        """Merge the agreed sites, and return what there is of each; `mine` has the places of this rank's in `found`."""
        lengths = [1 + channel_row_count(extent.width) for extent in self._extents.values()]
        spans = [slice(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)]
        rows, own = np.tile(EMPTY, (sum(lengths), 1)), np.tile(self._plan.neutral, (len(lengths), 1))
        with_bins = [site for site, extent in self._extents.items() if extent.has_bins]
        bins = np.zeros((len(with_bins), BINS))
        counts = dict(zip(with_bins, bins, strict=True))
        for place, (site, extent) in enumerate(self._extents.items()):
            part = rows[spans[place]]
            if slots.setdefault(site, Slot(site)).is_off:
                part[:, 0] = math.nan  # which tells the others
            elif site in mine:
                at = mine[site]
                part[0], own[place] = found.rows[at], found.own[at]
                if found.channels[at] is not None and found.widths[at] == extent.width:
                    part[1:] = found.channels[at]
                else:
                    part[1:, 0] = math.nan  # what it lacks is unknown, not empty
                if (counted := found.bins[at]) is not None:
                    counts[site][:] = counted
        rows = merge_over(self._ranks, torch.from_numpy(rows)).numpy()
        if with_bins:
            counts = dict(zip(with_bins, self._ranks.sum(torch.from_numpy(bins)).numpy(), strict=True))
        own = self._merged_own(torch.from_numpy(own)) if self._plan.own else own
        kept, channels, dtypes = list[int](), list[np.ndarray | None](), list[torch.dtype | None]()
        for place, (site, extent) in enumerate(self._extents.items()):
            slot, part = slots[site], rows[spans[place]]
            slot.is_off |= math.isnan(part[0, 0])
            channels.append(part[1:] if extent.width and not math.isnan(part[1, 0]) else None)
            dtypes.append(found.dtypes[mine[site]] if site in mine else extent.dtype)
            if not slot.is_off and elements_in(part[0]) > 0:
                kept.append(place)
        sites, starts = [*self._extents], [span.start for span in spans]
        every = [slots[site] for site in sites], rows[starts], own, channels, [*map(counts.get, sites)], dtypes
        return Measured(*every, [extent.width for extent in self._extents.values()]).among(kept)

    def _merged_own(self, numbers: torch.Tensor) -> np.ndarray:
        """Merge the numbers of the user's statistics, see `statistics.joined`."""
        signs = numbers.new_tensor([{"min": -1.0, "max": 1.0}.get(each.merge, 0.0) for each in self._plan.own])
        ends = self._ranks.max((signs * numbers).where((signs != 0) & ~numbers.isnan(), -math.inf))
        sums = self._ranks.sum(numbers.where((signs == 0) | numbers.isnan(), 0))  # which is NaN where one of them is
        return (signs * ends).where((signs != 0) & ~sums.isnan(), sums).numpy()
