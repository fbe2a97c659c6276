"""One flag for a call of our own: hookboard runs the model once more, as for class-activation maps.

While such a call runs, taps observe nothing. Edits apply, but each uses a copy of its rule, so that the call leaves no
trace: a rule that draws noise goes on afterwards where it was.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class _Calls(threading.local):
    """The calls of our own that this thread runs, the innermost last: for each, what is used in place of what."""

    def __init__(self) -> None:
        self.spares: list[dict[int, tuple[Any, Any]]] = []


_calls = _Calls()


@contextmanager
def own_call() -> Iterator[None]:
    """Mark what this thread runs inside the context as a call of our own. Contexts may be nested."""
    _calls.spares.append({})
    try:
        yield
    finally:
        _calls.spares.pop()


def is_own_call() -> bool:
    """Whether this thread runs a call of our own."""
    return bool(_calls.spares)


def spare_of(original: T, make_copy: Callable[[T], T]) -> T:
    """The copy that the running call of our own uses in place of `original`.

    It is made when the call first asks, and is the same until the call ends.

    Args:
        original: what is to stay as it is.
        make_copy: copies it with its state.
    """
    current = original
    for spares in _calls.spares:  # an inner call goes on from the outer call's copy
        if id(current) not in spares:
            spares[id(current)] = current, make_copy(current)
        current = spares[id(current)][1]
    return current
