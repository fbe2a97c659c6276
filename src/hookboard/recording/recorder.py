"""`Recorder`: measures the tensors of all sites of a step, and gives a reading for each site."""

import functools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import (
    FIELDS,
    REQUESTABLE,
    ChannelRows,
    Form,
    Plan,
    Row,
    can_subtract,
    elements_in,
    form_of,
    is_like,
    measure,
    measure_all,
    measure_channels,
    measure_like,
    measuring_device,
)
from hookboard.messages import warn_switched_off
from hookboard.ranks import Ranks, own_part
from hookboard.recording.channels import ChannelBuffer
from hookboard.recording.exchange import Exchange, Layout, Packet
from hookboard.recording.parts import Sent, Unpacked, as_taken, difference, on_host, packer, results_of, unpacked
from hookboard.recording.readings import Places, Readings
from hookboard.recording.rows import RowBuffer
from hookboard.recording.slot import Slot, Slots
from hookboard.sites import Role, Site, Stage

MOST_WAITING = 1 << 20
"""After so many values those that wait are measured: some of them are copies, made for this."""

Waiting = tuple[Slot, Tensor, Form, Tensor | None]
"""What is measured together with others: the site's slot, and what `measure_all` takes."""


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
        histogram: bool | Callable[[Site, Tensor], bool] = False,
        channels: Callable[[Site, Tensor], int | None] | None = None,
        ends: Callable[[Site], tuple[float, float] | None] | None = None,
        ranks: Ranks | None = None,
        sync: bool = True,
    ) -> None:
        self.stage: Stage = stage
        self._plan = plan.with_histogram() if histogram else plan
        self._not_measured = [FIELDS.index(field) for field in REQUESTABLE - self._plan.wanted]
        self._rows = RowBuffer(plan.more, measuring_device(device))
        self._is_copied = self._rows.device != device
        self._slots = Slots(self._rows.device, self._plan_of, self._wants_bins, self._observe)
        self._histogram = histogram
        self._has_bins = bool(histogram) or "bins" in plan.wanted
        self._channels = channels
        self._ends = ends
        self._channel_rows = ChannelBuffer(self._rows.device, self._rows.streams)
        self._is_alone = self._rows.device.type == "cpu" and (ranks is None or not sync)
        self._rank = 0 if ranks is None else ranks.rank
        self._is_merged = sync or ranks is None
        self._exchange = Exchange(ranks if sync else None, plan.more)
        self._off: set[Site] = set()
        self._places = Places([])

    def open(self, site: Site) -> Callable[[Tensor], None]:
        """The function that measures a tensor of this site. The site is added at the first request.

        If measuring fails, that function gives one warning, and from then on does nothing.
        """
        return self._slots.of(site).observe

    def observe_all(self, tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> None:
        """Measure tensors that nothing changes meanwhile, such as weights: many in one call, which costs far less.

        If measuring one of them fails, there is one warning, and from then on its site is left out.

        Args:
            tensors: the site, the tensor, and what is subtracted from it first, in float32 at least; None for nothing.
        """
        waiting: list[Waiting] = []
        values = 0
        for site, tensor, minus in on_host(tensors) if self._is_copied else tensors:
            slot = self._slots.of(site)
            try:
                part, is_whole = self._prepared(slot, tensor)
                if part is None:
                    continue
                form = None if slot.counts is not None else self._form(slot, part, is_whole)
                if form is None or (minus is not None and not can_subtract(minus, form)):
                    slot.observe(tensor if minus is None else difference(tensor, minus))
                    continue
            except Exception as error:
                self._switch_off(site, error)
                continue
            waiting.append((slot, part, form, minus))
            values += part.numel()
            if values > MOST_WAITING:
                self._measure_waiting(waiting)
                waiting, values = [], 0
        self._measure_waiting(waiting)

    def _measure_waiting(self, waiting: Sequence[Waiting]) -> None:
        rows = measure_all([each[1:] for each in waiting], self._plan) if waiting else ()
        for (slot, part, _, _), (row, channels) in zip(waiting, rows, strict=True):
            self._keep(slot, part, row, channels)

    def _observe(self, slot: Slot, tensor: Tensor) -> None:
        try:
            part, is_whole = self._prepared(slot, tensor)
            if part is None:
                return
            counts, form = slot.counts, self._form(slot, part, is_whole)
            if form is not None:
                found = measure_like(part, form, slot.plan, counts)
                if found is not None:
                    self._keep(slot, part, *found)
                    return
                counts = None  # the bins are counted
            scale = self.scale if slot.traits.is_gradient else None
            of: dict[str, Any] = {"counts": counts, "moments_only": slot.traits.moments_only, "scale": scale}
            dim = self._dim(slot, part, is_whole)
            if dim is None:
                row, channels = measure(part, slot.plan, **of), None
            else:
                row, channels = measure_channels(part, dim, slot.plan, **of)
            self._keep(slot, part, row, channels)
        except Exception as error:
            self._switch_off(slot.site, error)

    def _switch_off(self, site: Site, error: Exception) -> None:
        self._off.add(site)
        warn_switched_off(f"{site.role} of {site.path!r}", error)

    def _prepared(self, slot: Slot, tensor: Tensor) -> tuple[Tensor | None, bool]:
        """What is to be measured of a tensor, None if nothing is; and whether that is the whole of it."""
        if self._off and slot.site in self._off:
            return None, False
        tensor = tensor.detach() if tensor.requires_grad else tensor
        tensor = tensor.cpu() if self._is_copied else tensor
        part: Tensor | None = tensor
        if self._rank or type(tensor) is not Tensor:  # else it is its own part, which costs a call to find out
            of_parameter = slot.traits.of_parameter
            part = own_part(tensor, is_replicated=of_parameter, rank=self._rank, is_merged=self._is_merged)
        if part is None:
            return None, False
        if part.is_cuda:
            self._rows.streams.note(part)
        if slot.index not in self._slots.met:
            self._slots.meet(slot, part)
            if slot.shape is None:
                slot.shape = tuple(tensor.shape)
        return part, part is tensor

    def _form(self, slot: Slot, part: Tensor, is_whole: bool) -> Form | None:
        """How the compiled kernel reads it, if that is all there is to do."""
        if slot.plan.more or (self.scale is not None and slot.traits.is_gradient):
            return None
        form = slot.form
        if form is None or not is_like(part, form):
            form = slot.form = form_of(part, self._dim(slot, part, is_whole)) if part.numel() else None
        return form

    def _dim(self, slot: Slot, part: Tensor, is_whole: bool) -> int | None:
        """The dimension of the channels; None if their rows are not wanted."""
        # The part of a DTensor may hold some of the channels only, which the ranks could not tell apart.
        return None if self._channels is None or not is_whole else self._channels(slot.site, part)

    def _keep(self, slot: Slot, tensor: Tensor, row: Row, channels: ChannelRows | None) -> None:
        if self._channels is not None and tensor.numel():
            self._channel_rows.append(slot.index, channels)
            if channels is not None and slot.extent.channels != len(channels):
                self._slots.resize(slot, slot.extent._replace(channels=len(channels)))
        self._rows.append(slot.index, row)

    def _plan_of(self, site: Site) -> Plan:
        return self._plan if self._ends is None else self._plan.between(self._ends(site))

    def _wants_bins(self, site: Site, tensor: Tensor) -> bool:
        if "bins" in self._plan.wanted or isinstance(self._histogram, bool):
            return self._has_bins
        return self._histogram(site, tensor)

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """The shape of the first tensor in this role, by the name of the module or parameter."""
        return self._slots.shapes(role)

    def forget_shapes(self) -> None:
        """Note the shapes anew, and where the channels are: modules were replaced."""
        self._slots.forget_shapes()

    def give_up(self) -> bool:
        """Stop measuring on this rank; returns whether it must still take part in the next flush."""
        return self._exchange.give_up()

    def is_off(self, name: str, role: Role) -> bool:
        """Whether measuring this role of this module or parameter has failed, on any rank."""
        return any((site.name, site.role) == (name, role) for site in self._off)

    def flush(self, flags: Tensor | None = None) -> tuple[Readings, list[float]]:
        """What `send` gives, on the host."""
        sent = self.send(flags)
        return sent.readings(), sent.flags()

    def send(self, flags: Tensor | None = None) -> Sent:
        """Merge what was measured since the last flush, forget it, and start its way to the host.

        Args:
            flags: shape (k,), numbers of at least 0 that the caller wants to share with the other ranks.

        Returns:
            What waits for the device; if the ranks merge, the host has waited here already. Another thread may call it
            while this one measures on, in the order in which it was sent.

        Raises:
            RuntimeError: a rank has given up: the ranks can no longer merge.
        """
        flags = torch.zeros(0, device="cpu") if flags is None else flags
        owners, mine, known = self._rows.owners, dict(self._slots.extents), list(self._slots.extents)
        if not (owners or len(flags) or self._exchange.is_collective):
            return Sent(lambda: Readings.of([]), list)
        met = self._slots.take_met()
        taken = self._channel_rows.take()
        lent = self._slots.lend_bins(met) if self._is_alone else {}
        layout, packet = self._exchange.bring(mine, self._packer(known, flags, met, taken))

        def readings() -> Readings:
            host = packet()
            own = [as_taken(taken, layout), as_taken(lent, layout)] if self._is_alone else []
            table = self._table(unpacked(host, layout, mine, *own), elements_in(host.rows).numpy(), owners)
            self._slots.give_back(lent)
            return table

        return Sent(readings, lambda: packet().flags.tolist())

    def _table(self, read: Unpacked, elements: np.ndarray, owners: Container[int]) -> Readings:
        """The readings of every site that was measured here, or on another rank."""
        self._off.update(read.sites[row] for row in np.flatnonzero(np.isnan(elements)))  # the rest is not the whole
        is_read = elements > 0
        for row in np.flatnonzero(elements == 0):
            slot, read.channels[row] = self._slots.by_site.get(read.sites[row]), None
            is_read[row] = slot is not None and slot.index in owners
        read = read.where(is_read).blanked(self._not_measured)
        if self._places.sites != read.sites:
            self._places = Places(read.sites)

        compute = functools.partial(results_of, self._plan, self.stage, bool(self._histogram), read)
        table = Readings(self._places, read.rows, read.channels, read.dtypes, compute)
        if any(bins is not None for bins in read.bins):
            _ = table.results  # now, so that who keeps the table does not keep the bins
        return table

    def _packer(
        self, local: list[Site], flags: Tensor, measured: Container[int], taken: Mapping[int, ChannelRows | None]
    ) -> Callable[[Layout, float], Packet]:
        """Makes the packet of what was measured at these sites, for any layout."""
        merged = self._rows.take(len(local) + 1)  # the last is the empty row
        if self._off:
            merged[[index for index, site in enumerate(local) if site in self._off]] = math.nan
        if self._is_alone:
            return packer(local, merged, None, None, flags)
        channels = {local[index]: rows for index, rows in taken.items()}
        # What another rank has counted of a site is not the whole; nobody asks where there are no ranks.
        partly = measured if self._exchange.is_collective else ()
        with self._rows.streams.joined():
            bins = self._slots.take_bins(local, partly, merged.device) if self._has_bins else {}

        return packer(local, merged, channels, bins, flags)
