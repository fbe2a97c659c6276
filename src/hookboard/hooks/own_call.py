"""A flag for calls of our own: calls of the model that hookboard makes itself, as for class-activation maps.

While such a call runs, taps observe nothing. Edits apply, but with copies of their rules, so that the call leaves no
trace: a rule that draws noise afterwards continues where it was.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class _Calls(threading.local):
    """The calls of our own that this thread runs, the innermost last: id of an original to (original, copy)."""

    def __init__(self) -> None:
        self.spares: list[dict[int, tuple[Any, Any]]] = []


running = _Calls()
"""What `is_own_call` asks. In a hook that costs a call less."""


@contextmanager
def own_call() -> Iterator[None]:
    """Mark what this thread runs inside the context as a call of our own. Contexts may be nested."""
    running.spares.append({})
    try:
        yield
    finally:
        running.spares.pop()


def is_own_call() -> bool:
    """Whether this thread runs a call of our own."""
    return bool(running.spares)


def spare_of(original: T, make_copy: Callable[[T], T]) -> T:
    """The copy that the running call of our own uses in place of `original`.

    The copy is made at the first request, and is the same until the call ends.

    Args:
        original: the object that must not change.
        make_copy: copies the object with its state.
    """
    current = original
    for spares in running.spares:  # an inner call goes on from the outer call's copy
        if id(current) not in spares:
            spares[id(current)] = current, make_copy(current)
        current = spares[id(current)][1]
    return current
