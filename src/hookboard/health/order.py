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
    there = set(order)
    missing = [name for name in dict.fromkeys(late) if name not in there]
    if missing:
        places = {name: place for place, name in enumerate(defined)}
        for name in missing:
            own = places[name]
            behind = [place for place, other in enumerate(order, 1) if places.get(other, own) < own]
            order.insert(behind[-1] if behind else 0, name)
    return order
