"""`Recorder`: measures the tensors of all sites, and returns a reading for each site at the end of a step."""

import functools
import math
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.base.jobs import Steps, finished
from hookboard.base.messages import warn_switched_off
from hookboard.base.ranks import Ranks, own_part
from hookboard.measure.arena import Job, job_of
from hookboard.measure.card import measuring_device, needs_host
from hookboard.measure.columns import empty_row
from hookboard.measure.histogram import Histogram, histograms
from hookboard.measure.measuring import measure_channels
from hookboard.measure.native import Form, form_of, read
from hookboard.measure.packet import Exchange, Extent, Layout, Packet, SiteNumbers
from hookboard.measure.readings import Places, Readings
from hookboard.measure.row import FIELDS, REQUESTABLE, WIDTH, ChannelRows, Row, elements_in
from hookboard.measure.rows import NO_CHANNELS
from hookboard.measure.statistics import Plan
from hookboard.measure.store import Store, Taken
from hookboard.measure.values import blocks_of, single_at_least, unscaled
from hookboard.model.layouts import shape_of
from hookboard.model.sites import ROLES, Role, Site, Stage

_MIN, _MAX = FIELDS.index("min"), FIELDS.index("max")

_NONE = torch.zeros(0, dtype=torch.float64, device="cpu")


class Slot:
    """What a recorder knows of one site.

    Args:
        index: counts the sites from 0, in the order in which they came.
        site: the site.
    """

    __slots__ = ("extent", "form", "index", "shape", "site", "traits")

    def __init__(self, index: int, site: Site) -> None:
        self.index = index
        self.site = site
        self.traits = ROLES[site.role]
        self.extent = Extent()
        """The number of channels, whether it has bins, and the dtype."""
        self.form: Form | None = None
        """How the compiled kernel read the last tensor; None if the kernel did not read it."""
        self.shape: tuple[int, ...] | None = None
        """The shape of the first tensor; None before, and for nested tensors."""


class Waiting(NamedTuple):
    """A tensor that waits for a common launch.

    Args:
        slot: its site.
        job: how the kernels read it.
        again: the arguments of `_by_torch`, if the kernel cannot be launched.
    """

    slot: Slot
    job: Job
    again: tuple[Slot, Tensor, int | None, Tensor | None]


class Recorder:
    """Measures the tensors of any number of sites, in any thread, and merges what belongs to one step.

    Args:
        plan: the statistics to measure.
        device: where most tensors are. What is measured of a tensor is kept on its own device, or on the host if that
            device has no float64.
        stage: the stage that is noted in readings.
        histogram: whether to count histograms too; or a function that returns this for a site and its first tensor.
        channels: returns the dimension of a tensor that holds the channels, which are then measured one by one too;
            None for a tensor without channels. Default: no channels are measured.
        finish: computes what needs the readings of several sites, such as ratios; returns the readings that `send`
            gives. Default: they are given as they are.
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
        finish: Callable[[Readings], Readings] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.stage: Stage = stage
        self._slots: dict[Site, Slot] = {}
        """In the order of their indices."""
        self._main = Store(plan.more, measuring_device(device))
        self._stores = {self._main.device: self._main}
        """By device: a model may span several, or have layers on the host."""
        self._host = self._stores.setdefault(torch.device("cpu"), Store(plan.more, torch.device("cpu")))
        self.scale: Tensor | None = None
        """The scale that gradients carry now, shape (); they are divided by it. None if they carry none."""
        self._off: set[Site] = set()
        """The sites that could not be measured, on any rank."""
        self._plan = plan.with_histogram() if histogram else plan
        self._not_measured = [FIELDS.index(field) for field in REQUESTABLE - self._plan.wanted]
        self._has_bins = bool(histogram) or "bins" in plan.wanted
        """True if at least one site may count bins."""
        self._with_abs_mean = "abs_mean" in self._plan.wanted
        self._lock = threading.RLock()
        """Held while a slot changes, while a tensor is measured and its rows are kept, and while all is taken: no flush
        has the row of a tensor without its bins."""
        self._histogram = histogram
        self._channels = channels
        self._finish = finish
        self._rank = 0 if ranks is None else ranks.rank
        self._exchange = None if ranks is None else Exchange(ranks, plan.more)
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
        slots = self._slots
        together: dict[int, Waiting] = {}
        for site, tensor, minus in tensors:
            self._observe(slots.get(site) or self._slot(site), tensor, minus, together)
        self._launch(together)

    def _launch(self, together: dict[int, Waiting]) -> None:
        """Measure what waits for a common launch, and forget it."""
        alike: dict[torch.device, list[Waiting]] = {}
        for each in together.values():
            alike.setdefault(each.job.values.device, []).append(each)
        together.clear()
        for device, some in alike.items():
            self._launch_alike(self._store(device), some)

    def _launch_alike(self, store: Store, waiting: Sequence[Waiting]) -> None:
        """Measure tensors of one device; what no kernel can be launched for is measured by torch."""
        assert store.arena is not None  # otherwise none would wait
        jobs = [(each.slot.index, each.job, each.slot.extent.has_bins) for each in waiting]
        missing: Sequence[int] = range(len(waiting))
        try:
            with self._lock:
                store.follow()
                missing = store.arena.measure(jobs, with_abs_mean=self._with_abs_mean)
        except torch.OutOfMemoryError:
            pass  # torch measures one after the other, which needs less at once
        except Exception as error:  # the training goes on without them
            self.switch_off([each.slot.site for each in waiting], error)
            return
        for number, each in enumerate(waiting):
            if number in missing:
                try:
                    self._by_torch(*each.again)
                except Exception as error:  # as above; the others are measured
                    self.switch_off([each.slot.site], error)
            elif each.job.channels and each.slot.extent.channels != each.job.channels:
                each.slot.extent = each.slot.extent._replace(channels=each.job.channels)

    def switch_off(self, sites: Sequence[Site], error: Exception) -> None:
        """Leave these sites out from now on; one warning names the first of them and the error."""
        self._off.update(sites)
        warn_switched_off(f"{sites[0].role} of {sites[0].path!r}", error)

    def is_off(self, name: str, role: Role) -> bool:
        """Return True if measuring this role of this module or parameter has failed, on any rank."""
        return any((site.name, site.role) == (name, role) for site in self._off)

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """Return, by name, the shape that was measured for each module or parameter in a role.

        If it has several sites, the first one with a shape counts.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for slot in list(self._slots.values()):
            if slot.site.role == role and slot.shape is not None:
                shapes.setdefault(slot.site.name, slot.shape)
        return shapes

    def forget_shapes(self) -> None:
        """Forget the shapes: modules were replaced, and the next tensors set them again."""
        for slot in list(self._slots.values()):
            slot.shape = slot.form = None

    def flush(self) -> Readings:
        """Return what was measured since the last flush, and forget it. Waits for the device."""
        return finished(self.send())

    def forget(self) -> None:
        """Drop what was measured since the last flush. It does not wait for the device."""
        with self._lock:
            for store in self._stores.values():
                store.forget()

    def send(self, flags: Tensor | None = None, along: Tensor | None = None) -> Steps[Readings]:
        """Take what was measured since the last flush, forget it, and start its copy to the host.

        Args:
            flags: shape (k,), numbers of at least 0, on any device: `Readings.flags` then has the largest of each over
                all ranks.
            along: shape (n,), numbers on any device that go to the host with the same copy, to `Readings.along`.

        Returns:
            Steps until the numbers have arrived and the ranks have merged them, which return the readings. What was
            sent first must be fetched first. They raise a `RanksLostError` if a rank that merges no longer takes part.
        """
        given = [_NONE if flags is None else flags, _NONE if along is None else along]
        # A tensor that another thread measures meanwhile is wholly in this flush or wholly in the next.
        with self._lock:
            stores = [store for store in self._stores.values() if store is self._main or not store.is_empty]
            layout = {site: slot.extent for site, slot in self._slots.items()}
            sendings = [store.send(len(layout), given if store is self._main else ()) for store in stores]

        def arrived() -> Steps[Readings]:
            taken: list[Taken] = []
            for sending in sendings:
                taken.append((yield from sending))  # noqa: PERF401  # a comprehension cannot yield
            packet, measured = self._packet(layout, taken)
            if self._exchange is not None:
                packet = yield from self._exchange.merged(packet)
            readings = self._readings(packet, measured)
            for store, each in zip(stores, taken, strict=True):
                store.give_back(each.counts)
            return readings if self._finish is None else self._finish(readings)

        return arrived()

    def _packet(self, layout: Layout, taken: Sequence[Taken]) -> tuple[Packet, set[int]]:
        """Return what all stores have measured, and the indices of the sites that were measured on this rank."""
        main, *others = taken
        rows = main.rows
        if rows is None:
            rows = torch.tensor(empty_row(self._plan.more), dtype=torch.float64, device="cpu").repeat(len(layout), 1)
        elif rows.is_inference():  # as in `trainer.validate`: it could not be changed here
            rows = rows.clone()
        measured, channels, bins = set(main.measured), dict(main.channels), dict[int, Tensor](main.counts)
        table = rows.numpy()
        for found in (main.found, *(part for each in others for part in (each.by_site(), each.found))):
            for index, new in found.items():
                if index in measured:
                    before = SiteNumbers(table[index], channels.get(index), bins.get(index))
                    new = before.joined(new, self._plan.more)
                measured.add(index)
                table[index] = new.row
                # A copy: a reading that is kept must not keep all that came with it.
                channels[index] = None if new.channels is None else torch.as_tensor(new.channels).numpy().copy()
                if new.bins is not None:
                    bins[index] = new.bins
        if self._off:
            # NaN tells the other ranks, which then leave these sites out too.
            rows[[number for number, site in enumerate(layout) if site in self._off]] = math.nan
        by_index = range(len(layout))
        packet = Packet(layout, rows, [*map(channels.get, by_index)], [*map(bins.get, by_index)], *main.along)
        return packet, measured

    def _observe(
        self, slot: Slot, tensor: Tensor, minus: Tensor | None = None, together: dict[int, Waiting] | None = None
    ) -> None:
        """Measure a tensor, or its difference from another; with `together`, a kernel may measure it later.

        If that fails, the site is switched off.
        """
        if self._off and slot.site in self._off:
            return
        try:
            # Nearly every tensor has the form of the one before it at its site: then nothing else is to be checked.
            form = slot.form if self.scale is None else None
            if form is None or form.dtype is not slot.extent.dtype or not self._read(slot, tensor, form, minus):
                self._measure(slot, tensor, minus, together)
        except Exception as error:  # this may be inside a hook: the training goes on
            self.switch_off([slot.site], error)

    def _read(self, slot: Slot, tensor: Tensor, form: Form, minus: Tensor | None) -> bool:
        """Measure a tensor by the compiled kernel, and keep its rows; return False if the kernel cannot."""
        store = self._host  # what has a form is on the CPU
        with self._lock:
            counts = store.counts(slot.index) if slot.extent.has_bins else None
            found = read(tensor, form, with_abs_mean=self._with_abs_mean, counts=counts, minus=minus)
            if found is None:
                return False
            row, channels = found
            if row is None:  # but `read` has counted the bins
                self._keep_measured(slot, tensor if minus is None else tensor - minus, form.dim, None)
            elif form.channels == slot.extent.channels:
                store.rows.append(slot.index, row, NO_CHANNELS if self._channels is None else channels)
            else:
                self._keep(slot, tensor, row, channels, form.channels)
        return True

    def _measure(
        self, slot: Slot, tensor: Tensor, minus: Tensor | None, together: dict[int, Waiting] | None = None
    ) -> None:
        prepared = self._prepared(slot, tensor)
        if prepared is None:
            return
        part, is_whole = prepared
        if minus is not None and minus.device != part.device:
            minus = minus.to(part.device)
        # The part of a DTensor may hold only some of the channels, and other ranks would not know which.
        dim = None if self._channels is None or not is_whole else self._channels(slot.site, part)
        if self._by_kernel(slot, part, dim, minus, together):
            return
        form = slot.form = self._form(slot, part, dim)
        if form is not None and self._read(slot, part, form, minus):
            return
        # Of a difference the whole, if both are split over processes.
        self._by_torch(slot, part if minus is None else tensor, dim, minus)

    def _by_kernel(
        self, slot: Slot, part: Tensor, dim: int | None, minus: Tensor | None, together: dict[int, Waiting] | None
    ) -> bool:
        """Have a kernel of an accelerator measure a tensor, now or with others; return False if none can."""
        store, scale = self._store(part.device), self.scale if slot.traits.is_gradient else None
        with self._lock:  # the streams follow each other in the order of the launches
            store.follow()
            if store.arena is None or self._plan.more:  # the kernels fill the moments alone
                return False
            job = job_of(part if scale is None else unscaled(part, scale), dim, minus)
            if job is None:
                return False
            waiting = Waiting(slot, job, (slot, part, dim, minus))
            if together is None:
                self._launch_alike(store, [waiting])
                return True
            if slot.index in together:  # a launch merges one tensor into a row
                self._launch(together)
            together[slot.index] = waiting
        return True

    def _by_torch(self, slot: Slot, part: Tensor, dim: int | None, minus: Tensor | None) -> None:
        """Measure a tensor, or its difference from another, where no kernel can read it as it is."""
        if minus is None:
            with self._lock:
                counts = self._store(part.device).counts(slot.index) if slot.extent.has_bins else None
                self._keep_measured(slot, part, dim, counts)
            return
        # A block holds only some of the channels.
        blocks = blocks_of(part, minus) if self._channels is None else [(part, minus)]
        for one, less in blocks:
            wide = single_at_least(one.dtype)  # neighbouring weights differ by less than half precision resolves
            self._measure(slot, one.to(wide) - less.to(wide), None)

    def _keep_measured(self, slot: Slot, part: Tensor, dim: int | None, counts: Tensor | None) -> None:
        """Measure a tensor, whose values are added to the bins `counts` unless None, and keep its rows."""
        scale = self.scale if slot.traits.is_gradient else None
        of: dict[str, Any] = {"counts": counts, "moments_only": slot.traits.moments_only, "scale": scale}
        row, channels = measure_channels(part, dim, self._plan, **of)
        self._keep(slot, part, row, channels, 0 if channels is None or dim is None else part.shape[dim])

    def _store(self, device: torch.device) -> Store:
        """Return the store of a device; adds it if it is not there yet."""
        store = self._stores.get(device)
        if store is None:
            with self._lock:
                store = self._stores.setdefault(device, Store(self._plan.more, device))
        return store

    def _prepared(self, slot: Slot, tensor: Tensor) -> tuple[Tensor, bool] | None:
        """Return the part of a tensor that this rank measures, and whether that is the whole; None if no part is."""
        tensor = tensor.detach() if tensor.requires_grad else tensor
        if needs_host(tensor.device):
            tensor = tensor.cpu()
        part: Tensor | None = tensor
        if self._rank or type(tensor) is not Tensor:  # otherwise it is its own part
            of_parameter = slot.traits.of_parameter
            part = own_part(tensor, is_replicated=of_parameter, rank=self._rank)
        if part is None:
            return None
        with self._lock:
            noted = slot.extent.dtype
            if noted is None and not slot.traits.moments_only:
                slot.extent = slot.extent._replace(has_bins=self._wants_bins(slot.site, part))
            # That of the first tensor of a step. Only a site that had one before can have rows: to search takes long.
            if noted is None or (noted is not part.dtype and not self._has_rows(slot)):
                slot.extent = slot.extent._replace(dtype=part.dtype)
        if slot.shape is None:
            slot.shape = shape_of(tensor)
        return part, part is tensor

    def _has_rows(self, slot: Slot) -> bool:
        """Return True if a tensor of a site was measured since the last flush."""
        return any(slot.index in store.indices for store in self._stores.values())

    def _form(self, slot: Slot, part: Tensor, dim: int | None) -> Form | None:
        """Return how the compiled kernel reads the part; None if the kernel cannot do all that is wanted."""
        if self._plan.more or not part.numel() or (self.scale is not None and slot.traits.is_gradient):
            return None
        return form_of(part, dim)

    def _keep(self, slot: Slot, tensor: Tensor, row: Row, channels: ChannelRows | None, width: int) -> None:
        """Keep a tensor's row and those of its channels.

        Args:
            slot: the tensor's site.
            tensor: the tensor.
            row: its row.
            channels: the rows of its channels; None if it has none.
            width: the number of channels, with or without a row; 0 if it has none.
        """
        if self._channels is None or not tensor.numel():
            channels = NO_CHANNELS
        elif channels is not None and width != slot.extent.channels:
            before, slot.extent = slot.extent, slot.extent._replace(channels=width)
            # With as many rows as before, but of other channels, they would be merged with those.
            channels = None if len(channels) == before.rows else channels
        self._store(tensor.device).rows.append(slot.index, row, channels)

    def _slot(self, site: Site) -> Slot:
        """Return the slot of a site; adds it if it is not there yet."""
        with self._lock:
            if site not in self._slots:
                self._slots[site] = Slot(len(self._slots), site)
            return self._slots[site]

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
        is_empty, slots = elements == 0, self._slots
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
            rows[:, :WIDTH].copy(),  # a reading that is kept must not keep all that came with it
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
