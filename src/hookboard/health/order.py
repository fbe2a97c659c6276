"""The order in which layers run."""

from collections.abc import Iterable, Sequence


def with_late_ones(order: Iterable[str], late: Iterable[str], defined: Sequence[str]) -> list[str]:
    """The order in which layers ran first, with those that came later put where the model defines them.

    Args:
        order: the names of those that ran at first, in their order.
        late: names, of which some may be in `order`.
        defined: all names, in the order of the model.

    >>> with_late_ones(["c", "a"], ["b"], ["a", "b", "c"])
    ['c', 'a', 'b']
    """
    order = list(order)
    for name in late:
        if name not in order:
            earlier = defined[: defined.index(name)]
            place = max((order.index(other) for other in earlier if other in order), default=-1)
            order.insert(place + 1, name)
    return order
