"""`Streams`: what was measured on several CUDA streams is merged on one, in the right order."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class Streams:
    """The CUDA streams on which tensors were measured. Without CUDA it does nothing. Several threads may use it.

    The host waits for none of them: they wait for each other.
    """

    def __init__(self) -> None:
        self._used: set[torch.cuda.Stream] = set()
        self._merged: torch.cuda.Event | None = None
        """Behind the last merge."""

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
        """Inside, the current stream may read what all others have written; behind it, they may write there again."""
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
