"""`Table`: what one due step has measured. Hooks fill it; `send` copies it to the host and merges it over the ranks."""

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.base.messages import warn_switched_off
from hookboard.base.ranks import Ranks, local, own_part
from hookboard.measure.by_torch import as_float, empty_rows, rows_of
from hookboard.measure.card import has_kernels, measuring_device, needs_host
from hookboard.measure.histogram import Histogram, histograms
from hookboard.measure.memory import can_subtract, is_plain
from hookboard.measure.native import report_missing_kernel
from hookboard.measure.over_ranks import Agreement
from hookboard.measure.readings import Places, Readings
from hookboard.measure.row import FIELDS, Moments, merge
from hookboard.measure.slab import Columns, Place, Slab, Slot
from hookboard.measure.statistics import Plan, joined, own_numbers
from hookboard.measure.values import single_at_least, values_of
from hookboard.model.layouts import shape_of
from hookboard.model.sites import Role, Site, Stage

_MIN, _MAX, _ABS_MEAN, _ZEROS, _COUNT = map(FIELDS.index, ("min", "max", "abs_mean", "zeros", "count"))

_NONE = torch.zeros(0, dtype=torch.float64, device="cpu")

MOST_READERS = 256
"""Maximum number of kinds of tensors of a site whose readers are kept: graphs have another size at each step."""

Jobs = dict[Slab, dict[Slot, tuple[Place, Any, Tensor, Tensor | None]]]
"""What waits for a common launch on each device, see `Slab.measure`."""


class Reader(NamedTuple):
    """How tensors of a site that have the same key are read: nothing else is to be checked of them.

    Args:
        width: the number of channels; 0 if they are not measured.
        form: how the kernel of the slab's device reads such tensors.
        form_of_all: the same without channels.
    """

    slab: Slab
    width: int
    form: Any
    form_of_all: Any


class Table:
    """The rows of one due step: measures the tensors of any number of sites, in any thread, each into one row.

    Args:
        plan: the statistics to measure.
        device: where most tensors are. What is measured of a tensor is kept on its own device, or on the host if that
            device has no float64.
        stage: the stage that is noted in readings.
        histogram: whether to count histograms too; or a function that returns this for a site and its first tensor.
        channels: returns the dimension of a tensor that holds the channels, which are then measured one by one too;
            None for a tensor without channels. Default: no channels are measured.
        ranks: the processes that merge what they measured; every rank must then take what each `send` returns. None if
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
        ranks: Ranks | None = None,
    ) -> None:
        self.stage: Stage = stage
        self.scale: Tensor | None = None
        """The scale that gradients carry now, shape (); readings are divided by it. None if they carry none. While it
        stays the same, so does this tensor."""
        self._scales: list[Tensor] = []
        """The scales that gradients of this step have carried."""
        self._plan, self._histogram, self._channels = plan, histogram, channels
        self._slots: dict[Site, Slot] = {}
        self._main = Slab(measuring_device(device), with_abs_mean=plan.with_abs_mean)
        self._slabs = {(self._main.device, 0): self._main}
        """By device, and the number of the loss scale that gradients carry, see `_number_of`. A model may span several
        devices, and the scale may change within a step."""
        self._lock = threading.RLock()
        """Held while a tensor is measured, and while all is taken: it is wholly in this step or wholly in the next."""
        self._agreement = None if ranks is None else Agreement(ranks, plan)
        self._places = Places([])

    def open(self, site: Site) -> Callable[[Tensor], None]:
        """Return a function that measures a tensor of this site.

        If measuring fails, that function warns once, and does nothing from then on.
        """
        return functools.partial(self._observe, self._slot(site))

    def observe_all(self, tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> None:
        """Measure many tensors, or differences of tensors: on an accelerator in a few launches.

        If measuring one of them fails, its site is left out from then on, with one warning.

        Args:
            tensors: the site, the tensor, and the tensor to subtract from it first, in float32 at least; None for none.
        """
        jobs: Jobs = {}
        for site, tensor, minus in tensors:
            self._observe(self._slots.get(site) or self._slot(site), tensor, minus, jobs)
        with self._lock:
            self._launch(jobs)

    def switch_off(self, sites: Sequence[Site], error: Exception) -> None:
        """Leave these sites out from now on; one warning names the first of them and the error."""
        for site in sites:
            self._slot(site).is_off = True
        warn_switched_off(f"{sites[0].role} of {sites[0].path!r}", error)

    def is_off(self, name: str, role: Role) -> bool:
        """Return True if measuring this role of this module or parameter has failed, on any rank."""
        return any(slot.is_off and (site.name, site.role) == (name, role) for site, slot in [*self._slots.items()])

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """Return, by name, the shape that was measured for each module or parameter in a role.

        If it has several sites, the first one with a shape counts.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for site, slot in [*self._slots.items()]:
            if site.role == role and slot.shape is not None:
                shapes.setdefault(site.name, slot.shape)
        return shapes

    def forget_shapes(self) -> None:
        """Forget how tensors were read: modules were replaced, and the next tensors set it again."""
        for slot in [*self._slots.values()]:
            slot.shape = None
            slot.readers.clear()

    def forget(self) -> None:
        """Drop what was measured since the last `send`. It does not wait for the device."""
        with self._lock:
            self._scales.clear()
            for slab in self._slabs.values():
                slab.forget()

    def send(self, flags: Tensor | None = None, along: Tensor | None = None) -> Callable[[], Readings]:
        """Take what was measured since the last call, forget it, and start its copy to the host.

        Args:
            flags: shape (k,), numbers of at least 0, on any device: `Readings.flags` then has the largest of each over
                all ranks.
            along: shape (n,), numbers on any device that go to the host with the same copy, to `Readings.along`.

        Returns:
            A function that waits for the numbers and merges them over the ranks, and returns the readings. What was
            sent first must be fetched first. It raises a `RanksLostError` if a rank that merges no longer takes part.
        """
        given = [(_NONE if each is None else each).to(self._main.device) for each in (flags, along)]
        with self._lock:
            main = self._main.send(given)
            others = [slab.send(()) for slab in self._slabs.values() if slab is not self._main]
            self._scales.clear()
        if self._main.device.type == "cpu":
            report_missing_kernel()

        def arrived() -> Readings:
            all_flags: Sequence[float]
            columns, (all_flags, numbers) = main()
            for other in others:
                columns = self._joined(columns, other()[0])
            if self._agreement is not None:
                columns, all_flags = self._agreement.merged(columns, self._slots, all_flags)
            return self._readings(columns, all_flags, numbers)

        return arrived

    def _slot(self, site: Site) -> Slot:
        """Return the slot of a site; adds it if it is not there yet."""
        with self._lock:
            return self._slots.setdefault(site, Slot(len(self._slots), site))

    def _observe(self, slot: Slot, tensor: Tensor, minus: Tensor | None = None, jobs: Jobs | None = None) -> None:
        """Measure a tensor, or its difference from another; with `jobs`, a kernel may measure it later."""
        if slot.is_off:
            return
        try:
            with self._lock:
                self._measure(slot, tensor, minus, jobs)
        except Exception as error:  # this may be inside a hook: the training goes on
            self.switch_off([slot.site], error)

    def _measure(self, slot: Slot, tensor: Tensor, minus: Tensor | None, jobs: Jobs | None) -> None:
        scale = self.scale if slot.traits.is_gradient else None
        key = _key_of(tensor, minus, self._number_of(scale))
        reader = slot.readers.get(key)
        if reader is None:
            self._measure_anew(slot, tensor, minus, scale, key)
            return
        reader.slab.scale = scale
        place = reader.slab.place(slot, reader.width)
        self._note(slot, place, tensor, scale)
        job = place, reader.form_of_all if place.is_mixed else reader.form, tensor, minus
        if jobs is None:
            reader.slab.measure([job])
        else:
            waiting = jobs.setdefault(reader.slab, {})
            if slot in waiting:  # a launch merges one tensor into a row
                self._launch(jobs)
            waiting[slot] = job

    def _launch(self, jobs: Jobs) -> None:
        """Measure what waits for a common launch, and forget it; on the host one by one: an error is of one tensor."""
        for slab, waiting in jobs.items():
            given = [*waiting.values()]
            waiting.clear()
            for together in [given] if has_kernels(slab.device) else [[job] for job in given]:
                self._measure_together(slab, together)

    def _measure_together(self, slab: Slab, jobs: list[tuple[Place, Any, Tensor, Tensor | None]]) -> None:
        try:
            slab.measure(jobs)
        except Exception as error:  # the training goes on without them
            self.switch_off([place.slot.site for place, *_ in jobs], error)

    def _note(self, slot: Slot, place: Place, tensor: Tensor, scale: Tensor | None) -> None:
        """Note the dtype of the first tensor in a step, and measure the user's statistics of each."""
        if not place.has_rows:
            slot.dtype = tensor.dtype
        if self._plan.own and not slot.traits.moments_only and tensor.numel():
            tensor = tensor.detach()
            own = own_numbers(self._plan.own, tensor if scale is None else tensor.float() / scale)
            place.own = own if place.own is None else joined(self._plan.own, place.own, own)

    def _measure_anew(
        self, slot: Slot, tensor: Tensor, minus: Tensor | None, scale: Tensor | None, key: object
    ) -> None:
        """Find out how to read a tensor, and measure it; what a kernel reads as it is needs that only once."""
        tensor = tensor.detach() if tensor.requires_grad else tensor
        part = own_part(tensor, of_parameter=slot.traits.of_parameter)
        if part is None:
            return
        is_whole = part is tensor
        slot.is_shared |= not is_whole
        part = part.cpu() if needs_host(part.device) else part
        # The part of a DTensor may hold only some of the channels, and other ranks would not know which.
        has_channels = self._channels is not None and is_whole and is_plain(part) and not part.is_complex()
        dim = self._channels(slot.site, part) if self._channels is not None and has_channels else None
        if minus is not None and (part.is_complex() or not can_subtract(minus, part)):
            wide = single_at_least(part.dtype)  # neighbouring weights differ by less than half precision resolves
            part = part.to(wide) - local(minus).to(part.device, wide)
            minus = None
        numbers, zeros = values_of(part)
        if slot.has_bins is None:
            wants = self._plan.needs("bins") or self._histogram
            slot.has_bins = not slot.traits.moments_only and (wants(slot.site, part) if callable(wants) else wants)
        slot.shape = shape_of(tensor) if slot.shape is None else slot.shape
        slab = self._slab(numbers.device, scale)
        slab.follow()
        if dim is not None:
            dim = dim % part.dim() if -part.dim() <= dim < part.dim() and part.shape[dim] else None
        if not numbers.numel() and not zeros:
            slot.dtype = part.dtype if slot.dtype is None else slot.dtype
            slab.note_empty(slot)
            return
        place = slab.place(slot, 0 if dim is None else numbers.shape[dim])
        self._note(slot, place, part, scale)
        if numbers.numel():
            self._measure_numbers(slot, slab, place, numbers, dim, minus, key if numbers is tensor else None)
        if zeros:
            row = empty_rows(1, slab.device)
            row[0, [_COUNT, _ZEROS]], row[0, [_MIN, _MAX]] = zeros, 0
            slab.merge(place, row)
            if place.bins >= 0:
                slab.bins[place.bins, 0] += zeros  # the first bin begins at 0

    def _measure_numbers(
        self, slot: Slot, slab: Slab, place: Place, numbers: Tensor, dim: int | None, minus: Tensor | None, key: object
    ) -> None:
        """Measure dense real numbers, by a kernel if it can read them; they have a key if they always come as now."""
        kernel, with_abs_mean = slab.kernel, self._plan.with_abs_mean

        def form_of(numbers: Tensor, dim: int | None) -> Any:
            has_minus = minus is not None
            return kernel.form_of(
                numbers, dim, has_bins=place.bins >= 0, has_minus=has_minus, with_abs_mean=with_abs_mean
            )

        form = None if kernel is None else form_of(numbers, dim)
        if form is None and minus is not None:
            wide = single_at_least(numbers.dtype)
            key, numbers, minus = None, numbers.to(wide) - minus.to(wide), None
        if form is None and kernel is not None:
            key, numbers = None, as_float(numbers).contiguous()
            form = form_of(numbers, dim)
        if form is None:
            slab.merge(place, rows_of(numbers, None if place.is_mixed else dim))
            slab.count(place, numbers)
            return
        of_all = form_of(numbers, None)
        if key is not None:
            if len(slot.readers) >= MOST_READERS:
                slot.readers.clear()
            # Not the width of the place: other tensors of the step may have another.
            slot.readers[key] = Reader(slab, 0 if dim is None else numbers.shape[dim], form, of_all)
        slab.measure([(place, of_all if place.is_mixed else form, numbers, minus)])

    def _slab(self, device: torch.device, scale: Tensor | None) -> Slab:
        """Return the slab of a device; adds it if it is not there yet. What carries a loss scale has one of its own."""
        key = device, self._number_of(scale)
        if key not in self._slabs:
            self._slabs[key] = Slab(device, with_abs_mean=self._plan.with_abs_mean)
        self._slabs[key].scale = scale
        return self._slabs[key]

    def _number_of(self, scale: Tensor | None) -> int:
        """Return the number of a scale among those of this step, counted from 1; 0 for none."""
        if scale is None:
            return 0
        number = next((number for number, known in enumerate(self._scales, 1) if known is scale), 0)
        if not number:
            self._scales.append(scale)
        return number or len(self._scales)

    def _joined(self, columns: Columns, others: Columns) -> Columns:
        """Add what is in another slab; a site that is in both has the row of all its tensors together."""
        places = {slot: place for place, slot in enumerate(columns.slots)}
        new = [number for number, slot in enumerate(others.slots) if slot not in places]
        for number, slot in enumerate(others.slots):
            if slot in places:
                place = places[slot]
                row, other = torch.from_numpy(columns.rows[[place]]), torch.from_numpy(others.rows[[number]])
                elements, more_elements = columns.elements_of(place), others.elements_of(number)
                columns.rows[place] = merge(row, other).numpy()[0]
                if not elements:
                    columns.channels[place], columns.widths[place] = others.channels[number], others.widths[number]
                elif more_elements:
                    both = columns.channels[place], others.channels[number]
                    columns.channels[place] = _joined_channels(*both, columns.widths[place] == others.widths[number])
                if (more := others.own[number]) is not None:
                    own = columns.own[place]
                    own = more if own is None else joined(self._plan.own, *map(torch.from_numpy, (own, more))).numpy()
                    columns.own[place] = own
                if (counts := others.bins[number]) is not None:
                    columns.bins[place] = counts + (0 if columns.bins[place] is None else columns.bins[place])
        return columns.with_more(others, new)

    def _readings(self, columns: Columns, flags: Sequence[float], along: Sequence[float]) -> Readings:
        sites = [slot.site for slot in columns.slots]
        if self._places.sites != sites:
            self._places = Places(sites)
        own = np.array([self._plan.neutral if each is None else each for each in columns.own])
        own = own.reshape(len(sites), len(self._plan.own))
        bins, channels, dtypes = columns.bins, columns.channels, columns.dtypes
        statistics = self._plan.table(columns.rows, own, bins, channels, dtypes)
        drawn: list[Histogram | None] = [None] * len(sites)
        counted = [place for place, each in enumerate(bins) if each is not None] if self._histogram else []
        if counted:
            low, high = columns.rows[counted][:, [_MIN, _MAX]].T
            found = histograms([each for each in bins if each is not None], low, high)
            for place, histogram in zip(counted, found, strict=True):
                drawn[place] = histogram
        return Readings(
            self._places,
            columns.rows,
            channels,
            dtypes,
            columns.widths,
            statistics,
            drawn,
            self.stage,
            np.zeros(len(sites), bool),
            flags,
            along,
        )


def moments_of(tensor: Tensor) -> Moments:
    """Return the moments of one tensor, `abs_mean` too.

    Raises:
        TypeError: the tensor has no values, or holds them in a way of its own; the message says why.

    Examples:
        >>> moments_of(torch.tensor([1.0, 3.0, float("nan")])).mean
        2.0
    """
    plan, site = Plan(("abs_mean",)), Site("", "output")
    values_of(tensor)  # raises, where a table would warn
    table = Table(plan, tensor.device)
    table.open(site)(tensor)
    return table.send()()[site].moments


def _joined_channels(channels: Any, others: Any, are_alike: bool) -> Any:
    """Return the rows of the channels of two slabs together; None if one has none, or if they are not the same."""
    if channels is None or others is None or not are_alike:
        return None
    return merge(torch.from_numpy(channels), torch.from_numpy(others)).numpy()


def _key_of(tensor: Tensor, minus: Tensor | None, scale: int) -> object:
    """Return what decides how a tensor is read; None for one that is not plain."""
    if not is_plain(tensor):
        return None
    key = tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg(), scale
    if minus is None:
        return key
    return (key, minus.shape, minus.stride(), minus.dtype, minus.device) if is_plain(minus) else None
