"""The rows of all sites: gathered on the device, merged, and brought to the host in one transfer."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hookboard.hooks.compiled import Measuring, Slots, Traced, unscaled
from hookboard.measure import (
    BINS,
    FIELDS,
    REQUESTABLE,
    WIDTH,
    Histogram,
    Moments,
    Plan,
    elements_in,
    measure,
    merge_rows,
)
from hookboard.measure import histogram as histogram_of
from hookboard.messages import warn_switched_off
from hookboard.ranks import Ranks, own_part
from hookboard.recording.rows import RowBuffer
from hookboard.sites import MOMENTS_ONLY, Role, Site, Stage


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one site after a step.

    Args:
        site: what was measured.
        moments: of all tensors that passed the site during the step, as if they were one.
        statistics: name to value, as they are logged.
        histogram: of the finite values, where histograms are on.
        stage: in which the tensors passed.
        overflowed: whether the gradients of the step were too large for their type under the scale of a GradScaler,
            which then skips the step. `statistics` holds the counts of such a step, and NaN for all else.
    """

    site: Site
    moments: Moments
    statistics: dict[str, float]
    histogram: Histogram | None
    stage: Stage = "train"
    overflowed: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no tensor that passed had an element."""
        return not (self.moments.count or self.moments.nonfinite)


class Recorder:
    """Measures the tensors of any number of sites and merges what belongs to one step.

    Args:
        plan: the statistics to measure.
        device: where the rows are kept.
        stage: in which it measures.
        histogram: whether to count histograms too.
        ranks: the processes that train this model together; None where there is one.
        sync: whether they merge what they measured: then every one of them must call each flush.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        stage: Stage = "train",
        histogram: bool = False,
        ranks: Ranks | None = None,
        sync: bool = True,
    ) -> None:
        self.stage: Stage = stage
        self._plan = plan.with_histogram() if histogram else plan
        self._measuring = Measuring(self._plan.wanted, plan.own)
        self._not_measured = [FIELDS.index(field) for field in REQUESTABLE - self._measuring.wanted]
        self._rows = RowBuffer(plan.own, device)
        self._traced = Traced((), self._measuring, device, histogram=histogram)
        self._observers: dict[Site, Callable[[Tensor], None]] = {}
        self._histogram = histogram
        self._counts: dict[Site, Tensor] = {}
        self._ranks = ranks
        self._sync = sync and ranks is not None
        self._agreed: tuple[list[Site], int] = ([], 0)
        self._has_failed = False
        self._off: set[Site] = set()

    def open(self, site: Site) -> Callable[[Tensor], None]:
        """The function that measures a tensor of this site; the site is added when it is first asked for.

        If measuring fails, that function says so once, and from then on does nothing.
        """
        if site not in self._observers:
            self._observers[site] = self._add(site)
        return self._observers[site]

    def _add(self, site: Site) -> Callable[[Tensor], None]:
        index = len(self._observers)
        moments_only = site.role in MOMENTS_ONLY
        counts = self._counts_of(site) if self._has_histogram(site) else None
        is_replicated = site.role.startswith("parameter")
        is_scaled = site.role in ("grad_output", "grad_input")

        def observe(tensor: Tensor) -> None:
            if site in self._off:
                return
            try:
                tensor = tensor.detach() if tensor.requires_grad else tensor
                if self._ranks is not None:
                    part = own_part(tensor, is_replicated=is_replicated, rank=self._ranks.rank, is_merged=self._sync)
                    if part is None:
                        return
                    tensor = part
                if is_scaled and self._measuring.scale is not None:
                    tensor = unscaled(tensor, self._measuring.scale)
                row = measure(tensor, self._plan, counts=counts, moments_only=moments_only)
                self._rows.append(index, row)
            except Exception as error:
                self._off.add(site)
                warn_switched_off(f"{site.role} of {site.path!r}", error)

        return observe

    def _has_histogram(self, site: Site) -> bool:
        return self._histogram and site.role not in MOMENTS_ONLY

    def _counts_of(self, site: Site) -> Tensor:
        if site not in self._counts:
            with torch.inference_mode(False):
                self._counts[site] = torch.zeros(BINS, dtype=torch.long, device=self._rows.device)
        return self._counts[site]

    def trace(self, sites: Collection[tuple[str, Role]]) -> dict[tuple[str, Role], Slots]:
        """The rows of these modules and roles for the compiled graphs that measure them; to be asked for once."""
        with torch.inference_mode(False):
            self._traced = Traced(sites, self._measuring, self._rows.device, histogram=self._histogram)
        return self._traced.slots

    def set_scale(self, scale: Tensor) -> None:
        """From now on the gradients of modules come multiplied with `scale`, of shape ()."""
        if self._measuring.scale is None:
            self._measuring.scale = scale.detach().clone()
        else:
            self._measuring.scale.copy_(scale)

    def give_up(self) -> bool:
        """Whether this rank must stay until the next flush, which tells the others that it measures no more."""
        stays, self._has_failed = self._sync and not self._has_failed, True
        return stays

    def is_off(self, name: str, role: Role) -> bool:
        """Whether measuring this role of this module or parameter has failed, on any rank."""
        return any((site.name, site.role) == (name, role) for site in self._off)

    def flush(self, next_scale: Tensor | None = None) -> list[Reading]:
        """Merge what was measured since the last flush and forget it.

        Args:
            next_scale: the scale that the GradScaler has chosen for the next step: less than the last one where
                gradients have overflowed.

        Returns:
            A reading for every site that measured a tensor, on any rank if they merge.

        Raises:
            RuntimeError: a rank has given up: the ranks can no longer merge.
        """
        owners = set(self._rows.owners)
        measured = {site for index, site in enumerate(self._observers) if index in owners}
        if not (measured or Traced.most_tensors() or self._sync):
            return []
        readings = []
        table, overflowed = self._to_host(next_scale)
        for site, row, bins in table:
            if math.isnan(row[0]):  # it failed, here or on another rank: the rest is not the whole
                self._off.add(site)
                continue
            if site not in measured and not elements_in(torch.from_numpy(row)):
                continue
            row[self._not_measured] = math.nan
            numbers = row.tolist()
            moments = Moments(*numbers[:WIDTH])
            histogram = None if bins is None else histogram_of(bins, moments.min, moments.max)
            values = self._plan.values(moments, numbers[WIDTH:])
            if overflowed:
                values, histogram = _counts_alone(values, moments), None
            readings.append(Reading(site, moments, values, histogram, self.stage, overflowed))
        return readings

    def _to_host(self, next_scale: Tensor | None) -> tuple[list[tuple[Site, np.ndarray, np.ndarray | None]], bool]:
        """The merged row of each site, its bins where there are some, and whether the step overflowed.

        All in one transfer.
        """
        local = list(self._observers)
        rows, owner = self._rows.take()
        merged = merge_rows(rows, owner, len(local) + 1, self._plan.own)  # the last is the empty row
        for index, site in enumerate(local):
            if site in self._off:
                merged[index] = math.nan
        overflowed = rows.new_zeros(1)
        if next_scale is not None and self._measuring.scale is not None:
            overflowed += next_scale < self._measuring.scale

        while True:
            sites, most = self._agreed if self._sync else (local, Traced.most_tensors())
            rows = torch.cat([_in_order(merged, local, sites), self._traced.rows(most)])
            layouts = self._traced.layouts(most)
            counted = [site for site in sites if self._has_histogram(site)]
            bins = [*map(self._counts_of, counted), *self._traced.counts(most)]
            counts = torch.cat(bins).double() if bins else rows.new_empty(0)
            status = overflowed.new_zeros(1)
            if self._sync:
                status += math.nan if self._has_failed else not self._agreed_on(local)
            packed = [status, overflowed, layouts, rows.flatten(), counts]
            if self._sync:
                packed = self._over_ranks(packed, rows.shape)
            host = torch.cat(packed).cpu().numpy()
            if math.isnan(host[0]):
                self._has_failed = True
                raise RuntimeError("another rank has stopped measuring")
            if not host[0]:
                break
            self._agree(local)

        for each in self._counts.values():
            each.zero_()
        if most:
            self._traced.clear()
        numbers, table, all_bins = np.split(host[2:], np.cumsum([layouts.numel(), rows.numel()]))
        table = table.reshape(rows.shape)
        counted += self._traced.counted(numbers, most)
        sites = [*sites, *self._traced.named(numbers, most)]
        bins_of = _summed(zip(counted, all_bins.reshape(-1, BINS), strict=True))
        if len(set(sites)) < len(sites):  # a module that ran compiled and not, in one step
            whole = list(dict.fromkeys(sites))
            into = torch.tensor([whole.index(site) for site in sites])
            table = merge_rows(torch.from_numpy(table), into, len(whole), self._plan.own).numpy()
            sites = whole
        return [(site, row, bins_of.get(site)) for site, row in zip(sites, table, strict=True)], bool(host[1])

    def _agreed_on(self, sites: list[Site]) -> bool:
        return set(sites) <= set(self._agreed[0]) and Traced.most_tensors() <= self._agreed[1]

    def _agree(self, sites: list[Site]) -> None:
        """Have all ranks lay out their rows alike: only what lies in the same place can be merged."""
        assert self._ranks is not None
        items = self._ranks.union([*self._agreed[0], *sites, Traced.most_tensors()])
        known = [item for item in items if isinstance(item, Site)]
        self._agreed = known, max(item for item in items if isinstance(item, int))

    def _over_ranks(self, packed: list[Tensor], shape: torch.Size) -> list[Tensor]:
        """The same parts of all ranks together."""
        assert self._ranks is not None
        *mine, counts = packed
        each, counts = self._ranks.gather_and_sum(torch.cat(mine), counts)
        status, overflowed, layouts, rows = each.split([part.numel() for part in mine], dim=1)
        owner = torch.arange(shape[0], device=rows.device).repeat(self._ranks.size)
        merged = merge_rows(rows.reshape(-1, shape[1]), owner, shape[0], self._plan.own)
        return [status.sum(0), overflowed.amax(0), layouts.amax(0), merged.flatten(), counts]


def _in_order(rows: Tensor, given: list[Site], wanted: list[Site]) -> Tensor:
    """The rows of the given sites, and behind them the empty one, as those of the wanted sites."""
    if given == wanted:
        return rows[:-1]
    place = {site: index for index, site in enumerate(given)}
    order = torch.tensor([place.get(site, len(given)) for site in wanted], dtype=torch.long, device=rows.device)
    return rows[order]


def _counts_alone(values: dict[str, float], moments: Moments) -> dict[str, float]:
    """The statistics of a step that overflowed: nobody shall take them for those of a step that was made."""
    counts = {"nonfinite_count": moments.nonfinite}
    return {name: value if name.endswith("_count") else math.nan for name, value in values.items()} | counts


def _summed(counts: Iterable[tuple[Site, np.ndarray]]) -> dict[Site, np.ndarray]:
    found: dict[Site, np.ndarray] = {}
    for site, bins in counts:
        found[site] = found[site] + bins if site in found else bins
    return found
