"""`Arena`: the rows and bins of sites on an accelerator, which kernels merge tensors into."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.base.torch_private import keep_for_stream
from hookboard.measure.card import has_kernels
from hookboard.measure.histogram import BINS
from hookboard.measure.memory import can_subtract
from hookboard.measure.packet import SiteNumbers
from hookboard.measure.row import WIDTH


class Job(NamedTuple):
    """A tensor that the kernels can read, less those of `minus`; its channels lie along `dim`."""

    values: Tensor
    minus: Tensor | None
    dim: int | None
    channels: int
    rows: int


def job_of(tensor: Tensor, dim: int | None, minus: Tensor | None) -> Job | None:
    """Return how the kernels read a detached tensor, or a copy; None if they cannot."""
    if not has_kernels(tensor.device):
        return None
    from hookboard.measure import on_gpu  # it imports Triton

    values = on_gpu.readable(tensor, dim)
    if values is None or not (minus is None or can_subtract(minus, values)):
        return None
    form = on_gpu.form_of(values, dim, has_bins=False, has_minus=False, with_abs_mean=True)
    return None if form is None else Job(values, minus, dim, form.channels, form.rows)


def new_rows(count: int, device: torch.device) -> Tensor:
    """Return memory for rows, shape (count, WIDTH), float64."""
    # A tensor made under inference_mode could not be changed in place outside of it.
    with torch.inference_mode(False):
        return torch.empty((count, WIDTH), dtype=torch.float64, device=device)


def new_bins(count: int, device: torch.device) -> Tensor:
    """Return empty bins of some sites, shape (count, BINS), int64."""
    with torch.inference_mode(False):
        return torch.zeros((count, BINS), dtype=torch.int64, device=device)


class RowsAt(NamedTuple):
    """The rows of a site: where they begin in a slab, that of the site first, then those of its channels."""

    slab: int
    start: int
    channels: int
    rows: Tensor


class Contents(NamedTuple):
    """Where the numbers of the sites are in what an arena sends to the host: slabs of rows, then those of bins.

    Args:
        bins_of: by site, where its bins are: the slab, and the row in it.
        has_common: by site that was measured, whether all its tensors had the same channels.
    """

    slabs: int
    places: dict[int, RowsAt]
    bins_of: dict[int, tuple[int, int]]
    has_common: dict[int, bool]

    def found(self, copies: Sequence[Tensor]) -> dict[int, SiteNumbers]:
        """Return what was measured of each site, from the copies on the host."""
        # As arrays: to take a part of a tensor takes ten times as long.
        slabs, result = [copy.numpy() for copy in copies[: self.slabs]], {}
        for index, is_common in self.has_common.items():
            place = self.places[index]
            own = slabs[place.slab][place.start : place.start + place.rows.shape[0]]
            result[index] = SiteNumbers(
                own[0], own[1:] if is_common and place.channels else None, self.bins(index, copies)
            )
        return result

    def bins(self, index: int, copies: Sequence[Tensor]) -> Tensor | None:
        """Return the bins of a site, shape (BINS,); None if it has none."""
        if index not in self.bins_of:
            return None
        slab, row = self.bins_of[index]
        return copies[self.slabs + slab][row]


class Slabs:
    """Memory for the rows, or bins, of sites: one tensor of at least `least` rows, and further ones when it is full."""

    def __init__(self, new: Callable[[int], Tensor], least: int) -> None:
        self._new = new
        self._least = least
        self.parts: list[Tensor] = []
        self.used: list[int] = []

    def take(self, count: int) -> tuple[int, int]:
        """Return where `count` rows next to each other are free: the index of the tensor, and of the first row."""
        if not self.parts or self.used[-1] + count > len(self.parts[-1]):
            self.parts.append(self._new(max(self._least, count, sum(map(len, self.parts)))))
            self.used.append(0)
        start = self.used[-1]
        self.used[-1] += count
        return len(self.parts) - 1, start

    def filled(self) -> list[Tensor]:
        """Return the used rows of each tensor."""
        return [part[:used] for part, used in zip(self.parts, self.used, strict=True)]

    def join(self, count: int) -> bool:
        """If there are several tensors, replace them by one of `count` rows, and return True."""
        if len(self.parts) < 2:
            return False
        for part in self.parts:
            keep_for_stream(part)
        self.parts, self.used = [self._new(max(self._least, count))], [0]
        return True


class Arena:
    """The rows and bins of sites on an accelerator. Each tensor is merged into those of its site by one launch.

    So calls of a module need no memory of their own, and a flush is a copy of a few tensors, however many sites there
    are. One thread at a time may use it.
    """

    def __init__(self, device: torch.device) -> None:
        self._rows = Slabs(lambda count: new_rows(count, device), 512)
        self._bins = Slabs(lambda count: new_bins(count, device), 8)
        self._places: dict[int, RowsAt] = {}
        self._bins_of: dict[int, tuple[int, int]] = {}
        self._has_common: dict[int, bool] = {}
        """Of each site measured since the last flush, whether all its tensors had the same channels."""

    @property
    def indices(self) -> set[int]:
        """The indices of the sites that were measured since the last flush."""
        return set(self._has_common)

    def measure(self, jobs: Sequence[tuple[int, Job, bool]], *, with_abs_mean: bool) -> Sequence[int]:
        """Merge tensors of different sites into their rows and bins, in a few launches.

        A job is the index of a site, the tensor, and whether to count bins. Returns those that could not be measured.
        """
        from hookboard.measure import on_gpu  # it imports Triton

        placed: list[tuple[tuple[int, int | None], on_gpu.Job]] = []
        missing, alike = {*range(len(jobs))}, dict[tuple[int, int | None], list[int]]()
        try:
            for number, (index, job, has_bins) in enumerate(jobs):
                parts, channels, start, is_fresh, bin_row = self._place(index, job, has_bins)
                flags = {"has_bins": has_bins, "has_minus": job.minus is not None, "with_abs_mean": with_abs_mean}
                form = on_gpu.form_of(job.values, job.dim if channels else None, **flags)
                assert form is not None  # it is readable
                placed.append((parts, (form, job.values, job.minus, start, is_fresh, bin_row)))
                alike.setdefault(parts, []).append(number)
            for (rows, bins), some in alike.items():
                own = self._rows.parts[rows], None if bins is None else self._bins.parts[bins]
                failed = {some[n] for n in on_gpu.measure_into([placed[n][1] for n in some], *own)}
                missing -= {*some} - failed
        finally:
            for number in missing:
                if number < len(placed) and placed[number][1][4]:
                    self._has_common.pop(jobs[number][0])
        return sorted(missing)

    def counts(self, index: int) -> Tensor:
        """Return the bins of a site, shape (BINS,), int64."""
        place = self._bins_of.get(index)
        if place is None:
            place = self._bins_of[index] = self._bins.take(1)
        return self._bins.parts[place[0]][place[1]]

    def _place(self, index: int, job: Job, has_bins: bool) -> tuple[tuple[int, int | None], int, int, bool, int]:
        """Return the slabs of rows and bins, the channels, the first row, whether it is fresh, and the row of bins."""
        place, has_begun = self._places.get(index), index in self._has_common
        channels = job.channels
        if place is None or (not has_begun and place.channels != channels):
            slab, start = self._rows.take(job.rows)
            place = RowsAt(slab, start, channels, self._rows.parts[slab][start : start + job.rows])
            self._places[index] = place
        # Before anything says that the rows are filled: memory may lack for the bins.
        if has_bins:
            self.counts(index)
        if not has_begun:
            self._has_common[index] = True
        elif place.channels != channels:
            self._has_common[index], channels = False, 0
        bins, bin_row = self._bins_of[index] if has_bins else (None, -1)
        return (place.slab, bins), channels, place.start, not has_begun, bin_row

    def sent(self) -> tuple[list[Tensor], "Contents"]:
        """Return the tensors to copy to the host, and what finds the numbers of each site in the copies.

        `clear` must be called once the copies have been ordered.
        """
        rows, bins = self._rows.filled(), self._bins.filled()
        # Triton's interpreter runs on the CPU, where nothing is copied.
        parts = [part.clone() if part.is_cpu else part for part in (*rows, *bins)]
        return parts, Contents(len(rows), self._places.copy(), self._bins_of.copy(), self._has_common)

    def clear(self) -> None:
        """Forget what was measured. Memory that grew is joined, for as many rows as were measured now."""
        rows = sum(self._places[index].rows.shape[0] for index in self._has_common)
        # Rows need not be emptied: the first tensor of a site overwrites them (`is_fresh`).
        self._has_common = {}
        if self._rows.join(rows):
            self._places = {}
        if self._bins.join(len(self._bins_of)):
            self._bins_of = {}
        else:
            for part in self._bins.parts:
                part.zero_()
