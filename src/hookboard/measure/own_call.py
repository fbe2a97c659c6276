"""Marks calls of the model that hookboard makes itself ("own calls"), such as those for class-activation maps.

While such a call runs, taps observe nothing. Edits apply, but with copies of their rules, so that the call leaves no
trace: a rule that draws noise afterwards continues where it was. This holds in every thread, because a model may call
its modules in threads of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Spares(dict[int, tuple[Any, Any]]):
    """The id of an original to (original, copy). It equals itself alone."""

    __eq__ = object.__eq__


own_calls: list[_Spares] = []
"""One for each running own call, the innermost last."""


@contextmanager
def own_call() -> Iterator[None]:
    """Mark all calls of a model inside the context as made by hookboard itself. Contexts may be nested."""
    spares = _Spares()
    try:
        own_calls.append(spares)
        yield
    finally:
        # Not by `pop`: calls in several threads end in any order. In place, because taps hold this very list.
        own_calls.remove(spares)


def as_own_call(run: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a function inside `own_call`, of which nothing is left whenever Ctrl-C comes."""
    spares = _Spares()
    try:
        own_calls.append(spares)
        return run(*args, **named)
    finally:
        own_calls.remove(spares)


def is_own_call() -> bool:
    """Return True if hookboard itself is calling a model, in any thread; see `own_call`."""
    return bool(own_calls)


def spare_of(original: T, make_copy: Callable[[T], T]) -> T:
    """Return the copy that the running own call uses in place of `original`; without an own call, `original` itself.

    The copy is made at the first request, and is the same until the call ends.

    Args:
        original: the object that must not change.
        make_copy: copies the object with its state.
    """
    current = original
    for spares in own_calls:  # an inner call copies the copy of the outer one
        if id(current) not in spares:
            spares[id(current)] = current, make_copy(current)
        current = spares[id(current)][1]
    return current
