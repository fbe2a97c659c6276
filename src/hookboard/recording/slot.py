"""`Slot`: what a recorder knows of one site; and the bins of all of them."""

import math
from collections.abc import Callable, Container, Iterable, Sequence

import torch
from torch import Tensor

from hookboard.measure import BINS, Form, Plan
from hookboard.recording.exchange import Extent
from hookboard.sites import ROLES, Role, Site


class Slot:
    """One site of a recorder. It is asked for every tensor, so that what belongs to a site is found in one place.

    Args:
        index: its number, in the order in which sites came.
        site: the site.
        plan: its statistics.
    """

    __slots__ = ("counts", "extent", "form", "index", "is_decided", "observe", "plan", "shape", "site", "traits")

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
        self.is_decided = False
        """Whether it is known if there is a histogram."""
        self.form: Form | None = None
        """How the compiled kernel read the last tensor; None if it did not."""
        self.shape: tuple[int, ...] | None = None
        """Of its first tensor; None before."""


def shapes_of(slots: Iterable[Slot], role: Role) -> dict[str, tuple[int, ...]]:
    """The shape of the first tensor in this role, by the name of the module or parameter; of several outputs the first.

    Args:
        slots: in the order in which their sites came.
        role: the role.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for slot in slots:
        if slot.site.role == role and slot.shape is not None:
            shapes.setdefault(slot.site.name, slot.shape)
    return shapes


def no_counts(device: torch.device) -> Tensor:
    """Bins that nothing is counted in yet, shape (BINS,), int64."""
    with torch.inference_mode(False):
        return torch.zeros(BINS, dtype=torch.long, device=device)


def take_bins(slots: Sequence[Slot], partly: Container[int], device: torch.device) -> dict[Site, Tensor]:
    """The bins of the sites that have a histogram, float64, which are emptied.

    Args:
        slots: of all sites.
        partly: the numbers of those whose bins are NaN if they have no histogram.
        device: where these are wanted.
    """
    bins: dict[Site, Tensor] = {}
    nothing: Tensor | None = None
    for slot in slots:
        if slot.counts is not None:
            bins[slot.site] = slot.counts.double()
            slot.counts.zero_()
        elif slot.index in partly:
            if nothing is None:
                nothing = torch.full((BINS,), math.nan, dtype=torch.float64, device=device)
            bins[slot.site] = nothing
    return bins
