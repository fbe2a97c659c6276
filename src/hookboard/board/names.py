"""The order of names: as they ran, where that is known, otherwise by numbers and letters."""

import re
from collections.abc import Iterable, Sequence

Natural = tuple[tuple[bool, int, str], ...]


def natural(name: str) -> tuple[Natural, str]:
    """The sort key that takes numbers within names as numbers.

    >>> sorted(["layers.10", "layers.9", "head"], key=natural)
    ['head', 'layers.9', 'layers.10']
    """
    parts = re.split(r"([0-9]+)", name)
    # Python reads no number of more than 4,300 digits.
    return tuple((True, int(p), "") if i % 2 and len(p) < 4000 else (False, 0, p) for i, p in enumerate(parts)), name


def merged(orders: Iterable[Sequence[str]]) -> list[str]:
    """All names of several lists; a name that only a later list has follows the one before it there.

    >>> merged([["a", "b", "e"], ["b", "c", "d"], ["z"]])
    ['a', 'b', 'c', 'd', 'e', 'z']
    """
    result: list[str] = []
    for order in orders:
        places = {name: i for i, name in enumerate(result)}
        last, behind = len(result) - 1 if not set(order) & set(places) else -1, dict[int, list[str]]()
        for name in dict.fromkeys(order):
            if name in places:
                last = places[name]
            else:
                behind.setdefault(last, []).append(name)
        result = [*behind.get(-1, []), *(n for i, name in enumerate(result) for n in (name, *behind.get(i, [])))]
    return result
