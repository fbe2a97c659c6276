"""`Meter`: measures the tensors of a recorder's sites as they come, and keeps what it finds."""

import functools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from hookboard.layouts import shape_of
from hookboard.measure import (
    ChannelRows,
    Form,
    Plan,
    Row,
    blocks_of,
    can_subtract,
    form_of,
    is_like,
    looked_at,
    measure,
    measure_channels,
    measuring_device,
    read,
    single_at_least,
)
from hookboard.messages import warn_switched_off
from hookboard.ranks import own_part
from hookboard.recording.packet import Packet
from hookboard.recording.rows import MOST_CALLS, ChannelBuffer, RowBuffer
from hookboard.recording.slot import Slot, Slots
from hookboard.sites import Site

_NO_LOCK = nullcontext()


class Meter:
    """Measures the tensors of any number of sites, in any thread. The arguments are those of `Recorder`.

    Instead of the ranks it takes the number of this process among them, 0 if it is alone.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        histogram: bool | Callable[[Site, Tensor], bool],
        channels: Callable[[Site, Tensor], int | None] | None,
        ends: Callable[[Site], tuple[float, float] | None] | None,
        rank: int,
    ) -> None:
        self.rows = RowBuffer(plan.more, measuring_device(device))
        self.channel_rows = ChannelBuffer(self.rows.device, self.rows.streams)
        self.slots = Slots(self.rows.device, self._plan_of, self._wants_bins)
        self.off: set[Site] = set()
        """The sites of which measuring has failed, on any rank."""
        self.has_bins = bool(histogram) or "bins" in plan.wanted
        """Whether bins are counted, of some sites at least."""
        self._lock = threading.RLock()
        """Held while bins are added, until their row is kept, and while both are taken."""
        self._plan = plan
        self._is_copied = self.rows.device != device
        self._histogram = histogram
        self._channels = channels
        self.rows.on_channels = None if channels is None else self._take_channels
        self._ends = ends
        self._rank = rank
        self.scale: Tensor | None = None
        """The scale that gradients carry now, shape (); they are divided by it. None if they carry none."""

    def observer(self, site: Site) -> Callable[[Tensor], None]:
        """See `Recorder.open`."""
        return functools.partial(self._observe, self.slots.of(site))

    def observe_all(self, tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> None:
        """See `Recorder.observe_all`."""
        by_site = self.slots.by_site
        for site, tensor, minus in tensors:
            if self._is_copied:
                tensor, minus = tensor.detach().cpu(), None if minus is None else minus.cpu()
            self._observe(by_site.get(site) or self.slots.of(site), tensor, minus)

    def take(self, flags: Tensor, along: Tensor, *, lends_bins: bool) -> tuple[Packet, set[int]]:
        """Take what was measured since the last call; what another thread measures meanwhile is wholly in one packet.

        Args:
            flags: see `Packet`.
            along: see `Packet`.
            lends_bins: whether the bins are lent until `Slots.give_back`, which spares a copy.

        Returns:
            The packet, on the device; and the numbers of the slots that have measured something.
        """
        with self._lock:  # nobody has added to bins and not yet appended the row
            rows, channels = self.rows.take(self.channel_rows.take)
            measured = {each[0] for each in rows}
            if not self.has_bins:
                bins = {}
            elif lends_bins:
                bins = self.slots.lend_bins(measured)
            else:
                with self.rows.streams.joined():
                    bins = self.slots.take_bins(measured)
        # Only now: each site of which there is a row is among them.
        layout = dict(self.slots.extents)
        merged = self.rows.merged(rows, len(layout))
        if self.off:
            merged[[number for number, site in enumerate(layout) if site in self.off]] = math.nan
        packet = Packet(
            layout,
            merged,
            [*map(channels.get, range(len(layout)))],
            [*map(bins.get, range(len(layout)))],
            flags.to(merged.device).to(merged),
            along.to(merged.device).to(merged),
        )
        return packet, measured

    def _take_channels(self, rows: Sequence[tuple[int, ChannelRows | None]]) -> None:
        self.channel_rows.extend(rows)
        for index, _ in rows:
            self.slots.in_order[index].calls = 0

    def _observe(self, slot: Slot, tensor: Tensor, minus: Tensor | None = None) -> None:
        """Measure a tensor, or its difference from another."""
        if self.off and slot.site in self.off:
            return
        try:
            form, part, is_whole = slot.form, tensor, True
            # Nearly every tensor is like the one before it at its site, which spares all further questions.
            if form is None or form.dtype is not slot.extent.dtype or self.scale is not None or not is_like(part, form):
                prepared = self._prepared(slot, tensor)
                if prepared is None:
                    return
                part, is_whole = prepared
                form = self._form(slot, part, is_whole)
            if minus is not None and (form is None or not can_subtract(minus, form)):
                self._observe_difference(slot, tensor, minus)
                return
            # What adds to bins and appends the row is one piece to who takes both.
            with _NO_LOCK if slot.counts is None else self._lock:
                counts, found, rows = slot.counts, None, None
                if form is not None:
                    has_abs_mean = "abs_mean" in slot.plan.wanted
                    found, rows = read(part, form, with_abs_mean=has_abs_mean, counts=counts, minus=minus)
                if found is None:
                    part = part if minus is None else part - minus
                    self._measure(slot, part, is_whole, counts if form is None else None)  # else they are counted
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
        """Measure what the compiled kernel cannot; its values are added to `counts`, unless that is None."""
        scale = self.scale if slot.traits.is_gradient else None
        of: dict[str, Any] = {"counts": counts, "moments_only": slot.traits.moments_only, "scale": scale}
        dim = self._dim(slot, part, is_whole)
        if dim is None:
            self._keep(slot, part, measure(part, slot.plan, **of), None)
        else:
            row, channels = measure_channels(part, dim, slot.plan, **of)
            self._keep(slot, part, row, channels, None if channels is None else part.shape[dim])

    def switch_off(self, sites: Sequence[Site], error: Exception) -> None:
        """See `Recorder.switch_off`."""
        for site in sites:
            self.off.add(site)
        warn_switched_off(f"{sites[0].role} of {sites[0].path!r}", error)

    def _prepared(self, slot: Slot, tensor: Tensor) -> tuple[Tensor, bool] | None:
        """Return what is to be measured of a tensor, and whether that is the whole of it; None if nothing is."""
        tensor = tensor.detach() if tensor.requires_grad else tensor
        tensor = tensor.cpu() if self._is_copied else tensor
        part: Tensor | None = tensor
        if self._rank or type(tensor) is not Tensor:  # else it is its own part, which costs a call to find out
            of_parameter = slot.traits.of_parameter
            part = own_part(tensor, is_replicated=of_parameter, rank=self._rank)
        if part is None:
            return None
        if part.is_cuda:
            self.rows.streams.note(part)
        noted = slot.extent.dtype
        # To look for its rows takes as long as there are any: a site without a type is new, and has none.
        if noted is not part.dtype and (noted is None or slot.index not in self.rows.owners):
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
        """Return the dimension of the channels; None if their rows are not wanted."""
        # The part of a DTensor may hold some of the channels only, which the ranks could not tell apart.
        return None if self._channels is None or not is_whole else self._channels(slot.site, part)

    def _keep(
        self, slot: Slot, tensor: Tensor, row: Row, channels: ChannelRows | None, width: int | None = None
    ) -> None:
        """Keep a tensor's row and those of its channels; `width` counts the channels, left out if all have a row."""
        if self._channels is None or not tensor.numel():
            self.rows.append(slot.index, row)
            return
        if slot.calls >= MOST_CALLS:
            self.rows.hand_on()
        if channels is not None:
            slot.calls += 1
            width, before = len(channels) if width is None else width, slot.extent.channels
            if width != before:
                self.slots.resize(slot, slot.extent._replace(channels=width))
                # Nobody could tell later that these are rows of other channels than as many rows before them.
                channels = None if len(channels) == looked_at(before) else channels
        self.rows.append(slot.index, row, channels)

    def _plan_of(self, site: Site) -> Plan:
        return self._plan if self._ends is None else self._plan.between(self._ends(site))

    def _wants_bins(self, site: Site, tensor: Tensor) -> bool:
        if "bins" in self._plan.wanted or isinstance(self._histogram, bool):
            return self.has_bins
        return self._histogram(site, tensor)
