"""`Slab`: the rows of all sites on one device, which kernels merge into. `Agreement`: merges those of several ranks."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.base.ranks import Ranks
from hookboard.measure import memory, native
from hookboard.measure.by_torch import count_into, rows_of, widened
from hookboard.measure.row import BINS, EMPTY, FIELDS, WIDTH, channel_row_count, elements_in, merge, merge_over
from hookboard.measure.statistics import Plan
from hookboard.model.sites import ROLES, RoleTraits, Site

_ABS_MEAN = FIELDS.index("abs_mean")

_NONE = torch.zeros(0, dtype=torch.float64, device="cpu")


Reader = tuple[int, Any, Any, bool]
"""How tensors of a site that have the same key are read, of which nothing else is to be checked: the number of
channels, or 0; how the kernel of the slab's device reads such tensors; the same without channels; and whether the part
that is measured must be copied first, as there are gaps in it that the kernel cannot skip."""


@dataclass(slots=True, eq=False)
class Slot:
    """What a table knows of one site over all steps; and, of this step, the fields from `has_rows` on.

    Args:
        is_off: whether it could not be measured, on any rank.
        is_shared: whether its rows are merged over the ranks; each has the whole of a parameter that is not split.
        has_bins: whether its bins are counted; None before its first tensor.
        shape: that of the first tensor since modules were replaced last; None before, and for nested tensors.
        start: the first of its rows: its own, which those of its channels follow; -1 before a tensor with values.
        end: the row behind the last of them.
        bins: the row of its bins; -1 without bins.
        width: the number of channels, with or without a row.
        is_mixed: whether its rows of channels mean nothing: their number changed, or a kernel could not be launched.
        dtype: that of the first tensor.
        own: the numbers of the user's statistics, see `statistics.joined`; None without any.
    """

    site: Site
    traits: RoleTraits = field(init=False)
    is_off: bool = False
    is_shared: bool = field(init=False)
    has_bins: bool | None = None
    shape: tuple[int, ...] | None = None
    readers: dict[object, Reader] = field(default_factory=dict)
    slab: "Slab | None" = None
    start: int = -1
    end: int = 0
    bins: int = -1
    width: int = 0
    has_rows: bool = False
    is_mixed: bool = False
    dtype: torch.dtype | None = None
    own: Tensor | None = None

    def __post_init__(self) -> None:
        self.traits = ROLES[self.site.role]
        self.is_shared = not self.traits.of_parameter


class Measured(NamedTuple):
    """What was measured in a step, on the host, in columns over sites; `own` has shape (sites, statistics)."""

    slots: list[Slot]
    rows: np.ndarray
    own: np.ndarray
    channels: list[np.ndarray | None]
    bins: list[np.ndarray | None]
    dtypes: list[torch.dtype | None]
    widths: list[int]

    def among(self, places: Sequence[int]) -> "Measured":
        """Return the columns of the sites in some places."""
        parts: list[Any] = [
            column[places] if isinstance(column, np.ndarray) else [column[place] for place in places] for column in self
        ]
        return Measured(*parts)

    def followed_by(self, other: "Measured") -> "Measured":
        """Return the columns of these sites and then those of others."""
        both: Any = zip(self, other, strict=True)
        joined: list[Any] = [np.concatenate(one) if isinstance(one[0], np.ndarray) else one[0] + one[1] for one in both]
        return Measured(*joined)


class Slab:
    """The rows of all sites on one device, (n, WIDTH), float64, one after the other; their bins, (n, BINS), int64."""

    def __init__(self, device: torch.device, plan: Plan) -> None:
        self.device, self._plan = device, plan
        self.kernel, self._is_cuda = _kernel_of(device), device.type == "cuda"
        with torch.inference_mode(False):  # what is made in it could not be changed outside of it
            self.rows = torch.empty(512, WIDTH, dtype=torch.float64, device=device)
            self.bins = torch.zeros(0, BINS, dtype=torch.int64, device=device)
        self._used = self._used_bins = 0
        self._placed: list[Slot] = []
        self._is_wasted = False  # whether rows belong to no site: its tensors have another number of channels now
        self._stream: Any = None

    def place(self, slot: Slot, width: int) -> None:
        """Reserve rows for a site, and bins if it counts them, unless it has them."""
        if slot.start < 0 or (slot.width != width and not slot.has_rows):
            self._is_wasted |= slot.start >= 0
            self._placed.append(slot)
            slot.start, slot.width = self._used, width
            slot.end = self._used = self._used + 1 + channel_row_count(width)
            self.rows = _grown(self.rows, self._used)
            if slot.has_bins and slot.bins < 0:
                slot.bins, self._used_bins = self._used_bins, self._used_bins + 1
                self.bins = _grown(self.bins, self._used_bins)
        elif slot.width != width:
            slot.is_mixed = True

    def follow(self) -> None:
        """Have the current stream wait for the one that was used before, so that launches run in their order."""
        if self._is_cuda:
            # What is launched now would become a part of the CUDA graph.
            if torch.cuda.is_current_stream_capturing():
                raise TypeError("a CUDA graph is being captured, so its tensors have no values yet")
            stream = torch.cuda.current_stream(self.device)
            # Up to torch 2.11 at least, neither `==` nor `!=` is true of a stream and None.
            if self._stream is not None and self._stream.cuda_stream != stream.cuda_stream:
                stream.wait_stream(self._stream)
            self._stream = stream

    def measure(self, slot: Slot, form: Any, values: Tensor, minus: Tensor | None) -> None:
        """Have the kernel measure a tensor, less another if there is one, and merge it into its rows."""
        if self._is_cuda:
            self.follow()
        job = form, values, minus, slot.start, not slot.has_rows, slot.bins
        if not self.kernel.measure_into(job, self.rows, self.bins):  # it cannot be launched, as for lack of memory
            slot.is_mixed = True
            self.measure_by_torch(slot, values if minus is None else widened(values) - widened(minus), None)
        slot.has_rows = True

    def measure_by_torch(self, slot: Slot, values: Tensor, dim: int | None) -> None:
        """Have torch measure dense real values with channels along a dimension, and merge them into the site's rows."""
        self._merge(slot, rows_of(values, None if slot.is_mixed else dim))
        if slot.bins >= 0:
            count_into(self.bins[slot.bins], values)

    def add_zeros(self, slot: Slot, count: int) -> None:
        """Merge so many zeros into the site's row: those that a sparse tensor does not store."""
        if count:
            self._merge(slot, rows_of(self.rows.new_zeros(1), None) * count)  # what is not 0 in that row are counts
            if slot.bins >= 0:
                self.bins[slot.bins, 0] += count  # the first bin begins at 0

    def _merge(self, slot: Slot, rows: Tensor) -> None:
        there = self.rows[slot.start : slot.start + len(rows)]
        there.copy_(merge(there, rows) if slot.has_rows else rows)
        slot.has_rows = True

    def forget(self) -> None:
        """Let the next step overwrite all rows and count anew. Sites keep their rows, unless some are wasted."""
        self.bins.zero_()
        if self._is_wasted:
            for slot in self._placed:
                slot.start = -1
            self._used, self._is_wasted = 0, False
            self._placed.clear()

    def send(
        self, slots: list[Slot], along: Sequence[Tensor | None]
    ) -> Callable[[], tuple[Measured, list[list[float]]]]:
        """Start the copy of sites' numbers and of `along` to the host; return what waits for it, and returns both."""
        self.follow()
        starts, ends = [slot.start for slot in slots], [0 if slot.is_mixed else slot.end for slot in slots]
        of_bins = [slot.bins for slot in slots]
        kinds = [slot.dtype for slot in slots], [slot.width for slot in slots]
        owns = {place: slot.own for place, slot in enumerate(slots) if slot.own is not None}
        blocks = self.rows[: max(self._used, 1)].clone(), self.bins[: self._used_bins].clone()
        all_owns = torch.stack([*owns.values()]) if owns else _NONE
        copied = sent_together([*blocks, all_owns, *(_NONE if each is None else each for each in along)])

        def wait_and_split() -> tuple[Measured, list[list[float]]]:
            rows, bins, own_numbers, *rest = [copy.numpy() for copy in copied()]
            if not self._plan.with_abs_mean:
                rows[:, _ABS_MEAN] = math.nan
            own = np.tile(self._plan.neutral, (len(slots), 1))
            if owns:
                own[[*owns]] = own_numbers
            channels = [rows[a + 1 : b] if b > a + 1 else None for a, b in zip(starts, ends, strict=True)]
            counts = [bins[row] if row >= 0 else None for row in of_bins]
            return Measured(slots, rows[starts], own, channels, counts, *kinds), [each.tolist() for each in rest]

        return wait_and_split


def _kernel_of(device: torch.device) -> Any:
    """Return the module whose kernels read tensors of a device; None if there is none."""
    if device.type in memory.DEVICES:
        with suppress(ImportError):  # Triton is missing
            from hookboard.measure import on_gpu

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
    """Start the copies of tensors to the host, none of those on the CPU; return what waits for them."""
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

    def wait_for_copies() -> list[Tensor]:
        for event in events.values():
            event.synchronize()
        return hosts

    return wait_for_copies


class Extent(NamedTuple):
    """What all ranks send of a site: rows of so many channels, its bins or not; and the dtype of its tensors."""

    width: int = 0
    has_bins: bool = False
    dtype: torch.dtype | None = None


class Agreement:
    """The sites that all ranks send at each step, in one order. They agree anew when one of them has something new."""

    def __init__(self, ranks: Ranks, plan: Plan) -> None:
        self._ranks, self._plan = ranks, plan
        self._extents: dict[Site, Extent] = {}

    def merged(self, found: Measured, slots: dict[Site, Slot], flags: list[float]) -> tuple[Measured, list[float]]:
        """Return what all ranks have measured, and the largest of each flag; add sites of other ranks to `slots`."""
        mine = {slot.site: place for place, slot in enumerate(found.slots) if slot.is_shared}
        new = dict[Site, Extent]()
        for site, place in mine.items():
            width = 0 if found.channels[place] is None else found.widths[place]
            extent = Extent(width, found.bins[place] is not None, found.dtypes[place])
            known = self._extents.get(site)
            if known is None or extent.width not in (0, known.width) or extent.has_bins > known.has_bins:
                new[site] = extent
        numbers = torch.tensor([bool(new), *flags], dtype=torch.float64, device="cpu")
        is_new, *flags = self._ranks.max(numbers).tolist()
        if is_new:
            for site, (width, has_bins, dtype) in self._ranks.union(new.items()):
                known = self._extents.get(site, Extent())
                self._extents[site] = Extent(width or known.width, has_bins or known.has_bins, known.dtype or dtype)
        # What was measured whole on each rank, as parameters are, stays as it is.
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
                if found.bins[at] is not None:
                    counts[site][:] = found.bins[at]
        rows = merge_over(self._ranks, torch.from_numpy(rows)).numpy()
        if not self._plan.with_abs_mean:
            rows[:, _ABS_MEAN] = math.nan  # where a site was empty it is 0
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
        signs = numbers.new_tensor([{"min": -1.0, "max": 1.0}.get(each.merge, 0.0) for each in self._plan.own])
        ends = self._ranks.max((signs * numbers).where((signs != 0) & ~numbers.isnan(), -math.inf))
        sums = self._ranks.sum(numbers.where((signs == 0) | numbers.isnan(), 0))  # which is NaN where one of them is
        return (signs * ends).where((signs != 0) & ~sums.isnan(), sums).numpy()
