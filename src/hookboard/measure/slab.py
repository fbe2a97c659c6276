"""`Slot`: what a table knows of one site; `Slab`: the rows of all sites on one device, which kernels merge into."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import card, native
from hookboard.measure.by_torch import count_into, rows_of
from hookboard.measure.histogram import BINS
from hookboard.measure.row import FIELDS, WIDTH, channel_row_count, merge
from hookboard.measure.statistics import Plan
from hookboard.measure.values import widened
from hookboard.model.sites import ROLES, RoleTraits, Site

_ABS_MEAN = FIELDS.index("abs_mean")

_NONE = torch.zeros(0, dtype=torch.float64, device="cpu")


Reader = tuple[int, Any, Any, bool]
"""How tensors of a site that have the same key are read, of which nothing else is to be checked: the number of
channels, or 0; how the kernel of the slab's device reads such tensors; the same without channels; and whether the part
that is measured must be copied first, as there are gaps in it that the kernel cannot skip."""


@dataclass(slots=True, eq=False)
class Slot:
    """What a table knows of one site over all steps; and, of this step, the arguments from `has_rows` on.

    Args:
        site: the site.
        is_off: whether it could not be measured, on any rank.
        is_shared: whether its rows are merged over the ranks; each has the whole of a parameter that is not split.
        has_bins: whether its bins are counted; None before its first tensor.
        shape: that of the first tensor since modules were replaced last; None before, and for nested tensors.
        readers: how its tensors are read, by what decides that.
        slab: where its rows are; None before its first tensor.
        start: the first of its rows there: its own, which those of its channels follow; -1 before a tensor with values.
        end: the row behind the last of them.
        bins: the row of its bins; -1 without bins.
        width: the number of channels, with or without a row.
        has_rows: whether its rows hold something.
        is_mixed: whether the rows of channels mean nothing, because its tensors had different numbers of channels, or a
            kernel could not be launched.
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
    """What was measured in a step, on the host, in columns over sites. `Readings` says what the other fields are.

    Args:
        own: the numbers of the user's statistics, shape (sites, statistics), see `statistics.joined`.
        bins: the counts of each site; None where they were not counted.
    """

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
            one[places] if isinstance(one, np.ndarray) else [one[place] for place in places] for one in self
        ]
        return Measured(*parts)

    def followed_by(self, other: "Measured") -> "Measured":
        """Return the columns of these sites and then those of others."""
        both: Any = zip(self, other, strict=True)
        joined: list[Any] = [np.concatenate(one) if isinstance(one[0], np.ndarray) else one[0] + one[1] for one in both]
        return Measured(*joined)


class Slab:
    """The rows of all sites on one device, one after the other, and their bins.

    Attributes:
        kernel: the module whose kernels read tensors of this device; None if there is none.
        rows: shape (n, WIDTH), float64.
        bins: shape (n, BINS), int64.
    """

    def __init__(self, device: torch.device, plan: Plan) -> None:
        self.device, self._plan = device, plan
        self.kernel, self._is_cuda = _kernel_of(device), device.type == "cuda"
        with torch.inference_mode(False):  # what is made in it could not be changed outside of it
            self.rows = torch.empty(512, WIDTH, dtype=torch.float64, device=device)
            self.bins = torch.zeros(0, BINS, dtype=torch.int64, device=device)
        self._used = self._used_bins = 0
        self._placed: list[Slot] = []
        self._is_wasted = False
        """Whether rows belong to no site any longer, because its tensors have another number of channels now."""
        self._stream: Any = None

    def place(self, slot: Slot, width: int) -> None:
        """Reserve rows for a site, and bins if it counts them, unless it has them.

        If a tensor has another number of channels than the first in a step, its rows of channels mean nothing.
        """
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
        """Have the current stream wait for the one that was used before, so that launches run in their order.

        Raises:
            TypeError: a CUDA graph is being captured: what is launched would become a part of it.
        """
        if self._is_cuda:
            if torch.cuda.is_current_stream_capturing():
                raise TypeError("a CUDA graph is being captured, so its tensors have no values yet")
            stream = torch.cuda.current_stream(self.device)
            # Up to torch 2.11 at least, neither `==` nor `!=` is true of a stream and None.
            if self._stream is not None and self._stream.cuda_stream != stream.cuda_stream:
                stream.wait_stream(self._stream)
            self._stream = stream

    def measure(self, slot: Slot, form: Any, values: Tensor, minus: Tensor | None) -> None:
        """Have the kernel measure a tensor, less another one if there is one, and merge it into its rows.

        Where the kernel cannot be launched, as for lack of memory, torch measures, without channels.
        """
        if self._is_cuda:
            self.follow()
        job = form, values, minus, slot.start, not slot.has_rows, slot.bins
        if not self.kernel.measure_into(job, self.rows, self.bins):
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
        """Let the next step use all rows and bins: rows are overwritten, bins are added to. Sites keep theirs."""
        self.bins.zero_()
        if self._is_wasted:
            for slot in self._placed:
                slot.start = -1
            self._used, self._is_wasted = 0, False
            self._placed.clear()

    def send(
        self, slots: list[Slot], along: Sequence[Tensor | None]
    ) -> Callable[[], tuple[Measured, list[list[float]]]]:
        """Start the copy of what was measured of some sites, and of `along`, to the host.

        Returns a function that waits for the copies, and returns what was measured, and the numbers of `along`.
        """
        self.follow()
        starts, ends = [slot.start for slot in slots], [0 if slot.is_mixed else slot.end for slot in slots]
        of_bins = [slot.bins for slot in slots]
        kinds = [slot.dtype for slot in slots], [slot.width for slot in slots]
        owns = {place: slot.own for place, slot in enumerate(slots) if slot.own is not None}
        blocks = self.rows[: max(self._used, 1)].clone(), self.bins[: self._used_bins].clone()
        all_owns = torch.stack([*owns.values()]) if owns else _NONE
        copied = sent_together([*blocks, all_owns, *(_NONE if each is None else each for each in along)])

        def arrived() -> tuple[Measured, list[list[float]]]:
            rows, bins, own_numbers, *rest = [copy.numpy() for copy in copied()]
            if not self._plan.with_abs_mean:
                rows[:, _ABS_MEAN] = math.nan
            own = np.tile(self._plan.neutral, (len(slots), 1))
            if owns:
                own[[*owns]] = own_numbers
            channels = [rows[a + 1 : b] if b > a + 1 else None for a, b in zip(starts, ends, strict=True)]
            counts = [bins[row] if row >= 0 else None for row in of_bins]
            return Measured(slots, rows[starts], own, channels, counts, *kinds), [each.tolist() for each in rest]

        return arrived


def _kernel_of(device: torch.device) -> Any:
    """Return the module whose kernels read tensors of a device; None if there is none."""
    if device.type in card.DEVICES:
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
