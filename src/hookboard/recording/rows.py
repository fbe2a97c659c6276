"""Rows of tensors and of their channels, in the order in which they come, until they are merged."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hookboard.measure import (
    WIDTH,
    ChannelRows,
    Columns,
    Row,
    Statistic,
    empty_row,
    merge_rows,
    tell_of_compiling,
    tell_of_missing_kernel,
    width_of,
)

MOST_ROWS = 4096
"""How many rows are kept at most before those of each owner are merged, as in a long validation loop. Of wider
rows it is as many as take the same memory."""

MOST_PARTS = 1 << 18
"""The same for rows of parts, which an accelerator writes without merging them: 20 MB."""

MOST_CALLS = 16
"""How many calls of a site are kept before their rows are merged."""

Kept = tuple[int, Row] | tuple[int, Row, ChannelRows | None]
"""The index of a site and a row of it; and those of its channels, until they are handed on."""

T = TypeVar("T")


class Streams:
    """The CUDA streams on which tensors were measured. Without CUDA it does nothing. Several threads may use it.

    The host waits for none of them: they wait for each other.
    """

    def __init__(self) -> None:
        self._used: set[torch.cuda.Stream] = set()
        self._merged: torch.cuda.Event | None = None
        """After the last merge."""

    def note(self, tensor: Tensor) -> None:
        """Note the stream on which this tensor is now measured; it first waits for the last merge."""
        if not tensor.is_cuda:
            return
        stream = torch.cuda.current_stream(tensor.device)
        # To wait for something outside would break the capture of a CUDA graph.
        if stream in self._used or torch.cuda.is_current_stream_capturing():
            return
        if self._merged is not None:
            stream.wait_event(self._merged)
        self._used.add(stream)

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Inside, the current stream may read what all others have written; after it, they may write there again."""
        used = list(self._used)
        if not used:
            yield
            return
        current = torch.cuda.current_stream(used[0].device)
        others = [stream for stream in used if stream != current]
        for stream in others:
            current.wait_stream(stream)
        yield
        self._merged = current.record_event()
        for stream in others:
            stream.wait_event(self._merged)


class RowBuffer:
    """Rows in the order they came. Several threads may append.

    Args:
        more: what follows the moments in a row.
        device: where the rows are merged.
    """

    def __init__(self, more: Sequence[Columns | Statistic], device: torch.device) -> None:
        self.device = device
        self.streams = Streams()
        """Those on which the rows are made."""
        self._more = more
        self._nothing = empty_row(more)
        self.kept: list[Kept] = []
        """Each row with the index of its site, and where they are wanted the rows of its channels: in one piece, so
        that no flush comes between."""
        self._least = MOST_ROWS * WIDTH // (WIDTH + width_of(more))
        self.on_channels: Callable[[Sequence[tuple[int, ChannelRows | None]]], object] | None = None
        """Takes the rows of channels, each with its owner's index, from one thread at a time; None if nobody does."""
        self._most = self._least
        self._parts = 0
        """Rows of parts since the last merge."""
        self._merging = threading.Lock()

    def __len__(self) -> int:
        """How many rows are kept."""
        return len(self.kept)

    @property
    def owners(self) -> set[int]:
        """Those of which there is a row."""
        return {each[0] for each in self.kept}

    def hand_on(self) -> None:
        """Hand on the rows of channels."""
        with self._merging:
            self._known()

    def append(self, owner: int, row: Row, *channels: ChannelRows | None) -> None:
        """Keep a row.

        Args:
            owner: the index of the site that the row belongs to.
            row: WIDTH + width_of(more) numbers; or rows of parts, shape (n, WIDTH + width_of(more)).
            channels: the rows of its channels, None for a tensor without; left out where nobody asks for them.
        """
        # Needs no lock: it is one step for the interpreter.
        self.kept.append((owner, row, channels[0]) if channels else (owner, row))
        if isinstance(row, Tensor) and row.dim() == 2:
            with self._merging:
                self._parts += len(row)
        if len(self.kept) >= self._most or self._parts >= MOST_PARTS:
            self._merge_early()

    def take(self, channels: Callable[[], T]) -> tuple[list[tuple[int, Row]], T]:
        """Empty the buffer.

        Args:
            channels: takes the rows of channels that have been handed on; no thread hands on others meanwhile.

        Returns:
            The rows, for `merged`; and what `channels` gives: of the same tensors.
        """
        with self._merging:
            rows = self._known()
            del self.kept[: len(rows)]  # others may have come after them
            self._parts = 0
            return rows, channels()

    def merged(self, rows: list[tuple[int, Row]], owners: int) -> Tensor:
        """Merge rows that were taken.

        Args:
            rows: what `take` has given.
            owners: how many owners there are.

        Returns:
            The row of each, shape (owners, WIDTH + width_of(more)), float64, on the device. An owner without rows gets
            the row of an empty tensor.
        """
        if not owners:
            return torch.empty(0, WIDTH + width_of(self._more), dtype=torch.float64, device=self.device)
        if self.device.type == "cpu":
            tell_of_missing_kernel()
        else:
            tell_of_compiling()
        return self._merged(rows, owners)

    def _merge_early(self) -> None:
        with self._merging:
            if len(self.kept) < self._most and self._parts < MOST_PARTS:  # another thread has done it
                return
            rows = self._known()
            self._parts = 0
            owners = sorted({each[0] for each in rows})
            merged = self._merged(rows, owners[-1] + 1)
            each = merged.tolist() if merged.is_cpu else merged.unbind()
            self.kept[: len(rows)] = [(owner, each[owner]) for owner in owners]
            self._most = max(self._least, 2 * len(owners))

    def _known(self) -> list[tuple[int, Row]]:
        """Return the rows until now; those of channels have been handed on. It is called with the lock."""
        known = self.kept[:]
        if self.on_channels is None:
            return known  # type: ignore[return-value]  # nobody appends others
        rows = [each[:2] for each in known]
        self.kept[: len(known)] = rows
        self.on_channels([(each[0], each[2]) for each in known if len(each) == 3])
        return rows

    def _merged(self, rows: list[tuple[int, Row]], owners: int) -> Tensor:
        with self.streams.joined():
            row_of = dict(rows)
            sizes = [len(row) if isinstance(row, Tensor) and row.dim() == 2 else 1 for _, row in rows]
            total = sum(sizes)
            if len(row_of) == total:  # there is nothing to merge
                return self._block([row_of.get(owner, self._nothing) for owner in range(owners)])
            # Short enough that the host does not wait until they are copied.
            owner, size = self._on_device(torch.tensor([[owner for owner, _ in rows], sizes], device="cpu"))
            if total != len(rows):
                owner = owner.repeat_interleave(size, output_size=total)
            return merge_rows(self._block([row for _, row in rows]), owner, owners, self._more)

    def _block(self, rows: Sequence[Row]) -> Tensor:
        """One matrix of the rows, which are tensors where they were measured on another device than the CPU."""
        if Tensor in map(type, rows):
            each = [self._on_device(torch.as_tensor(row, dtype=torch.float64)) for row in rows]
            return torch.cat([row if row.dim() == 2 else row[None] for row in each])
        return self._on_device(torch.from_numpy(np.array(rows, np.float64)))

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


class ChannelBuffer:
    """The rows of the channels of each site. Several threads may append.

    Args:
        device: where they are merged.
        streams: those on which the rows are made.
    """

    def __init__(self, device: torch.device, streams: Streams | None = None) -> None:
        self._device = device
        self._streams = streams or Streams()
        self._calls: dict[int, list[ChannelRows]] = {}
        self._unlike: set[int] = set()
        self._lock = threading.Lock()

    def extend(self, rows: Iterable[tuple[int, ChannelRows | None]]) -> None:
        """Keep the rows of some calls.

        Args:
            rows: the index of the site of each call, and the rows; None if the call had no channels. If it had none,
                or another number of them than the calls before, the site has none until the next `take`.
        """
        with self._lock:
            for owner, part in rows:
                calls = self._calls.setdefault(owner, [])
                if owner in self._unlike:
                    continue
                if part is None or (calls and calls[0].shape != part.shape):
                    self._unlike.add(owner)
                    calls.clear()
                    continue
                calls.append(part)
                if len(calls) >= MOST_CALLS:
                    with self._streams.joined():
                        calls[:] = self._merged([calls])

    def take(self) -> dict[int, ChannelRows | None]:
        """Empty the buffer; returns the merged rows of each owner, None where its calls had no channels in common."""
        if not self._calls:
            return {}
        with self._lock:
            calls, self._calls = self._calls, {}
            unlike, self._unlike = self._unlike, set()
        with self._streams.joined():
            merged = iter(self._merged([each for owner, each in calls.items() if owner not in unlike]))
        return {owner: None if owner in unlike else next(merged) for owner in calls}

    def _merged(self, sites: Sequence[list[ChannelRows]]) -> list[ChannelRows]:
        """Return the merged rows of the calls of each site; all sites in one merge, however many there are."""
        several = [calls for calls in sites if len(calls) > 1]
        parts = iter(self._merged_together(several) if several else ())
        return [
            next(parts)
            if len(calls) > 1
            else calls[0]
            if isinstance(calls[0], np.ndarray)
            else _on(self._device, calls[0])
            for calls in sites
        ]

    def _merged_together(self, sites: Sequence[list[ChannelRows]]) -> Sequence[Tensor]:
        rows = [each for calls in sites for each in calls]
        counts = [len(calls[0]) for calls in sites]
        owner, start = [], 0
        for calls, channels in zip(sites, counts, strict=True):
            owner += len(calls) * [np.arange(start, start + channels)]
            start += channels
        if self._device.type == "cpu":
            block = torch.from_numpy(np.concatenate(rows))  # it takes tensors of the CPU too
        else:
            block = torch.cat([_on(self._device, each) for each in rows])
        merged = merge_rows(block, _on(self._device, np.concatenate(owner)), start, ())
        return list(torch.split(merged, counts))


def _on(device: torch.device, rows: ChannelRows) -> Tensor:
    tensor = rows if isinstance(rows, Tensor) else torch.from_numpy(rows)
    return tensor.to(device, non_blocking=True)
