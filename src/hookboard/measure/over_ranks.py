"""`Agreement`: merges what several ranks have measured, whose sites may differ."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from hookboard.base.ranks import Ranks
from hookboard.measure.histogram import BINS
from hookboard.measure.row import EMPTY, NONFINITE, channel_row_count, elements_in, merge_over
from hookboard.measure.slab import Columns, Slot
from hookboard.measure.statistics import Plan
from hookboard.model.sites import Site

Extent = tuple[int, bool, torch.dtype | None]
"""The number of channels of a site, whether it has bins, and the dtype of its tensors."""


class Agreement:
    """The sites that all ranks send at each step, in one order. They agree anew when one of them has something new.

    Args:
        ranks: the processes; all must merge as often.
        plan: what is measured.
    """

    def __init__(self, ranks: Ranks, plan: Plan) -> None:
        self._ranks, self._plan = ranks, plan
        self._extents: dict[Site, Extent] = {}

    def merged(
        self, columns: Columns, slots: dict[Site, Slot], flags: Sequence[float]
    ) -> tuple[Columns, Sequence[float]]:
        """Return what all ranks have measured, and the largest of each flag.

        What was measured whole on each rank, as parameters are, stays as it is. A site that is switched off on any rank
        is switched off on this one too.

        Args:
            columns: what this rank has measured.
            slots: all sites of this rank; those of other ranks are added.
            flags: numbers of at least 0.

        Raises:
            RanksLostError: a rank no longer takes part.
        """
        own = {slot.site: number for number, slot in enumerate(columns.slots) if slot.is_shared}
        new = {site: extent for site, number in own.items() if self._lacks(site, extent := _extent(columns, number))}
        has_nonfinite = bool(columns.rows[[*own.values()], NONFINITE].any())
        told = torch.tensor([bool(new), has_nonfinite, *flags], dtype=torch.float64, device="cpu")
        is_new, has_nonfinite, *flags = self._ranks.max(told).tolist()
        if is_new:
            for site, (width, has_bins, dtype) in self._ranks.union(new.items()):
                known = self._extents.get(site, (0, False, None))
                self._extents[site] = width or known[0], has_bins or known[1], known[2] or dtype
        found = self._over_ranks(columns, own, slots, with_nonfinite=bool(has_nonfinite))
        local = [number for number, slot in enumerate(columns.slots) if not slot.is_shared]
        return found.with_more(columns, local), flags

    def _lacks(self, site: Site, extent: Extent) -> bool:
        """Return True if there is no room for what was measured of a site."""
        known = self._extents.get(site)
        return known is None or extent[0] not in (0, known[0]) or extent[1] > known[1]

    def _over_ranks(
        self, columns: Columns, own: Mapping[Site, int], slots: dict[Site, Slot], *, with_nonfinite: bool
    ) -> Columns:
        starts = np.cumsum([0, *(1 + channel_row_count(width) for width, _, _ in self._extents.values())])
        with_bins = (site for site, (_, has_bins, _) in self._extents.items() if has_bins)
        rows, counted = np.tile(EMPTY, (starts[-1], 1)), {site: place for place, site in enumerate(with_bins)}
        bins, numbers = np.zeros((len(counted), BINS)), np.tile(self._plan.neutral, (len(self._extents), 1))
        for place, (site, (width, has_bins, _)) in enumerate(self._extents.items()):
            start, end = starts[place], starts[place + 1]
            slot, number = slots.setdefault(site, Slot(len(slots), site)), own.get(site)
            if slot.is_off:
                rows[start:end, 0] = math.nan  # which tells the others
            elif number is not None:
                rows[start], channels = columns.rows[number], columns.channels[number]
                if channels is not None and columns.widths[number] == width:
                    rows[start + 1 : end] = channels
                elif elements_in(columns.rows[number]):
                    rows[start + 1 : end, 0] = math.nan  # what it lacks is unknown, not empty
                if has_bins and elements_in(columns.rows[number]):
                    counts = columns.bins[number]
                    bins[counted[site]] = math.nan if counts is None else counts
                if (measured := columns.own[number]) is not None:
                    numbers[place] = measured
        with_abs_mean = self._plan.with_abs_mean  # columns without content are not sent: channels have many rows
        rows = merge_over(
            self._ranks, torch.from_numpy(rows), with_abs_mean=with_abs_mean, with_nonfinite=with_nonfinite
        ).numpy()
        bins = self._ranks.sum(torch.from_numpy(bins)).numpy() if counted else bins
        numbers = self._merged_own(torch.from_numpy(numbers)) if self._plan.own else numbers
        found, kept = Columns(), list[int]()
        for place, (site, (width, has_bins, dtype)) in enumerate(self._extents.items()):
            start, number = starts[place], own.get(site)
            slots[site].is_off |= math.isnan(rows[start, 0])
            if slots[site].is_off or not (number is not None or elements_in(rows[start])):
                continue
            kept.append(start)
            channels = rows[start + 1 : starts[place + 1]]
            is_known = len(channels) and not np.isnan(channels[0, 0]) and elements_in(rows[start])
            found.slots.append(slots[site])
            found.channels.append(channels if is_known else None)
            counts = bins[counted[site]] if has_bins else None
            found.bins.append(None if counts is None or np.isnan(counts[0]) else counts)
            found.own.append(numbers[place] if self._plan.own else None)
            found.dtypes.append(dtype if number is None else columns.dtypes[number])
            found.widths.append(width)
        found.rows = rows[kept]
        return found

    def _merged_own(self, numbers: torch.Tensor) -> np.ndarray:
        """Merge the numbers of the user's statistics, see `statistics.joined`."""
        signs = numbers.new_tensor([{"min": -1.0, "max": 1.0}.get(each.merge, 0.0) for each in self._plan.own])
        ends = self._ranks.max((signs * numbers).where((signs != 0) & ~numbers.isnan(), -math.inf))
        sums = self._ranks.sum(numbers.where((signs == 0) | numbers.isnan(), 0))  # which is NaN where one of them is
        return (signs * ends).where((signs != 0) & ~sums.isnan(), sums).numpy()


def _extent(columns: Columns, number: int) -> Extent:
    has_channels = columns.channels[number] is not None
    return columns.widths[number] if has_channels else 0, columns.bins[number] is not None, columns.dtypes[number]
