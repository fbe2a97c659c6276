"""Merges that take several rounds: what is added up in one may depend on what was found in the one before.

They are generators, so that the same formula merges rows within a process (`by_owner`) and over processes (`Ranks`).
"""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeVar

from torch import Tensor

T = TypeVar("T")

Kind = Literal["sum", "max"]
Part = tuple[Kind, Tensor]
"""Numbers, and how those of several rows or ranks are combined into one. With "max" they are never NaN."""

Merging = Generator[Sequence[Part], Sequence[Tensor], T]
"""A merge: in each round it yields parts, and gets the same numbers combined, a row for each result, in their order."""


def parts_of(merging: Merging[T], combined: Sequence[Tensor] | None) -> tuple[Sequence[Part] | None, T | None]:
    """Go on with a merge, given the combined numbers of the last round (None before the first).

    Returns the parts of the next round, and None; after the last round, None and what the merge returns.
    """
    try:
        return merging.send(combined), None  # type: ignore[arg-type]  # only the first time it is None
    except StopIteration as end:
        return None, end.value


def run(merging: Merging[T], combine: Callable[[Kind, Tensor], Tensor]) -> T:
    """Return what a merge returns, with this function to combine the numbers of each part."""
    parts, found = parts_of(merging, None)
    while parts is not None:
        parts, found = parts_of(merging, [combine(kind, numbers) for kind, numbers in parts])
    return found  # type: ignore[return-value]  # after the last round it is there


def by_owner(owner: Tensor, owners: int) -> Callable[[Kind, Tensor], Tensor]:
    """Return the function that combines the rows of each owner, for `run`."""

    def combine(kind: Kind, numbers: Tensor) -> Tensor:
        shape = owners, numbers.shape[1]
        if kind == "sum":
            return numbers.new_zeros(shape).index_add_(0, owner, numbers)
        lowest = numbers.new_full(shape, -math.inf)
        return lowest.scatter_reduce_(0, owner[:, None].expand(numbers.shape), numbers, "amax")

    return combine


def together(*merges: Merging[Any]) -> Merging[list[Any]]:
    """Run merges side by side, in as many rounds as the longest of them takes; return what each returns."""
    found: list[Any] = [None] * len(merges)
    given: dict[int, Sequence[Tensor] | None] = dict.fromkeys(range(len(merges)))
    while given:
        asked: dict[int, Sequence[Part]] = {}
        for number, combined in given.items():
            parts, found[number] = parts_of(merges[number], combined)
            if parts is not None:
                asked[number] = parts
        answers = iter((yield [part for parts in asked.values() for part in parts]) if asked else ())
        given = {number: [next(answers) for _ in parts] for number, parts in asked.items()}
    return found


def once(kind: Kind, numbers: Tensor) -> Merging[Tensor]:
    """Combine numbers in one round."""
    (combined,) = yield [(kind, numbers)]
    return combined
