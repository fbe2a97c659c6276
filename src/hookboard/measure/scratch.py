"""Buffers on the CPU that are reused between calls: new temporaries cost more than the arithmetic."""

import threading

import torch
from torch import Tensor

BLOCK = 1 << 18
"""Elements that are worked on at once: fewer cost more calls, more drive the model out of the cache."""

MOST_VIEWS = 1000
"""Sizes for which the slices are kept: to slice costs as much as to measure a small tensor."""


class _Buffers(threading.local):
    """The buffers of one thread: modules may be called from several at once."""

    def __init__(self) -> None:
        self.by_use: dict[tuple[str, torch.dtype], Tensor] = {}
        self.views: dict[tuple[str, torch.dtype, int], Tensor] = {}


_buffers = _Buffers()


def scratch(purpose: str, dtype: torch.dtype, size: int) -> Tensor:
    """Return an uninitialized CPU tensor of shape (size,), valid until this thread asks for the same purpose again.

    Args:
        purpose: a name; different ones never share memory.
        dtype: of the tensor.
        size: at most `BLOCK`.
    """
    view = _buffers.views.get((purpose, dtype, size))
    if view is None:
        view = _buffers.views[purpose, dtype, size] = _buffer(purpose, dtype, size)[:size]
    return view


def _buffer(purpose: str, dtype: torch.dtype, size: int) -> Tensor:
    """Memory for at least `size` elements; a larger one takes the place of a smaller one."""
    if len(_buffers.views) >= MOST_VIEWS:  # sequences of ever new lengths
        _buffers.views.clear()
    buffer = _buffers.by_use.get((purpose, dtype))
    if buffer is None or buffer.numel() < size:
        # A tensor made under inference_mode could never be written to outside of it.
        with torch.inference_mode(False):
            buffer = _buffers.by_use[purpose, dtype] = torch.empty(size, dtype=dtype, device="cpu")
        _buffers.views = {key: view for key, view in _buffers.views.items() if key[:2] != (purpose, dtype)}
    return buffer


def forget_scratch() -> None:
    """Release the buffers of all threads. Measuring afterwards makes new ones."""
    global _buffers
    _buffers = _Buffers()
