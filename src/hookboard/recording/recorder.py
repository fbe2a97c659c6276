"""`Recorder`: measures the tensors of all sites of a step, and gives a reading for each site."""

import functools
import math
from collections.abc import Callable, Container, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.clock import Clock
from hookboard.measure import FIELDS, REQUESTABLE, Plan, elements_in
from hookboard.ranks import Ranks
from hookboard.recording.channels import packed
from hookboard.recording.exchange import Exchange
from hookboard.recording.meter import Meter, Taken
from hookboard.recording.packet import Layout, Packet, packed_bins
from hookboard.recording.parts import Arrived, Sent, Unpacked, as_taken, results_of, unpacked
from hookboard.recording.readings import Places, Readings
from hookboard.sites import Role, Site, Stage

_NONE = torch.zeros(0, dtype=torch.float64, device="cpu")


class Recorder:
    """Measures the tensors of any number of sites, in any thread, and merges what belongs to one step.

    Args:
        plan: the statistics to measure.
        device: where the tensors are. The rows are kept there too, or on the host if that device has no float64.
        stage: the stage that is noted in readings.
        histogram: whether to count histograms too; or a function that says so for a site when its first tensor comes.
        channels: is asked for each tensor which of its dimensions holds the channels, whose rows are then measured too;
            None for none. Left out: no channels.
        ends: tells from which values on a site is at an end of its range; None for a site without ends, or for all.
        ranks: the processes that merge what they measured; every rank must then take what each flush sends. None if
            nothing is merged.
        clock: counts the time that the functions take which `open` returns.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        stage: Stage = "train",
        histogram: bool | Callable[[Site, Tensor], bool] = False,
        channels: Callable[[Site, Tensor], int | None] | None = None,
        ends: Callable[[Site], tuple[float, float] | None] | None = None,
        ranks: Ranks | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.stage: Stage = stage
        self._plan = plan.with_histogram() if histogram else plan
        self._not_measured = [FIELDS.index(field) for field in REQUESTABLE - self._plan.wanted]
        self._meter = Meter(
            self._plan,
            device,
            histogram=histogram,
            channels=channels,
            ends=ends,
            rank=0 if ranks is None else ranks.rank,
            clock=clock,
        )
        self._histogram = bool(histogram)
        self._is_alone = self._meter.rows.device.type == "cpu" and ranks is None
        self._exchange = None if ranks is None else Exchange(ranks, plan.more)
        self._places = Places([])

    @property
    def scale(self) -> Tensor | None:
        """The scale that gradients carry now, shape (); they are divided by it. None if they carry none."""
        return self._meter.scale

    @scale.setter
    def scale(self, scale: Tensor | None) -> None:
        self._meter.scale = scale

    def open(self, site: Site) -> Callable[[Tensor], None]:
        """The function that measures a tensor of this site. The site is added at the first request.

        If measuring fails, that function gives one warning, and from then on does nothing.
        """
        return self._meter.slots.of(site)

    def observe_all(self, tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> None:
        """Measure tensors that nothing changes meanwhile, such as weights: many in one call, which costs far less.

        If measuring one of them fails, there is one warning, and from then on its site is left out.

        Args:
            tensors: the site, the tensor, and what is subtracted from it first, in float32 at least; None for nothing.
        """
        self._meter.observe_all(tensors)

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """The shape of the first tensor in this role, by the name of the module or parameter."""
        return self._meter.slots.shapes(role)

    def forget_shapes(self) -> None:
        """Note the shapes anew, and where the channels are: modules were replaced."""
        self._meter.slots.forget_shapes()

    def switch_off(self, sites: Sequence[Site], error: Exception) -> None:
        """Leave these sites out from now on, because their tensors cannot be had; one warning names the first."""
        self._meter.switch_off(sites, error)

    def is_off(self, name: str, role: Role) -> bool:
        """Whether measuring this role of this module or parameter has failed, on any rank."""
        return any((site.name, site.role) == (name, role) for site in self._meter.off)

    def flush(self, flags: Tensor | None = None) -> tuple[Readings, list[float]]:
        """What `send` gives, on the host."""
        arrived = self.send(flags)()
        return arrived.readings, arrived.flags

    def send(self, flags: Tensor | None = None, along: Tensor | None = None) -> Sent:
        """Take what was measured since the last flush, forget it, and start its way to the host.

        Args:
            flags: shape (k,), numbers of at least 0 that the caller wants to share with the other ranks.
            along: shape (n,), numbers that the caller wants on the host, with the same copy.

        Returns:
            What waits for the device, and merges over ranks; nothing here has. Another thread may call it while this
            one measures on: what is sent first must be taken first. If the ranks merge, it raises a `RanksLostError`
            when one of them no longer takes part.
        """
        flags, along = _NONE if flags is None else flags, _NONE if along is None else along
        taken = self._meter.take(lends_bins=self._is_alone)
        if not (taken.owners or len(flags) or len(along) or self._exchange):
            return lambda: Arrived(Readings.of([]), [], [])
        # Only now: each site of which there is a row is among them.
        mine = dict(self._meter.slots.extents)
        arrived = self._packet(mine, taken, flags, along).to_host()
        owners, channels, lent = taken.owners, taken.channels, taken.bins if self._is_alone else {}

        def take() -> Arrived:
            layout, packet = mine, arrived()
            if self._exchange is not None:
                layout, packet = self._exchange.merged(mine, packet)
            own = [as_taken(channels, layout), as_taken(lent, layout)] if self._is_alone else []
            table = self._table(unpacked(packet, layout, mine, *own), elements_in(packet.rows.numpy()), owners)
            self._meter.slots.give_back(lent)
            return Arrived(table, packet.flags.tolist(), packet.along.tolist())

        return take

    def _table(self, read: Unpacked, elements: np.ndarray, owners: Container[int]) -> Readings:
        """The readings of every site that was measured here, or on another rank."""
        for row in np.flatnonzero(np.isnan(elements)):  # the rest is not the whole
            self._meter.off.add(read.sites[row])
        is_read = elements > 0
        for row in np.flatnonzero(elements == 0):
            slot, read.channels[row] = self._meter.slots.by_site.get(read.sites[row]), None
            is_read[row] = slot is not None and slot.index in owners
        read = read.where(is_read).blanked(self._not_measured)
        if self._places.sites != read.sites:
            self._places = Places(read.sites)

        compute = functools.partial(results_of, self._plan, self.stage, self._histogram, read)
        table = Readings(self._places, read.rows, read.channels, read.dtypes, read.widths, compute)
        if any(bins is not None for bins in read.bins):
            _ = table.results  # now, so that who keeps the table does not keep the bins
        return table

    def _packet(self, layout: Layout, taken: Taken, flags: Tensor, along: Tensor) -> Packet:
        """What was taken, in this layout: that of all slots in their order."""
        sites, device = list(layout), self._meter.rows.device
        rows = self._meter.rows.merged(taken.rows, len(sites))
        if self._meter.off:
            rows[[index for index, site in enumerate(sites) if site in self._meter.off]] = math.nan
        channels = {} if self._is_alone else {sites[index]: each for index, each in taken.channels.items()}
        bins = {} if self._is_alone else {sites[index]: each for index, each in taken.bins.items()}
        held = {} if self._is_alone else layout
        return Packet(
            rows=rows,
            channels=packed(channels, held, device),
            bins=packed_bins(bins, held, device),
            flags=flags.to(device).to(rows),
            along=along.to(device).to(rows),
        )
