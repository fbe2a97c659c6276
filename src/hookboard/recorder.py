"""The rows of all sites: gathered on the device, merged, and brought to the host in one transfer."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hookboard import histogram as histograms
from hookboard.histogram import Histogram
from hookboard.moments import FIELDS, REQUESTABLE, Moments, Row, Scratch, measure, merge
from hookboard.sites import Role, Site, warn_switched_off
from hookboard.statistics import Plan, Statistic, measure_own, merge_own
from hookboard.values import real_values

WIDTH = len(FIELDS)

ELEMENTS = [FIELDS.index(field) for field in ("count", "nan", "posinf", "neginf")]
"""The columns that add up to the number of elements."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one site after a step.

    Args:
        site: what was measured.
        moments: of all tensors that passed the site during the step, as if they were one.
        statistics: name to value, as they are logged.
        histogram: of the finite values, where histograms are on.
    """

    site: Site
    moments: Moments
    statistics: dict[str, float]
    histogram: Histogram | None

    @property
    def is_empty(self) -> bool:
        """Whether no tensor that passed had an element."""
        return not (self.moments.count or self.moments.nonfinite)


class Recorder:
    """Measures the tensors of any number of sites and merges what belongs to one step.

    Args:
        plan: the statistics to measure.
        device: where the rows are kept.
        histogram: whether to count histograms too.
    """

    def __init__(self, plan: Plan, device: torch.device, *, histogram: bool = False) -> None:
        self._plan = plan
        self._wanted = plan.wanted | ({"mean", "m2"} if histogram else set())
        self._scratch = Scratch()
        self._not_measured = [FIELDS.index(field) for field in REQUESTABLE - self._wanted]
        self._rows = _RowBuffer(WIDTH + len(plan.own), device)
        self._observers: dict[Site, Callable[[Tensor], None]] = {}
        self._histogram = histogram
        self._counts: dict[int, Tensor] = {}
        self._off: set[tuple[str, Role]] = set()

    def open(self, site: Site, *, moments_only: bool = False) -> Callable[[Tensor], None]:
        """The function that measures a tensor of this site; the site is added when it is first asked for.

        If measuring fails, that function says so once, and from then on does nothing.

        Args:
            site: what the tensors belong to.
            moments_only: leave out the user's own statistics and the histogram.
        """
        if site not in self._observers:
            self._observers[site] = self._add(site, moments_only)
        return self._observers[site]

    def _add(self, site: Site, moments_only: bool) -> Callable[[Tensor], None]:
        index = len(self._observers)
        own = () if moments_only else self._plan.own
        counts = None
        if self._histogram and not moments_only:
            with torch.inference_mode(False):
                counts = torch.zeros(histograms.BINS, dtype=torch.long, device=self._rows.device)
            self._counts[index] = counts
        is_off = False

        def observe(tensor: Tensor) -> None:
            nonlocal is_off
            if is_off:
                return
            try:
                self._record(index, tensor.detach() if tensor.requires_grad else tensor, own, counts)
            except Exception as error:
                is_off = True
                self._off.add((site.name, site.role))
                warn_switched_off(f"{site.role} of {site.path!r}", error)

        return observe

    def is_off(self, name: str, role: Role) -> bool:
        """Whether measuring this role of this module or parameter has failed."""
        return (name, role) in self._off

    def _record(self, index: int, tensor: Tensor, own: tuple[Statistic, ...], counts: Tensor | None) -> None:
        values, implicit_zeros = real_values(tensor)
        row = measure(values, implicit_zeros, self._wanted, self._scratch)
        numbers = measure_own(own, tensor) if own else None
        if counts is not None:
            histograms.count_into(counts, values, implicit_zeros, self._scratch)
        self._rows.append(index, row, numbers)

    def flush(self) -> list[Reading]:
        """Merge what was measured since the last flush and forget it.

        Returns:
            A reading for every site that measured a tensor, in the order the sites were opened.
        """
        measured = set(self._rows.owners)
        if not measured:
            return []
        merged, counts = self._to_host()
        merged[:, self._not_measured] = math.nan
        lines = merged.tolist()
        readings = []
        for index, site in enumerate(self._observers):
            if index not in measured:
                continue
            moments = Moments(*lines[index][:WIDTH])
            statistics = self._plan.values(moments, lines[index][WIDTH:])
            histogram = None
            if index in counts:
                histogram = histograms.histogram(counts[index], moments.min, moments.max)
            readings.append(Reading(site, moments, statistics, histogram))
        return readings

    def _to_host(self) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """The merged rows, one for each site, and the histograms' counts: in one transfer."""
        rows, owner = self._rows.take()
        sites = len(self._observers)
        merged = merge(rows[:, :WIDTH], owner, sites)
        if self._plan.own:
            elements = rows[:, ELEMENTS].sum(1)
            own = merge_own(self._plan.own, rows[:, WIDTH:], elements, owner, sites)
            merged = torch.cat([merged, own], dim=1)
        packed = merged
        if self._counts:
            packed = torch.cat([merged.flatten(), *(counts.double() for counts in self._counts.values())])
            for counts in self._counts.values():
                counts.zero_()
        host = packed.cpu().numpy().ravel()
        bins = host[merged.numel() :].reshape(-1, histograms.BINS)
        return host[: merged.numel()].reshape(merged.shape), dict(zip(self._counts, bins, strict=True))


class _RowBuffer:
    """Rows in the order they came, in preallocated memory on the device that grows by doubling."""

    def __init__(self, width: int, device: torch.device, capacity: int = 256) -> None:
        self.device = device
        self.owners: list[int] = []
        self._width = width
        self._blocks: list[Tensor] = []
        self._slots: list[Tensor | np.ndarray] = []
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        with torch.inference_mode(False):
            block = torch.empty(capacity, self._width, dtype=torch.float64, device=self.device)
        self._blocks.append(block)
        # A numpy row takes floats as they are; a tensor row would need them made into a tensor first.
        self._slots.extend(block.numpy() if self.device.type == "cpu" else block.unbind())

    def append(self, owner: int, moments: Row, own: Tensor | None) -> None:
        if len(self.owners) == len(self._slots):
            self._grow(len(self._slots))
        slot = self._slots[len(self.owners)]
        if isinstance(slot, Tensor):
            slot[:WIDTH] = torch.as_tensor(moments, dtype=torch.float64)
        else:
            slot[:WIDTH] = moments
        if self._width > WIDTH:
            slot[WIDTH:] = math.nan if own is None else own
        self.owners.append(owner)

    def take(self) -> tuple[Tensor, Tensor]:
        """The rows and their owners, to be used before the next is appended; the buffer is empty afterwards."""
        rows = (torch.cat(self._blocks) if len(self._blocks) > 1 else self._blocks[0])[: len(self.owners)]
        owner = torch.tensor(self.owners, dtype=torch.long).to(self.device, non_blocking=True)
        self.owners.clear()
        return rows, owner
