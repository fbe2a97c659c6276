"""`hear_backward`: has a listener called at each backward pass that a thread begins, until `unhear_backward`."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Listener = Callable[[Callable[[], None], Sequence[Tensor]], None]
"""Is called in place of a backward pass, with a function that runs it, and with the losses."""

_listeners: list[tuple[int, Listener]] = []
"""Threads, and who listens to their backward passes. `torch.autograd.backward` is replaced while there are any."""

_ours: Any = None
"""What was put in place of `torch.autograd.backward` last; that is its `__wrapped__`."""

_changing, _in_backward = threading.Lock(), threading.local()


def hear_backward(listener: Listener) -> None:
    """Call a listener at each backward pass of this thread from now on.

    All threads share one replacement: with one each, the thread that ends last would put back that of another.
    """
    global _ours
    with _changing:
        _listeners.append((threading.get_ident(), listener))
        if _ours is None or torch.autograd.backward is not _ours:
            _ours = torch.autograd.backward = _heard(torch.autograd.backward)


def unhear_backward(listener: Listener) -> None:
    """Call a listener no longer; it may be called again, as after an interrupt in the middle of it."""
    with _changing:
        _listeners[:] = [one for one in _listeners if one[1] != listener]
        # If somebody else has replaced it since, theirs stays: it calls ours, which passes all on without listeners.
        if not _listeners and torch.autograd.backward is _ours:
            torch.autograd.backward = vars(_ours)["__wrapped__"]


def _heard(real: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `torch.autograd.backward`: the backward pass runs through this thread's listeners."""

    @functools.wraps(real)
    def backward(tensors: Any, *args: Any, **named: Any) -> None:
        run: Callable[[], None] = functools.partial(real, tensors, *args, **named)
        listeners = [one for thread, one in _listeners if thread == threading.get_ident()]
        # Activation checkpointing calls `backward` again inside that of the loss.
        if not listeners or vars(_in_backward):
            return run()
        given = tensors if isinstance(tensors, list | tuple) else [tensors]
        losses = [one for one in given if isinstance(one, Tensor)]
        _in_backward.is_inside = True
        try:
            for listener in listeners:
                run = functools.partial(listener, run, losses)
            run()
        finally:
            del _in_backward.is_inside

    return backward
