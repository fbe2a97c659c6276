"""`Slot`: what a recorder knows of one site, such as its dtype and bins; `Slots`: the slots of all sites."""

import threading
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import BINS, Form, Plan
from hookboard.recording.packet import Extent, Layout
from hookboard.sites import ROLES, Role, Site


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
        """Return the shape of the first tensor in a role, by module or parameter name; of several sites, the first."""
        shapes: dict[str, tuple[int, ...]] = {}
        for slot in list(self.by_site.values()):
            if slot.site.role == role and slot.shape is not None:
                shapes.setdefault(slot.site.name, slot.shape)
        return shapes

    def forget_shapes(self) -> None:
        """Forget the shapes and forms of all slots, because modules were replaced: the next tensors set them again."""
        for slot in list(self.by_site.values()):
            slot.shape = slot.form = None

    def lend_bins(self, measured: Iterable[int]) -> dict[int, Tensor]:
        """Return the filled bins of some slots by index, int64, without a copy; the slots go on with empty bins.

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
        """Empty lent bins, given in the order of the slots, and keep them for the next step: fresh memory is slower."""
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
