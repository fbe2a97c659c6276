"""`Recorder`: measures the tensors of all sites, and returns a reading for each site at the end of a step."""

import functools
import math
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookboard.layouts import shape_of
from hookboard.measure import (
    BINS,
    FIELDS,
    REQUESTABLE,
    WIDTH,
    ChannelRows,
    Form,
    Histogram,
    Plan,
    Row,
    blocks_of,
    can_subtract,
    channel_row_count,
    elements_in,
    form_of,
    histograms,
    is_like,
    measure,
    measure_channels,
    measuring_device,
    read,
    single_at_least,
)
from hookboard.messages import warn_switched_off
from hookboard.ranks import Ranks, own_part
from hookboard.recording.packet import Exchange, Extent, Layout, Packet
from hookboard.recording.readings import Places, Readings
from hookboard.recording.rows import ChannelBuffer, RowBuffer
from hookboard.sites import ROLES, Role, Site, Stage

_NO_LOCK = nullcontext()

_MIN, _MAX = FIELDS.index("min"), FIELDS.index("max")

_NONE = torch.zeros(0, dtype=torch.float64, device="cpu")


class Slot:
    """What a recorder knows of one site.

    Args:
        index: counts the sites from 0, in the order in which they came.
        site: the site.
        plan: the statistics to measure.
    """

    __slots__ = ("counts", "extent", "form", "index", "plan", "shape", "site", "spare", "traits")

    def __init__(self, index: int, site: Site, plan: Plan) -> None:
        self.index = index
        self.site = site
        self.plan = plan
        self.traits = ROLES[site.role]
        self.extent = Extent()
        """The number of channels, whether it has bins, and the dtype."""
        self.counts: Tensor | None = None
        """The bins of the running step; None without a histogram."""
        self.spare: Tensor | None = None
        """Empty bins for the next step, see `Slots.lend_bins`; None if there are none."""
        self.form: Form | None = None
        """How the compiled kernel read the last tensor; None if the kernel did not read it."""
        self.shape: tuple[int, ...] | None = None
        """The shape of the first tensor; None before, and for nested tensors."""


class Slots:
    """The slots of a recorder. Several threads may add slots and call `meet`.

    Args:
        device: where bins are counted.
        plan_of: returns the statistics to measure at a site.
        wants_bins: returns whether a site has a histogram, given its first tensor.
    """

    def __init__(
        self,
        device: torch.device,
        plan_of: Callable[[Site], Plan],
        wants_bins: Callable[[Site, Tensor], bool],
    ) -> None:
        self.by_site: dict[Site, Slot] = {}
        self.in_order: list[Slot] = []
        """The slots by index."""
        self.extents: Layout = {}
        """The extent of each slot, by site."""
        self._device = device
        self._plan_of = plan_of
        self._wants_bins = wants_bins
        self._changing = threading.Lock()

    def of(self, site: Site) -> Slot:
        """Return the slot of a site; adds it if it is not there yet."""
        return self.by_site.get(site) or self._add(site)

    def _add(self, site: Site) -> Slot:
        with self._changing:
            if site not in self.by_site:
                slot = Slot(len(self.by_site), site, self._plan_of(site))
                self.in_order.append(slot)
                self.by_site[site] = slot
                self.extents[site] = slot.extent
            return self.by_site[site]

    def meet(self, slot: Slot, tensor: Tensor) -> None:
        """Note the dtype of a site's first tensor of a step; at its very first, decide if the site has a histogram."""
        with self._changing:
            if slot.extent.dtype is None:
                has_bins = not slot.traits.moments_only and self._wants_bins(slot.site, tensor)
                slot.counts = no_counts(self._device) if has_bins else None
                self.resize(slot, slot.extent._replace(has_bins=has_bins))
            self.resize(slot, slot.extent._replace(dtype=tensor.dtype))

    def resize(self, slot: Slot, extent: Extent) -> None:
        """Replace the extent of a slot."""
        slot.extent = self.extents[slot.site] = extent

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """Return the shape of the first tensor of each module or parameter in a role, by name.

        Of several sites it is that of the first one with a shape.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for slot in list(self.by_site.values()):
            if slot.site.role == role and slot.shape is not None:
                shapes.setdefault(slot.site.name, slot.shape)
        return shapes

    def forget_shapes(self) -> None:
        """Set `shape` and `form` of all slots to None: modules were replaced, and the next tensors set them again."""
        for slot in list(self.by_site.values()):
            slot.shape = slot.form = None

    def lend_bins(self, measured: Iterable[int]) -> dict[int, Tensor]:
        """Return the filled bins of some slots by index, int64, without a copy; the slots go on with empty bins.

        Slots without a histogram are left out.

        Args:
            measured: the indices of the slots.
        """
        lent: dict[int, Tensor] = {}
        for number in measured:
            slot = self.in_order[number]
            if slot.counts is not None:
                lent[slot.index] = slot.counts
                slot.counts, slot.spare = no_counts(self._device) if slot.spare is None else slot.spare, None
        return lent

    def give_back(self, lent: Iterable[Tensor | np.ndarray | None]) -> None:
        """Empty the bins of `lend_bins`, and keep them for the next step: fresh memory is slower.

        Args:
            lent: in the order of the slots, the bins of each; None if it lent none.
        """
        for slot, counts in zip(self.in_order, lent, strict=False):  # others may have come since
            if isinstance(counts, Tensor):
                slot.spare = counts.zero_()

    def take_bins(self, measured: Iterable[int]) -> dict[int, Tensor]:
        """Return copies of the bins of some slots by index, and empty the bins; slots without a histogram are left out.

        Args:
            measured: the indices of the slots.
        """
        taken: dict[int, Tensor] = {}
        for number in measured:
            slot = self.in_order[number]
            if slot.counts is not None:
                taken[slot.index] = slot.counts.clone()
                slot.counts.zero_()
        return taken


def no_counts(device: torch.device) -> Tensor:
    """Return empty bins, shape (BINS,), int64."""
    with torch.inference_mode(False):
        return torch.zeros(BINS, dtype=torch.long, device=device)


class Recorder:
    """Measures the tensors of any number of sites, in any thread, and merges what belongs to one step.

    Args:
        plan: the statistics to measure.
        device: where the tensors are. The rows are kept there too, or on the host if that device has no float64.
        stage: the stage that is noted in readings.
        histogram: whether to count histograms too; or a function that returns this for a site and its first tensor.
        channels: returns the dimension of a tensor that holds the channels, which are then measured one by one too;
            None for a tensor without channels. Left out: no channels are measured.
        ends: returns the lower and the upper value at which values of a site count as saturated, see
            `layers.saturation_limits`; None for a site that cannot saturate. Left out: saturation is not counted.
        finish: computes what needs the readings of several sites, such as ratios; returns the readings that `send`
            gives. Left out: they are given as they are.
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
        finish: Callable[[Readings], Readings] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.stage: Stage = stage
        self.rows = RowBuffer(plan.more, measuring_device(device))
        self.channel_rows = ChannelBuffer(self.rows.device, self.rows.streams)
        self.slots = Slots(self.rows.device, self._plan_of, self._wants_bins)
        self.scale: Tensor | None = None
        """The scale that gradients carry now, shape (); they are divided by it. None if they carry none."""
        self._off: set[Site] = set()
        """The sites of which measuring has failed, on any rank."""
        self._plan = plan.with_histogram() if histogram else plan
        self._not_measured = [FIELDS.index(field) for field in REQUESTABLE - self._plan.wanted]
        self._has_bins = bool(histogram) or "bins" in plan.wanted
        """True if at least one site may count bins."""
        self._lock = threading.RLock()
        """Held while the row of a tensor is kept with its bins or channels, and while all are taken: no flush has one
        without the other."""
        self._is_copied = self.rows.device != device
        self._histogram = histogram
        self._channels = channels
        self._ends = ends
        self._finish = finish
        self._rank = 0 if ranks is None else ranks.rank
        self._is_alone = self.rows.device.type == "cpu" and ranks is None
        self._exchange = None if ranks is None else Exchange(ranks, plan.more)
        self._places = Places([])

    def open(self, site: Site) -> Callable[[Tensor], None]:
        """Return a function that measures a tensor of this site.

        If measuring fails, that function warns once, and does nothing from then on.
        """
        return functools.partial(self._observe, self.slots.of(site))

    def observe_all(self, tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> None:
        """Measure many tensors, or differences of tensors.

        If measuring one of them fails, its site is left out from then on, with one warning.

        Args:
            tensors: the site, the tensor, and the tensor to subtract from it first, in float32 at least; None for none.
        """
        by_site = self.slots.by_site
        for site, tensor, minus in tensors:
            if self._is_copied:
                tensor, minus = tensor.detach().cpu(), None if minus is None else minus.cpu()
            self._observe(by_site.get(site) or self.slots.of(site), tensor, minus)

    def switch_off(self, sites: Sequence[Site], error: Exception) -> None:
        """Leave these sites out from now on; one warning names the first of them and the error."""
        self._off.update(sites)
        warn_switched_off(f"{sites[0].role} of {sites[0].path!r}", error)

    def is_off(self, name: str, role: Role) -> bool:
        """Return True if measuring this role of this module or parameter has failed, on any rank."""
        return any((site.name, site.role) == (name, role) for site in self._off)

    def flush(self) -> Readings:
        """Return what was measured since the last flush, and forget it. Waits for the device."""
        return self.send()()

    def send(self, flags: Tensor | None = None, along: Tensor | None = None) -> Callable[[], Readings]:
        """Take what was measured since the last flush, forget it, and start its one copy to the host.

        Args:
            flags: shape (k,), numbers of at least 0: `Readings.flags` then has the largest of each over all ranks.
            along: shape (n,), numbers that go to the host with the same copy, to `Readings.along`.

        Returns:
            A function that waits for the device and for the other ranks, and returns the readings. It must be called
            once; another thread may do so while this one measures on. What was sent first must be fetched first. It
            raises a `RanksLostError` if a rank that merges no longer takes part.
        """
        mine, measured = self._take(_NONE if flags is None else flags, _NONE if along is None else along)
        on_host, lent = mine.to_host(), mine.bins if self._is_alone and self._has_bins else ()

        def arrived() -> Readings:
            packet = on_host()
            if self._exchange is not None:
                packet = self._exchange.merged(packet)
            readings = self._readings(packet, measured)
            if lent:
                self.slots.give_back(lent)
            return readings if self._finish is None else self._finish(readings)

        return arrived

    def _take(self, flags: Tensor, along: Tensor) -> tuple[Packet, set[int]]:
        """Take what was measured since the last call, and forget it.

        A tensor that another thread measures meanwhile is wholly in this packet or wholly in the next.

        Returns:
            The packet, on the device; and the indices of the slots that have measured a tensor.
        """
        with self._lock:
            rows, calls = self.rows.take(), self.channel_rows.take()
            measured = set(dict(rows))
            if not self._has_bins:
                bins = {}
            elif self._is_alone:  # a copy is spared
                bins = self.slots.lend_bins(measured)
            else:
                with self.rows.streams.joined():
                    bins = self.slots.take_bins(measured)
        layout = dict(self.slots.extents)  # after the rows were taken: each of their sites is among them
        merged, channels = self.rows.merged(rows, len(layout)), self.channel_rows.merged(calls)
        if self._off:
            merged[[number for number, site in enumerate(layout) if site in self._off]] = math.nan
        packet = Packet(
            layout,
            merged,
            [*map(channels.get, range(len(layout)))],
            [*map(bins.get, range(len(layout)))],
            flags.to(merged.device).to(merged),
            along.to(merged.device).to(merged),
        )
        return packet, measured

    def _observe(self, slot: Slot, tensor: Tensor, minus: Tensor | None = None) -> None:
        """Measure a tensor, or its difference from another."""
        if self._off and slot.site in self._off:
            return
        try:
            form, part, is_whole = slot.form, tensor, True
            # Nearly every tensor has the form of the one before it at its site: then nothing else is to be checked.
            if form is None or form.dtype is not slot.extent.dtype or self.scale is not None or not is_like(part, form):
                prepared = self._prepared(slot, tensor)
                if prepared is None:
                    return
                part, is_whole = prepared
                form = self._form(slot, part, is_whole)
            if minus is not None and (form is None or not can_subtract(minus, form)):
                self._observe_difference(slot, tensor, minus)
                return
            with _NO_LOCK if slot.counts is None else self._lock:
                counts, found, rows = slot.counts, None, None
                if form is not None:
                    has_abs_mean = "abs_mean" in slot.plan.wanted
                    found, rows = read(part, form, with_abs_mean=has_abs_mean, counts=counts, minus=minus)
                if found is None:
                    part = part if minus is None else part - minus
                    self._measure(slot, part, is_whole, counts if form is None else None)  # `read` has counted the bins
                elif self._channels is None:
                    self.rows.append(slot.index, found)
                else:
                    self._keep(slot, part, found, rows)
        except Exception as error:
            self.switch_off([slot.site], error)

    def _observe_difference(self, slot: Slot, tensor: Tensor, minus: Tensor) -> None:
        # A block holds only some of the channels.
        blocks = blocks_of(tensor, minus) if self._channels is None else [(tensor, minus)]
        for part, less in blocks:
            wide = single_at_least(part.dtype)  # neighbouring weights differ by less than half precision resolves
            self._observe(slot, part.to(wide) - less.to(wide))

    def _measure(self, slot: Slot, part: Tensor, is_whole: bool, counts: Tensor | None) -> None:
        """Measure a tensor without the compiled kernel; its values are added to the bins `counts`, unless None."""
        scale = self.scale if slot.traits.is_gradient else None
        of: dict[str, Any] = {"counts": counts, "moments_only": slot.traits.moments_only, "scale": scale}
        dim = self._dim(slot, part, is_whole)
        if dim is None:
            self._keep(slot, part, measure(part, slot.plan, **of), None)
        else:
            row, channels = measure_channels(part, dim, slot.plan, **of)
            self._keep(slot, part, row, channels, None if channels is None else part.shape[dim])

    def _prepared(self, slot: Slot, tensor: Tensor) -> tuple[Tensor, bool] | None:
        """Return the part of a tensor that this rank measures, and whether that is the whole; None if no part is."""
        tensor = tensor.detach() if tensor.requires_grad else tensor
        tensor = tensor.cpu() if self._is_copied else tensor
        part: Tensor | None = tensor
        if self._rank or type(tensor) is not Tensor:  # otherwise it is its own part
            of_parameter = slot.traits.of_parameter
            part = own_part(tensor, is_replicated=of_parameter, rank=self._rank)
        if part is None:
            return None
        if part.is_cuda:
            self.rows.streams.note(part)
        noted = slot.extent.dtype
        # Only a site that had a dtype before can have rows; to search them takes long.
        if noted is not part.dtype and (noted is None or slot.index not in self.rows.indices):
            self.slots.meet(slot, part)
        if slot.shape is None:
            slot.shape = shape_of(tensor)
        return part, part is tensor

    def _form(self, slot: Slot, part: Tensor, is_whole: bool) -> Form | None:
        """Return how the compiled kernel reads the part; None if the kernel cannot do all that is wanted."""
        if slot.plan.more or not part.numel() or (self.scale is not None and slot.traits.is_gradient):
            return None
        slot.form = form_of(part, self._dim(slot, part, is_whole))
        return slot.form

    def _dim(self, slot: Slot, part: Tensor, is_whole: bool) -> int | None:
        """Return the dimension of the channels; None if no channels are measured."""
        # The part of a DTensor may hold only some of the channels, and other ranks would not know which.
        return None if self._channels is None or not is_whole else self._channels(slot.site, part)

    def _keep(
        self, slot: Slot, tensor: Tensor, row: Row, channels: ChannelRows | None, width: int | None = None
    ) -> None:
        """Keep a tensor's row and those of its channels.

        Args:
            slot: the tensor's site.
            tensor: the tensor.
            row: its row, or rows of its parts.
            channels: the rows of its channels; None if it has none.
            width: the number of channels; None if each has a row.
        """
        if self._channels is None or not tensor.numel():
            self.rows.append(slot.index, row)
            return
        if channels is not None:
            width, before = len(channels) if width is None else width, slot.extent.channels
            if width != before:
                self.slots.resize(slot, slot.extent._replace(channels=width))
                # With as many rows as before, but of other channels, they would be merged with those.
                channels = None if len(channels) == channel_row_count(before) else channels
        with self._lock:
            self.rows.append(slot.index, row)
            self.channel_rows.append(slot.index, channels)

    def _plan_of(self, site: Site) -> Plan:
        return self._plan if self._ends is None else self._plan.with_limits(self._ends(site))

    def _wants_bins(self, site: Site, tensor: Tensor) -> bool:
        if "bins" in self._plan.wanted or isinstance(self._histogram, bool):
            return self._has_bins
        return self._histogram(site, tensor)

    def _readings(self, packet: Packet, measured: Container[int]) -> Readings:
        """Return the readings of every site that was measured here or on another rank.

        Args:
            packet: on the host, merged over the ranks.
            measured: the indices of the slots that have measured a tensor on this rank.
        """
        sites, extents, rows = list(packet.layout), list(packet.layout.values()), packet.rows.numpy()
        elements = elements_in(rows)
        for row in np.flatnonzero(np.isnan(elements)):  # measuring has failed on a rank
            self._off.add(sites[row])
        is_empty, slots = elements == 0, self.slots.by_site
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
        return Readings(
            self._places,
            rows[:, :WIDTH],
            channels,
            dtypes,
            widths,
            self._plan.table(rows, bins, channels, dtypes),
            self._histograms(rows, bins) if self._histogram else len(read) * [None],
            self.stage,
            np.zeros(len(read), bool),
            packet.flags.tolist(),
            packet.along.tolist(),
        )

    def _histograms(self, rows: np.ndarray, bins: Sequence[np.ndarray | None]) -> list[Histogram | None]:
        drawn: list[Histogram | None] = [None] * len(bins)
        counted = [row for row, each in enumerate(bins) if each is not None]
        if counted:
            low, high = rows[counted][:, [_MIN, _MAX]].T
            found = histograms([each for each in bins if each is not None], low, high)
            for row, histogram in zip(counted, found, strict=True):
                drawn[row] = histogram
        return drawn
