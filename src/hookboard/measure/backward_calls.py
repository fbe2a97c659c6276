"""`hearing_backward`: calls a listener at each backward pass that a thread begins."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Listener = Callable[[Callable[[], None], Sequence[Tensor]], None]
"""Is called in place of a backward pass, with a function that runs it, and with the losses."""

_listeners: dict[int, list[Listener]] = {}
"""The listeners to the backward passes of each thread. `torch.autograd.backward` is replaced while there are any."""

_replaced: Any = torch.autograd.backward
"""The function that stood in `torch.autograd.backward` before it was replaced."""

_changing, _in_backward = threading.Lock(), threading.local()


@contextmanager
def hearing_backward(listener: Listener) -> Iterator[None]:
    """Call a listener at each backward pass of this thread.

    All threads share one replacement: with one each, the thread that ends last would put back that of another.
    """
    global _replaced
    here = threading.get_ident()
    with _changing:
        if not _listeners:
            _replaced, torch.autograd.backward = torch.autograd.backward, _backward
        _listeners.setdefault(here, []).append(listener)
    try:
        yield
    finally:
        with _changing:
            _listeners[here].remove(listener)
            if not _listeners[here]:
                del _listeners[here]
            # If somebody else has replaced it since, theirs stays: it calls ours, which passes all on without
            # listeners.
            if not _listeners and torch.autograd.backward is _backward:
                torch.autograd.backward = _replaced


@functools.wraps(torch.autograd.backward)
def _backward(tensors: Any, *args: Any, **named: Any) -> None:
    """Stand in for `torch.autograd.backward`: the backward pass runs through this thread's listeners."""
    run: Callable[[], None] = functools.partial(_replaced, tensors, *args, **named)
    listeners = _listeners.get(threading.get_ident(), ())
    # Activation checkpointing calls `backward` again inside that of the loss.
    if not listeners or vars(_in_backward):
        return run()
    given = tensors if isinstance(tensors, list | tuple) else [tensors]
    losses = [one for one in given if isinstance(one, Tensor)]
    _in_backward.is_inside = True
    try:
        for listener in list(listeners):
            run = functools.partial(listener, run, losses)
        run()
    finally:
        del _in_backward.is_inside
