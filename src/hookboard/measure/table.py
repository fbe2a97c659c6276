"""`Table`: what one due step has measured. Hooks fill it; `send` copies it to the host and merges it over the ranks."""

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hookboard.base.messages import warn_switched_off
from hookboard.base.ranks import Ranks, local, own_part
from hookboard.measure import native
from hookboard.measure.by_torch import values_of, widened, with_memory
from hookboard.measure.memory import can_subtract, is_plain, measuring_device
from hookboard.measure.row import FIELDS, Places, Readings, histogram
from hookboard.measure.slab import Agreement, Measured, Slab, Slot
from hookboard.measure.statistics import Plan, joined, own_numbers
from hookboard.model.nested import shape_of
from hookboard.model.sites import Role, Site, Stage

_MIN, _MAX = map(FIELDS.index, ("min", "max"))

MOST_READERS = 256  # kinds of tensors of a site whose readers are kept: graphs have another size at each step


class Table:
    """Measures the tensors of any number of sites, in any thread, over steps; `send` takes what one of them has left.

    Args:
        device: where most tensors are; each site is measured where its first tensor is.
        histogram: whether to count histograms too, or a function that tells it for a site and its first tensor.
        channels: tells the dimension that holds the channels, if they are to be measured one by one too.
        part: returns what is measured of a parameter, its gradient or its update.
        opened: called with each site before its first tensor; hooks open theirs while the forward pass runs.
        ranks: those with which to merge; every rank must then take what each `send` returns. None: nothing is merged.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        stage: Stage = "train",
        histogram: bool | Callable[[Site, Tensor], bool] = False,
        channels: Callable[[Site, Tensor], int | None] | None = None,
        part: Callable[[Tensor], Tensor] = lambda parameter: parameter,
        opened: Callable[[Site], object] = lambda site: None,
        ranks: Ranks | None = None,
    ) -> None:
        self.stage: Stage = stage
        self.scale: Tensor | None = None  # that gradients carry now, shape (), by which they are divided
        self._plan, self._histogram, self._channels = plan, histogram, channels
        self.part, self._opened = part, opened
        self._device = measuring_device(device)
        self._slots: dict[Site, Slot] = {}
        self._slabs = {self._device: Slab(self._device, plan)}  # a model may span several devices
        self._lock = threading.RLock()
        """Held while a tensor is measured, and while all is taken: it is wholly in this step or wholly in the next."""
        self._agreement = None if ranks is None else Agreement(ranks, plan)
        self._places = Places([])

    def open(self, site: Site) -> Callable[[Tensor], None]:
        """Return a function that measures a tensor of this site; it warns once if that fails, and does nothing then."""
        return functools.partial(self._observe, self._slot(site))

    def observe_all(self, tensors: Iterable[tuple[Site, Tensor, Tensor | None]]) -> None:
        """Measure many tensors, less the third of a triple (of the part that is measured), in float32 at least."""
        with self._lock:
            for site, tensor, minus in tensors:
                self._observe(self._slots.get(site) or self._slot(site), tensor, minus)

    def switch_off(self, sites: Sequence[Site], error: Exception) -> None:
        """Leave these sites out from now on; one warning names the first of them and the error."""
        for site in sites:
            self._slot(site).is_off = True
        warn_switched_off(f"{sites[0].role} of {sites[0].path!r}", error)

    def is_off(self, name: str, role: Role) -> bool:
        """Return True if measuring this role of this module or parameter has failed, on any rank."""
        return any(slot.is_off and (site.name, site.role) == (name, role) for site, slot in [*self._slots.items()])

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """Return, by name, the shape measured of each module or parameter in a role: of its first site that has one."""
        shapes: dict[str, tuple[int, ...]] = {}
        for site, slot in [*self._slots.items()]:
            if site.role == role and slot.shape is not None:
                shapes.setdefault(site.name, slot.shape)
        return shapes

    def forget_shapes(self) -> None:
        """Forget shapes and readers, because modules were replaced; the next tensors set them again."""
        for slot in [*self._slots.values()]:
            slot.shape = None
            slot.readers.clear()

    def forget(self) -> None:
        """Drop what was measured since the last `send`. It does not wait for the device."""
        with self._lock:
            for slot in self._slots.values():  # its rows stay its own
                slot.has_rows = slot.is_mixed = False
                slot.dtype = slot.own = None
            for slab in self._slabs.values():
                slab.forget()

    def send(self, flags: Tensor | None = None, along: Tensor | None = None) -> Callable[[], Readings]:
        """Take what was measured since the last call, and start its copy to the host; return what waits for it.

        That merges over the ranks, so what was sent first must be fetched first; it raises a `RanksLostError` if a rank
        has left. `flags` and `along`, of one dimension, on any device, become those of the readings.
        """
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.has_rows and not slot.is_off]
            sent = [
                slab.send([slot for slot in slots if slot.slab is slab], (flags, along))
                for slab in self._slabs.values()
            ]
            self.forget()
        if self._device.type == "cpu":
            native.report_missing_kernel()

        def wait_and_merge() -> Readings:
            read = [copied() for copied in sent]
            found = functools.reduce(Measured.followed_by, (of_slab for of_slab, _ in read))
            all_flags, numbers = read[0][1]
            if self._agreement is not None:
                found, all_flags = self._agreement.merged(found, self._slots, all_flags)
            return self._readings(found, all_flags, numbers)

        return wait_and_merge

    def _slot(self, site: Site) -> Slot:
        with self._lock:
            if site not in self._slots:
                self._slots[site] = Slot(site)
                self._opened(site)
            return self._slots[site]

    # A look measures a thousand tensors: what they all go through calls little.
    def _observe(self, slot: Slot, tensor: Tensor, minus: Tensor | None = None) -> None:
        if slot.is_off:
            return
        try:
            with self._lock:
                if self.scale is not None and slot.traits.is_gradient:
                    tensor = self._without_scale(slot, tensor, self.scale)
                key, slab = _key_of(tensor, minus), slot.slab
                reader = slot.readers.get(key)
                if reader is None or slab is None:
                    self._measure_anew(slot, tensor, minus, key)
                    return
                if not tensor.data_ptr():
                    with_memory(tensor)
                width, form, form_of_all, is_copied = reader
                if is_copied:
                    tensor = self.part(tensor)
                if slot.start < 0 or slot.width != width:
                    slab.place(slot, width)
                slot.dtype = slot.dtype or tensor.dtype
                if self._plan.own:
                    self._measure_own(slot, tensor)
                slab.measure(slot, form_of_all if slot.is_mixed else form, tensor, minus)
        except Exception as error:  # this may be inside a hook: the training goes on
            self.switch_off([slot.site], error)

    def _without_scale(self, slot: Slot, gradient: Tensor, scale: Tensor) -> Tensor:
        """Return a gradient divided by the scale that it carries, and note its dtype."""
        self._slabs[self._device].follow()  # which refuses to become a part of a CUDA graph
        slot.dtype = slot.dtype or gradient.dtype
        return widened(gradient.detach()) / scale.to(gradient.device)

    def _measure_own(self, slot: Slot, tensor: Tensor) -> None:
        if self._plan.own and not slot.traits.moments_only and tensor.numel():
            own = own_numbers(self._plan.own, tensor)
            slot.own = own if slot.own is None else joined(self._plan.own, slot.own, own)

    def _measure_anew(self, slot: Slot, whole: Tensor, minus: Tensor | None, key: object) -> None:
        """Find out how to read a tensor, and measure it; what a kernel reads as it is needs that only once."""
        # Its part first, as of its copy from before the step: a parameter of a subclass may become a plain tensor.
        tensor = self.part(whole) if slot.traits.of_parameter else whole
        tensor = tensor.detach() if tensor.requires_grad else tensor
        part = own_part(tensor, of_parameter=slot.traits.of_parameter)
        if part is None:
            return
        is_whole = part is tensor
        slot.is_shared |= not is_whole
        device = measuring_device(part.device) if slot.slab is None else slot.slab.device
        part = part if part.device == device else part.to(device)
        numbers = values_of(part)
        if device not in self._slabs:
            self._slabs[device] = Slab(device, self._plan)
        slab = slot.slab = self._slabs[device]
        slab.follow()
        slot.shape = shape_of(tensor) if slot.shape is None else slot.shape
        if slot.has_bins is None:
            wants = self._plan.needs("bins") or self._histogram
            slot.has_bins = not slot.traits.moments_only and (wants(slot.site, part) if callable(wants) else wants)
        slot.dtype = slot.dtype or part.dtype
        self._measure_own(slot, part)
        is_sparse = part.layout is not torch.strided and not part.is_nested
        if not numbers.numel():
            if is_sparse and part.numel():
                slab.place(slot, 0)
                slab.add_zeros(slot, part.numel())
            return
        # The part of a DTensor may hold only some of the channels, and other ranks would not know which.
        dim = self._channels(slot.site, part) if self._channels is not None and is_whole and numbers is part else None
        dim = dim if dim is not None and 0 <= dim < part.dim() else None

        def form_of(numbers: Tensor, dim: int | None) -> Any:
            how = {"has_minus": minus is not None, "with_abs_mean": self._plan.with_abs_mean}
            return None if slab.kernel is None else slab.kernel.form_of(numbers, dim, **how)

        form = form_of(numbers, dim) if minus is None or (numbers is part and can_subtract(minus, part)) else None
        if form is None and minus is not None:
            numbers, minus = values_of(widened(part) - widened(local(minus).to(slab.device))), None
            form = form_of(numbers, dim)
        if form is None and slab.kernel is not None:
            numbers = widened(numbers).contiguous()
            form = form_of(numbers, dim)
        width = 0 if dim is None else numbers.shape[dim]
        slab.place(slot, width)
        if form is not None:
            of_all = form if dim is None else form_of(numbers, None)
            if key is not None and numbers is tensor:
                if len(slot.readers) >= MOST_READERS:
                    slot.readers.clear()
                slot.readers[key] = width, form, of_all, tensor.data_ptr() != whole.data_ptr()
            slab.measure(slot, of_all if slot.is_mixed else form, numbers, minus)
        else:
            slab.measure_by_torch(slot, numbers, dim)
        if is_sparse:
            slab.add_zeros(slot, part.numel() - numbers.numel())

    def _readings(self, found: Measured, flags: Sequence[float], along: Sequence[float]) -> Readings:
        slots, rows, own, channels, bins, dtypes, widths = found
        sites = [slot.site for slot in slots]
        if self._places.sites != sites:
            self._places = Places(sites)
        drawn = [
            None if counts is None or not self._histogram else histogram(counts, row[_MIN], row[_MAX])
            for counts, row in zip(bins, rows, strict=True)
        ]
        of_sites = rows, channels, dtypes, widths, self._plan.values(rows, own, bins, channels, dtypes), drawn
        return Readings(self._places, *of_sites, self.stage, flags, along)


def _key_of(tensor: Tensor, minus: Tensor | None) -> object:
    """Return what decides how a tensor is read; None if it, or what is subtracted, is not plain."""
    if not is_plain(tensor):
        return None
    key = tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg()
    if minus is None:
        return key
    return (key, minus.shape, minus.stride(), minus.dtype, minus.device) if is_plain(minus) else None
