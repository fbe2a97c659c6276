"""`Slot`: what a recorder knows of one site; `Slots`: all of them; and their bins."""

import functools
import math
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from hookboard.measure import BINS, Form, Plan
from hookboard.recording.exchange import Extent, Layout
from hookboard.sites import ROLES, Role, Site


class Slot:
    """One site of a recorder. It is asked for every tensor, so that what belongs to a site is found in one place.

    Args:
        index: its number, in the order in which sites came.
        site: the site.
        plan: its statistics.
    """

    __slots__ = (
        "counts",
        "extent",
        "form",
        "index",
        "is_decided",
        "observe",
        "plan",
        "shape",
        "site",
        "spare",
        "traits",
    )

    observe: Callable[[Tensor], None]
    """Measures a tensor of the site."""

    def __init__(self, index: int, site: Site, plan: Plan) -> None:
        self.index = index
        self.site = site
        self.plan = plan
        self.traits = ROLES[site.role]
        self.extent = Extent()
        """What a packet holds of it."""
        self.counts: Tensor | None = None
        """The bins of the running step; None without a histogram."""
        self.spare: Tensor | None = None
        """Empty bins for the next step; None while they are lent."""
        self.is_decided = False
        """Whether it is known if there is a histogram."""
        self.form: Form | None = None
        """How the compiled kernel read the last tensor; None if it did not."""
        self.shape: tuple[int, ...] | None = None
        """Of its first tensor; None before."""


class Slots:
    """The slots of a recorder, by site. Several threads may add and meet them.

    Args:
        device: where bins are counted.
        plan_of: gives the statistics of a site.
        wants_bins: tells whether a site has a histogram, from its first tensor.
        observe: measures a tensor of a slot.
    """

    def __init__(
        self,
        device: torch.device,
        plan_of: Callable[[Site], Plan],
        wants_bins: Callable[[Site, Tensor], bool],
        observe: Callable[[Slot, Tensor], None],
    ) -> None:
        self.by_site: dict[Site, Slot] = {}
        self.extents: Layout = {}
        """What a packet holds of each."""
        self.met: set[int] = set()
        """The numbers of those of which a tensor came in this step."""
        self._device = device
        self._plan_of = plan_of
        self._wants_bins = wants_bins
        self._observe = observe
        self._changing = threading.Lock()

    def of(self, site: Site) -> Slot:
        """The slot of a site, which is added at the first request."""
        return self.by_site.get(site) or self._add(site)

    def _add(self, site: Site) -> Slot:
        with self._changing:
            if site not in self.by_site:
                slot = Slot(len(self.by_site), site, self._plan_of(site))
                slot.observe = functools.partial(self._observe, slot)
                self.by_site[site] = slot
                self.extents[site] = slot.extent
            return self.by_site[site]

    def meet(self, slot: Slot, tensor: Tensor) -> None:
        """Note a site's first tensor of this step; at the very first, decide whether the site has a histogram."""
        if not slot.is_decided or slot.extent.dtype is not tensor.dtype:
            with self._changing:
                if not slot.is_decided:
                    has_bins = not slot.traits.moments_only and self._wants_bins(slot.site, tensor)
                    slot.counts = no_counts(self._device) if has_bins else None
                    slot.is_decided = True
                    self.resize(slot, slot.extent._replace(has_bins=has_bins))
                self.resize(slot, slot.extent._replace(dtype=tensor.dtype))
        self.met.add(slot.index)

    def resize(self, slot: Slot, extent: Extent) -> None:
        """Change what a packet holds of a site."""
        slot.extent = self.extents[slot.site] = extent

    def take_met(self) -> set[int]:
        """End the step; returns the numbers of the slots of which a tensor came."""
        met, self.met = self.met, set()
        return met

    def shapes(self, role: Role) -> dict[str, tuple[int, ...]]:
        """The shape of the first tensor in a role, by module or parameter; of several outputs that of the first."""
        shapes: dict[str, tuple[int, ...]] = {}
        for slot in list(self.by_site.values()):
            if slot.site.role == role and slot.shape is not None:
                shapes.setdefault(slot.site.name, slot.shape)
        return shapes

    def forget_shapes(self) -> None:
        """Note the shapes anew, and where the channels are."""
        for slot in list(self.by_site.values()):
            slot.shape = slot.form = None

    def lend_bins(self, met: Iterable[int]) -> dict[int, Tensor]:
        """The bins of those of some slots that have a histogram, int64, by number: until `give_back`, or for ever.

        Args:
            met: the numbers of the slots.
        """
        slots = list(self.by_site.values())
        lent: dict[int, Tensor] = {}
        for slot in (slots[number] for number in met):
            if slot.counts is not None:
                lent[slot.index] = slot.counts
                slot.counts, slot.spare = no_counts(self._device) if slot.spare is None else slot.spare, None
        return lent

    def give_back(self, lent: Mapping[int, Tensor]) -> None:
        """Empty these bins for the next step. Memory that is fresh costs as much as to count them."""
        slots = list(self.by_site.values())
        for number, counts in lent.items():
            slots[number].spare = counts.zero_()

    def take_bins(self, sites: Sequence[Site], partly: Container[int], device: torch.device) -> dict[Site, Tensor]:
        """The bins of those of some sites that have a histogram, float64, which are emptied.

        Args:
            sites: the sites.
            partly: the numbers of the slots whose bins are NaN if they have no histogram.
            device: where the bins are wanted.
        """
        bins: dict[Site, Tensor] = {}
        nothing: Tensor | None = None
        for slot in (self.by_site[site] for site in sites):
            if slot.counts is not None:
                bins[slot.site] = slot.counts.double()
                slot.counts.zero_()
            elif slot.index in partly:
                if nothing is None:
                    nothing = torch.full((BINS,), math.nan, dtype=torch.float64, device=device)
                bins[slot.site] = nothing
        return bins


def no_counts(device: torch.device) -> Tensor:
    """Bins that nothing is counted in yet, shape (BINS,), int64."""
    with torch.inference_mode(False):
        return torch.zeros(BINS, dtype=torch.long, device=device)
