"""`Recorder`: measures the tensors of all sites of a step, and gives a reading for each site."""

import math
from collections.abc import Callable, Container, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import FIELDS, REQUESTABLE, Histogram, Plan, elements_in, histograms
from hookboard.ranks import Ranks
from hookboard.recording.meter import Meter
from hookboard.recording.packet import Exchange, Packet
from hookboard.recording.readings import Places, Readings
from hookboard.sites import Role, Site, Stage

Sent = Callable[[], tuple[Readings, list[float], list[float]]]
"""What is on its way to the host, in one copy: the readings of every site of which a tensor was measured; of each
flag the largest over the ranks; the numbers that came along, of this rank. It is to be called once, in any thread,
which then waits for the device, and for other ranks that merge what they measured."""

_MIN, _MAX = FIELDS.index("min"), FIELDS.index("max")

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
        """Return the function that measures a tensor of this site. The site is added at the first request.

        If measuring fails, that function gives one warning, and from then on does nothing.
        """
        return self._meter.observer(site)

    def observe_all(self, tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> None:
        """Measure tensors that nothing changes meanwhile, such as weights, or their differences from others.

        If measuring one of them fails, there is one warning, and from then on its site is left out.

        Args:
            tensors: the site, the tensor, and what is subtracted from it first, in float32 at least; None for nothing.
        """
        self._meter.observe_all(tensors)

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """Return the shape of the first tensor in this role, by the name of the module or parameter."""
        return self._meter.slots.shapes(role)

    def forget_shapes(self) -> None:
        """Note the shapes anew, and where the channels are: modules were replaced."""
        self._meter.slots.forget_shapes()

    def switch_off(self, sites: Sequence[Site], error: Exception) -> None:
        """Leave these sites out from now on, because their tensors cannot be had; one warning names the first."""
        self._meter.switch_off(sites, error)

    def is_off(self, name: str, role: Role) -> bool:
        """Return whether measuring this role of this module or parameter has failed, on any rank."""
        return any((site.name, site.role) == (name, role) for site in self._meter.off)

    def flush(self, flags: Tensor | None = None) -> tuple[Readings, list[float]]:
        """Return what `send` gives, on the host."""
        readings, raised, _ = self.send(flags)()
        return readings, raised

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
        mine, measured = self._meter.take(
            _NONE if flags is None else flags, _NONE if along is None else along, lends_bins=self._is_alone
        )
        on_host, lent = mine.to_host(), mine.bins if self._is_alone and self._meter.has_bins else ()

        def arrived() -> tuple[Readings, list[float], list[float]]:
            packet = on_host()
            if self._exchange is not None:
                packet = self._exchange.merged(packet)
            readings = self._readings(packet, measured)
            if lent:
                self._meter.slots.give_back(lent)
            return readings, packet.flags.tolist(), packet.along.tolist()

        return arrived

    def _readings(self, packet: Packet, measured: Container[int]) -> Readings:
        """Make the readings of every site that was measured here, or on another rank."""
        sites, extents, rows = list(packet.layout), list(packet.layout.values()), packet.rows.numpy()
        elements = elements_in(rows)
        for row in np.flatnonzero(np.isnan(elements)):  # the rest is not the whole
            self._meter.off.add(sites[row])
        is_empty, slots = elements == 0, self._meter.slots.by_site
        is_read = (elements > 0) | is_empty
        for row in np.flatnonzero(is_empty):
            slot = slots.get(sites[row])
            is_read[row] = slot is not None and slot.index in measured
        read: list[Site] = []
        channels: list[np.ndarray | None] = []
        bins: list[np.ndarray | None] = []
        dtypes: list[torch.dtype | None] = []
        widths: list[int] = []
        for row in np.flatnonzero(is_read).tolist():
            its_channels, its_bins = packet.channels[row], packet.bins[row]
            read.append(sites[row])
            channels.append(None if its_channels is None or is_empty[row] else np.asarray(its_channels))
            bins.append(None if its_bins is None else np.asarray(its_bins))
            dtypes.append(extents[row].dtype)
            widths.append(extents[row].channels)
        if self._places.sites != read:
            self._places = Places(read)
        rows = rows if len(read) == len(rows) else rows[is_read]
        for column in self._not_measured:  # one slice after the other: a list of columns would be copied
            rows[:, column] = math.nan
            for part in channels:
                if part is not None:
                    part[:, column] = math.nan
        columns = self._plan.table(rows, bins, channels, dtypes)
        drawn = self._histograms(rows, bins) if self._histogram else len(read) * [None]
        return Readings(self._places, rows, channels, dtypes, widths, columns, drawn, self.stage)

    def _histograms(self, rows: np.ndarray, bins: Sequence[np.ndarray | None]) -> list[Histogram | None]:
        drawn: list[Histogram | None] = [None] * len(bins)
        counted = [row for row, each in enumerate(bins) if each is not None]
        if counted:
            low, high = rows[counted][:, [_MIN, _MAX]].T
            found = histograms([each for each in bins if each is not None], low, high)
            for row, histogram in zip(counted, found, strict=True):
                drawn[row] = histogram
        return drawn
