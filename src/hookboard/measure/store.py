"""`Store`: what a recorder keeps of the tensors of one device between two flushes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookboard.base.jobs import Steps
from hookboard.base.torch_private import stream_number
from hookboard.measure.arena import Arena, new_bins
from hookboard.measure.card import has_kernels
from hookboard.measure.columns import Columns
from hookboard.measure.packet import SiteNumbers, sent_together
from hookboard.measure.rows import RowBuffer


class Taken(NamedTuple):
    """What a store has measured since the last flush, on the host.

    Args:
        rows: the merged rows of what was kept row by row, float64; None if nothing was.
        measured: the sites that have such rows.
        channels: of some of these sites, the merged rows of their channels; None if they have none in common.
        counts: the bins of some of these sites, to be given back; others are in `found`.
        found: what is in the arena, by site.
    """

    rows: Tensor | None
    measured: set[int]
    channels: dict[int, np.ndarray | None]
    counts: dict[int, Tensor]
    found: dict[int, SiteNumbers]
    along: list[Tensor]

    def by_site(self) -> dict[int, SiteNumbers]:
        """Return what was kept row by row, by site."""
        if self.rows is None:
            return {}
        rows = self.rows.numpy()
        return {
            index: SiteNumbers(rows[index], self.channels.get(index), self.counts.get(index)) for index in self.measured
        }


class Store:
    """What a recorder keeps of the tensors of one device: rows, rows of channels, and bins.

    On an accelerator, kernels merge what they can read into an `Arena`, which has the bins of all. All else, and all on
    the CPU, is a row for each tensor.
    """

    def __init__(self, more: Sequence[Columns], device: torch.device) -> None:
        self.device = device
        self.arena = Arena(device) if device.type != "cpu" or has_kernels(device) else None
        self.rows = RowBuffer(more, device)
        """What was measured otherwise than into the arena."""
        self._counts: dict[int, Tensor] = {}
        """The bins of the running step by site, where there is no arena."""
        self._spare: dict[int, Tensor] = {}
        """Empty bins for the next step: fresh memory is slower."""
        self._streams: dict[int, torch.cuda.Stream] = {}
        """The streams on which tensors were measured since the last flush, by number."""
        self._last: int | None = None
        """The number of the one that was in use last."""

    @property
    def indices(self) -> set[int]:
        """The indices of the sites that were measured since the last flush."""
        return self.rows.indices if self.arena is None else self.rows.indices | self.arena.indices

    @property
    def is_empty(self) -> bool:
        """True if nothing was measured since the last flush."""
        return not (self.rows.kept or (self.arena is not None and self.arena.indices))

    def follow(self) -> None:
        """Have the current stream wait for the one before it, so that launches run in the order in which they are made.

        Call it before a tensor is measured. It does nothing without CUDA.

        Raises:
            TypeError: a CUDA graph is being captured: what is launched would become a part of it.
        """
        if self.device.type != "cuda":
            return
        if torch.cuda.is_current_stream_capturing():
            raise TypeError("a CUDA graph is being captured, so its tensors have no values yet")
        number = stream_number(self.device)
        if number != self._last:
            # By their numbers: up to torch 2.11 at least, neither `==` nor `!=` is true of a stream and None.
            stream = torch.cuda.current_stream(self.device)
            if self._last is not None:
                stream.wait_stream(self._streams[self._last])
                self._streams.pop(number, None)
            self._streams[number], self._last = stream, number

    def counts(self, index: int) -> Tensor:
        """Return the bins of a site, shape (BINS,), int64."""
        if self.arena is not None:
            return self.arena.counts(index)
        counts = self._counts.get(index)
        if counts is None:
            counts = self._spare.pop(index, None)
            counts = new_bins(1, self.device)[0] if counts is None else counts
            self._counts[index] = counts
        return counts

    def send(self, sites: int, along: Sequence[Tensor]) -> Steps["Taken"]:
        """Start the copy of what was measured, and of `along`, to the host. No thread may measure meanwhile."""
        streams = self._join_streams()
        kept, parts = self.rows.take(), list[Tensor](along)
        measured = {index for index, _, _ in kept}
        counts = {index: self._counts.pop(index) for index in [*self._counts] if index in measured}
        has_rows = bool(kept) or self.arena is None
        if has_rows:
            parts.append(self.rows.rows(kept, sites))
        channels = self.rows.channels(kept)
        parts += [rows for rows in channels.values() if isinstance(rows, Tensor)]
        of_arena, contents = ([], None) if self.arena is None else self.arena.sent()
        arrived = sent_together([*parts, *of_arena])
        if self.arena is not None:
            self.arena.clear()
        # What they launch next is merged into the memory that is being copied.
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(self.device))

        def taken() -> Steps[Taken]:
            copies = iter((yield from arrived))
            of_others = [next(copies) for _ in along]
            rows = next(copies) if has_rows else None
            # A copy: a reading that is kept must not keep page-locked memory.
            own = {i: next(copies).numpy().copy() if isinstance(each, Tensor) else each for i, each in channels.items()}
            in_arena, found, bins_of = list(copies), dict[int, SiteNumbers](), counts
            if contents is not None:
                found = contents.found(in_arena)
                of_site = {index: contents.bins(index, in_arena) for index in measured - found.keys()}
                bins_of = {index: bins for index, bins in of_site.items() if bins is not None}
            return Taken(rows, measured, own, bins_of, found, of_others)

        return taken()

    def forget(self) -> None:
        """Drop what was measured since the last flush. No thread may measure meanwhile."""
        self.rows.take()
        self.give_back(self._counts)
        self._counts = {}
        if self.arena is not None:
            self._join_streams()
            self.arena.clear()

    def _join_streams(self) -> list[torch.cuda.Stream]:
        """Have the current stream wait for the others on which tensors were measured; return these."""
        if not self._streams:
            return []
        current, self._last = torch.cuda.current_stream(self.device), stream_number(self.device)
        others = [stream for number, stream in self._streams.items() if number != self._last]
        self._streams = {self._last: current}
        for stream in others:
            current.wait_stream(stream)
        return others

    def give_back(self, counts: Mapping[int, Tensor]) -> None:
        """Zero bins that were taken, and keep them for the next step. Bins of an arena are copies, and are dropped."""
        if self.arena is not None:
            return
        for index, each in counts.items():
            self._spare[index] = each.zero_()
