"""`Slab`: the rows of all sites on one device, which kernels merge tensors into."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import native
from hookboard.measure.by_torch import count_into, empty_rows, rows_of
from hookboard.measure.card import has_kernels
from hookboard.measure.histogram import BINS, shifted
from hookboard.measure.row import FIELDS, WIDTH, channel_row_count, elements_in, merge
from hookboard.model.sites import ROLES, Site

_ABS_MEAN = FIELDS.index("abs_mean")

_SCALED = [FIELDS.index(name) for name in ("mean", "deviation", "abs_mean", "min", "max")]
"""The columns that a loss scale multiplies."""


class Slot:
    """What a table knows of one site, over all steps.

    Args:
        index: counts the sites, in the order in which they were opened: gradients too in that of execution.
        site: the site.
    """

    __slots__ = ("dtype", "has_bins", "index", "is_off", "is_shared", "readers", "shape", "site", "traits")

    def __init__(self, index: int, site: Site) -> None:
        self.index, self.site, self.traits = index, site, ROLES[site.role]
        self.is_off = False
        """Whether it could not be measured, on any rank."""
        self.is_shared = not self.traits.of_parameter
        """Whether its rows are merged over the ranks; each has the whole of a parameter that is not split."""
        self.has_bins: bool | None = None
        """Whether its bins are counted; None before its first tensor."""
        self.dtype: torch.dtype | None = None
        """That of the first tensor in the step."""
        self.shape: tuple[int, ...] | None = None
        """That of the first tensor; None before, and for nested tensors."""
        self.readers: dict[object, Any] = {}
        """How its tensors are read, see `Table`."""


@dataclass(slots=True, eq=False)
class Place:
    """Where the rows of a site are in a slab, and what is known of its tensors in this step.

    Args:
        slot: the site.
        start: the first of its rows: its own, which those of its channels follow.
        room: the number of these rows.
        width: the number of channels in this step, with or without a row.
        bins: the row of its bins; -1 without bins.
        has_rows: whether a tensor was measured in this step; otherwise the rows are those of an earlier one.
        is_empty: whether there was a tensor without elements, and no other before.
        is_mixed: whether its tensors had different numbers of channels, so that the rows of channels mean nothing.
        own: the numbers of the user's statistics, see `statistics.joined`; None without any.
    """

    slot: Slot
    start: int
    room: int
    width: int
    bins: int = -1
    has_rows: bool = False
    is_empty: bool = False
    is_mixed: bool = False
    own: Tensor | None = None


@dataclass
class Columns:
    """What was measured of some sites, on the host; all in their order. `Readings` says what the fields are.

    Args:
        own: the numbers of the user's statistics, shape (sites, statistics), see `statistics.joined`.
    """

    slots: list[Slot] = field(default_factory=list)
    rows: np.ndarray = field(default_factory=lambda: np.empty((0, WIDTH)))
    own: list[np.ndarray | None] = field(default_factory=list)
    channels: list[np.ndarray | None] = field(default_factory=list)
    bins: list[np.ndarray | None] = field(default_factory=list)
    dtypes: list[torch.dtype | None] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def elements_of(self, number: int) -> float:
        """Return how many values were measured of a site, finite or not."""
        elements: float = elements_in(self.rows[number])
        return elements

    def with_more(self, others: "Columns", numbers: Sequence[int]) -> "Columns":
        """Return these, and then some of others, by their numbers."""
        lists = ("slots", "own", "channels", "bins", "dtypes", "widths")
        return Columns(
            rows=np.concatenate([self.rows, others.rows[[*numbers]]]),
            **{name: [*getattr(self, name), *(getattr(others, name)[n] for n in numbers)] for name in lists},
        )


class Slab:
    """The rows of all sites on one device, one after the other, and their bins.

    Attributes:
        kernel: the module whose kernels read tensors of this device; None if there is none.
        rows: shape (n, WIDTH), float64.
        bins: shape (n, BINS), int64.
        places: where each site is; they stay the same over all steps.
        scale: the loss scale that the tensors of this step carry, shape (): the host divides by it. None for none.
    """

    def __init__(self, device: torch.device, *, with_abs_mean: bool) -> None:
        self.device, self.with_abs_mean = device, with_abs_mean
        self.kernel = _kernel_of(device)
        with torch.inference_mode(False):  # what is made in it could not be changed outside of it
            self.rows = torch.empty(512, WIDTH, dtype=torch.float64, device=device)
            self.bins = torch.zeros(0, BINS, dtype=torch.int64, device=device)
        self.places: dict[Slot, Place] = {}
        self.scale: Tensor | None = None
        self._used = self._used_bins = 0
        self._found: list[tuple[Place, int]] = []
        self._starts = np.empty(0, np.intp)
        self._channels: list[tuple[int, int, int]] = []
        self._stream: Any = None

    def place(self, slot: Slot, width: int) -> Place:
        """Return the place of a site whose next tensor has so many channels."""
        place = self.places.get(slot)
        if place is not None and place.width == width:
            return place
        rows = 1 + channel_row_count(width)
        if place is None or (rows > place.room and not place.has_rows):
            # More than is needed, where it has grown: what it leaves behind is then less than what it has.
            room, bins = (rows, -1) if place is None else (max(rows, 2 * place.room), place.bins)
            place = self.places[slot] = Place(slot, self._used, room, width, bins)
            self._used += room
            self.rows = _grown(self.rows, self._used)
            if slot.has_bins and bins < 0:
                place.bins, self._used_bins = self._used_bins, self._used_bins + 1
                self.bins = _grown(self.bins, self._used_bins)
        elif not place.has_rows:
            place.width = width
        place.is_mixed |= place.width != width
        return place

    def note_empty(self, slot: Slot) -> None:
        """Note a tensor without elements: its site has an empty row, unless other tensors fill it."""
        place = self.places.get(slot) or self.place(slot, 0)
        if not place.has_rows:
            place.is_empty = True
            self.rows[place.start] = empty_rows(1, self.device)[0]

    def follow(self) -> None:
        """Have the current stream wait for the one that was used before, so that launches run in their order.

        Raises:
            TypeError: a CUDA graph is being captured: what is launched would become a part of it.
        """
        if self.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                raise TypeError("a CUDA graph is being captured, so its tensors have no values yet")
            stream = torch.cuda.current_stream(self.device)
            # Up to torch 2.11 at least, neither `==` nor `!=` is true of a stream and None.
            if self._stream is not None and self._stream.cuda_stream != stream.cuda_stream:
                stream.wait_stream(self._stream)
            self._stream = stream

    def measure(self, jobs: Sequence[tuple[Place, Any, Tensor, Tensor | None]]) -> None:
        """Have the kernel measure tensors, and merge them into the rows of their places, which must differ.

        A job is the place, the form, the tensor, and what is subtracted from it first. Where the kernel cannot be
        launched, as for lack of memory, torch measures.
        """
        self.follow()
        given = [
            (form, values, minus, place.start, not place.has_rows, place.bins) for place, form, values, minus in jobs
        ]
        for number in self.kernel.measure_into(given, self.rows, self.bins):
            place, _, values, minus = jobs[number]
            place.is_mixed = True
            self.merge(place, rows_of(values if minus is None else values.float() - minus.float(), None))
            self.count(place, values)
        for job in jobs:
            job[0].has_rows = True

    def merge(self, place: Place, rows: Tensor) -> None:
        """Merge rows into those of a place, from its first one on."""
        part = self.rows[place.start : place.start + len(rows)]
        part.copy_(merge(part, rows) if place.has_rows else rows)
        place.has_rows = True

    def count(self, place: Place, values: Tensor) -> None:
        """Add the bins of the values to those of a place, if it has some."""
        if place.bins >= 0:
            count_into(self.bins[place.bins], values)

    def send(self, along: Sequence[Tensor]) -> Callable[[], tuple[Columns, list[list[float]]]]:
        """Start the copy of what was measured, and of `along`, to the host, and forget it.

        Returns a function that waits for the copies, and returns what was measured, and the numbers of `along`.
        """
        self.follow()
        there = (place for place in self.places.values() if place.has_rows or place.is_empty)
        places = sorted((place for place in there if not place.slot.is_off), key=lambda place: place.slot.index)
        owns = [place.own for place in places if place.own is not None]
        further = [torch.stack(owns)] if owns else []
        further += [] if self.scale is None else [self.scale]
        blocks = self.rows[: self._used].clone(), self.bins[: self._used_bins].clone()
        copied = sent_together([*blocks, *further, *along])
        # What is there in nearly every step is found once.
        found = [(place, place.width if place.has_rows and not place.is_mixed else 0) for place in places]
        if self._found != found:
            self._found, self._starts = found, np.array([place.start for place in places], np.intp)
            spans = ((place.start + 1, place.start + 1 + channel_row_count(width)) for place, width in found)
            self._channels = [(number, *span) for number, span in enumerate(spans) if span[0] < span[1]]
        starts, channels_at, has_owns = self._starts, self._channels, [place.own is not None for place in places]
        columns = Columns(
            [place.slot for place in places],
            dtypes=[place.slot.dtype for place in places],
            widths=[place.width if place.has_rows else 0 for place in places],
        )
        bins_at = [(number, place.bins) for number, place in enumerate(places) if place.bins >= 0]
        has_scale = self.scale is not None
        self.forget()

        def arrived() -> tuple[Columns, list[list[float]]]:
            rows, bins, *rest = [copy.numpy() for copy in copied()]
            own = iter(rest.pop(0) if owns else ())
            factor = float(rest.pop(0)) if has_scale else 0.0
            if not self.with_abs_mean:
                rows[:, _ABS_MEAN] = math.nan
            if factor:
                rows[:, _SCALED] /= factor
            columns.rows = rows[starts]
            columns.channels = [None] * len(starts)
            for number, start, end in channels_at:
                columns.channels[number] = rows[start:end]
            columns.bins = [None] * len(starts)
            for number, row in bins_at:
                columns.bins[number] = shifted(bins[row], factor) if factor else bins[row]
            columns.own = [next(own) if has_own else None for has_own in has_owns]
            return columns, [numbers.tolist() for numbers in rest]

        return arrived

    def forget(self) -> None:
        """Drop what was measured in this step."""
        for place in self.places.values():
            place.has_rows = place.is_empty = place.is_mixed = False
            place.own = None
        self.bins.zero_()
        self.scale = None


def _kernel_of(device: torch.device) -> Any:
    """Return the module whose kernels read tensors of a device; None if there is none."""
    if has_kernels(device):
        from hookboard.measure import on_gpu  # it imports Triton

        return on_gpu
    return native if device.type == "cpu" and native.is_there() else None


def _grown(block: Tensor, needed: int) -> Tensor:
    """Return the block, or a larger copy, with at least as many rows as needed."""
    if needed <= len(block):
        return block
    with torch.inference_mode(False):
        larger = block.new_zeros(max(needed, 2 * len(block)), block.shape[1])
        larger[: len(block)] = block
    return larger


def sent_together(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start the copies of tensors to the host; return a function that waits for them and returns them.

    On other devices than CUDA they are made at once; of a tensor on the CPU it is the tensor itself, not a copy.
    """
    hosts, events = list[Tensor](), dict[torch.device, torch.cuda.Event]()
    for tensor in tensors:
        if not tensor.is_cuda:
            hosts.append(tensor if tensor.is_cpu else tensor.cpu())
            continue
        # Only copies to pinned memory are asynchronous. What inference mode makes could not be changed outside of it.
        with torch.inference_mode(False):
            hosts.append(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True))
        hosts[-1].copy_(tensor, non_blocking=True)
        events.setdefault(tensor.device, torch.cuda.Event())
    for device, event in events.items():
        event.record(torch.cuda.current_stream(device))

    def arrived() -> list[Tensor]:
        for event in events.values():
            event.synchronize()
        return hosts

    return arrived
