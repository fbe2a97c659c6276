"""`Recorder`: measures the tensors of all sites of a step, and gives a reading for each site."""

import math
import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import (
    BINS,
    FIELDS,
    REQUESTABLE,
    WIDTH,
    Moments,
    Plan,
    elements_in,
    histogram,
    measure,
)
from hookboard.messages import warn_switched_off
from hookboard.ranks import Ranks, own_part
from hookboard.recording.exchange import Exchange, Packet
from hookboard.recording.reading import Reading
from hookboard.recording.rows import RowBuffer
from hookboard.sites import ROLES, Role, Site, Stage


class Recorder:
    """Measures the tensors of any number of sites and merges what belongs to one step.

    Tensors may come from several threads.

    Args:
        plan: the statistics to measure.
        device: where the rows are kept.
        stage: the stage that is noted in readings.
        histogram: whether to count histograms too.
        ranks: the processes that train this model together; None if there is only one.
        sync: whether the ranks merge what they measured. Then every rank must call each flush.
    """

    scale: Tensor | None = None
    """The scale that gradients carry now, shape (); they are divided by it. None if they carry none."""

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        stage: Stage = "train",
        histogram: bool = False,
        ranks: Ranks | None = None,
        sync: bool = True,
    ) -> None:
        self.stage: Stage = stage
        self._plan = plan.with_histogram() if histogram else plan
        self._not_measured = [FIELDS.index(field) for field in REQUESTABLE - self._plan.wanted]
        self._rows = RowBuffer(plan.own, device)
        self._observers: dict[Site, Callable[[Tensor], None]] = {}
        self._opening = threading.Lock()
        self._histogram = histogram
        self._counts: dict[Site, Tensor] = {}
        self._ranks = ranks
        self._is_merged = sync or ranks is None
        self._exchange = Exchange(ranks if sync else None, plan.own)
        self._off: set[Site] = set()

    def open(self, site: Site) -> Callable[[Tensor], None]:
        """The function that measures a tensor of this site. The site is added at the first request.

        If measuring fails, that function gives one warning, and from then on does nothing.
        """
        with self._opening:
            if site not in self._observers:
                self._observers[site] = self._add(site)
            return self._observers[site]

    def _add(self, site: Site) -> Callable[[Tensor], None]:
        index = len(self._observers)
        counts = self._counts_of(site) if self._counted([site]) else None
        traits = ROLES[site.role]
        rank = 0 if self._ranks is None else self._ranks.rank

        def observe(tensor: Tensor) -> None:
            if self._off and site in self._off:
                return
            try:
                tensor = tensor.detach() if tensor.requires_grad else tensor
                part = own_part(tensor, is_replicated=traits.of_parameter, rank=rank, is_merged=self._is_merged)
                if part is None:
                    return
                if traits.is_gradient and self.scale is not None:
                    part = unscaled(part, self.scale)
                self._rows.append(index, measure(part, self._plan, counts=counts, moments_only=traits.moments_only))
            except Exception as error:
                self._off.add(site)
                warn_switched_off(f"{site.role} of {site.path!r}", error)

        return observe

    def _counted(self, sites: list[Site]) -> list[Site]:
        """Those that have a histogram."""
        return [site for site in sites if not ROLES[site.role].moments_only] if self._histogram else []

    def _counts_of(self, site: Site) -> Tensor:
        if site not in self._counts:
            with torch.inference_mode(False):
                self._counts[site] = torch.zeros(BINS, dtype=torch.long, device=self._rows.device)
        return self._counts[site]

    def give_up(self) -> bool:
        """Stop measuring on this rank; returns whether it must still take part in the next flush."""
        return self._exchange.give_up()

    def is_off(self, name: str, role: Role) -> bool:
        """Whether measuring this role of this module or parameter has failed, on any rank."""
        return any((site.name, site.role) == (name, role) for site in self._off)

    def flush(self, flags: Tensor | None = None) -> tuple[list[Reading], list[bool]]:
        """Merge what was measured since the last flush and forget it.

        Args:
            flags: shape (k,), one number for each condition that the caller wants to share with the other ranks: 0 if
                it is false on this rank.

        Returns:
            A reading for every site of which a tensor was measured, and for each flag whether it is true. If the ranks
            merge, both are over all ranks.

        Raises:
            RuntimeError: a rank has given up: the ranks can no longer merge.
        """
        flags = torch.zeros(0, device="cpu") if flags is None else flags
        owners, known = self._rows.owners, list(self._observers)
        measured = {known[index] for index in owners}
        if not (measured or len(flags) or self._exchange.is_collective):
            return [], []
        sites, host = self._exchange.bring(known, self._packer(known, flags))
        bins_of = dict(zip(self._counted(sites), host.bins.numpy(), strict=True))
        elements, rows = elements_in(host.rows).tolist(), host.rows.numpy()
        rows[:, self._not_measured] = math.nan
        readings = []
        for site, count, row in zip(sites, elements, rows.tolist(), strict=True):
            if math.isnan(count):  # it failed, here or on another rank: the rest is not the whole
                self._off.add(site)
            elif count or site in measured:
                readings.append(self._reading(site, row, bins_of.get(site)))
        return readings, host.flags.bool().tolist()

    def _packer(self, local: list[Site], flags: Tensor) -> Callable[[list[Site], Tensor], Packet]:
        """Makes the packet of what was measured at these sites, for any layout of sites."""
        merged = self._rows.take(len(local) + 1)  # the last is the empty row
        if self._off:
            merged[[index for index, site in enumerate(local) if site in self._off]] = math.nan
        bins = {site: counts.double() for site, counts in self._counts.items()}
        for counts in self._counts.values():
            counts.zero_()
        none = merged.new_zeros(BINS)

        def pack(sites: list[Site], status: Tensor) -> Packet:
            counted = [bins.get(site, none) for site in self._counted(sites)]
            return Packet(
                rows=_in_order(merged, local, sites),
                bins=torch.stack(counted) if counted else merged.new_zeros(0, BINS),
                flags=flags.to(merged),
                status=status.to(merged),
            )

        return pack

    def _reading(self, site: Site, row: list[float], bins: np.ndarray | None) -> Reading:
        moments = Moments(*row[:WIDTH])
        drawn = None if bins is None else histogram(bins, moments.min, moments.max)
        return Reading(site, moments, self._plan.values(moments, row[WIDTH:]), drawn, self.stage)


def unscaled(gradient: Tensor, scale: Tensor) -> Tensor:
    """A gradient without the scale, in float32 at least: half precision, which needs the scale, would lose it."""
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / scale


def _in_order(rows: Tensor, given: list[Site], wanted: list[Site]) -> Tensor:
    """The rows of the given sites, and behind them the empty one, as those of the wanted sites."""
    if given == wanted:
        return rows[:-1]
    place = {site: index for index, site in enumerate(given)}
    order = torch.tensor([place.get(site, len(given)) for site in wanted], dtype=torch.long, device=rows.device)
    return rows[order]
