"""`Plant`: a fault, where it may be planted, and the truth about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.health.training import Setup

Where = str | Sequence[str]
"""Dotted names within the net of the layers that are a right place to name."""

WHOLE = "<whole>"
"""The place of a fault of the whole model: the model itself, or the first layer, where a chain of sick ones starts."""

WHOLE_BACKWARD = "<whole, backward>"
"""The same of a fault of gradients, which go from the last layer to the first: the model, the last or the first."""


@dataclass(frozen=True)
class Plant:
    """A fault.

    Args:
        name: its name.
        put: plants it in a setup, and returns where it lies.
        bases: the bases that it is planted in.
        causes: the rules that are a right name of it, as an engineer who knows would say; none if no rule can be.
        onset: the first and the last step at which it may be said to begin.
        by_itself: whether it is a defect whatever the loss does.
    """

    name: str
    put: Callable[[Setup], Where]
    bases: tuple[str, ...]
    causes: frozenset[str]
    onset: tuple[int, int]
    by_itself: bool


PLANTS: dict[str, Plant] = {}
"""Every plant by name."""


def plant(
    on: str, causes: str, onset: int | tuple[int, int] = 0, by_itself: bool = False
) -> Callable[[Callable[[Setup], Where]], Callable[[Setup], Where]]:
    """Register a function that plants a fault.

    Args:
        on: the names of bases, with spaces between.
        causes: the names of rules, with spaces between.
        onset: the step at which it begins, or the first and last at which it may.
        by_itself: whether it is a defect whatever the loss does.
    """

    def register(put: Callable[[Setup], Where]) -> Callable[[Setup], Where]:
        span = onset if isinstance(onset, tuple) else (onset, onset)
        PLANTS[put.__name__] = Plant(put.__name__, put, tuple(on.split()), frozenset(causes.split()), span, by_itself)
        return put

    return register


def places(setup: Setup, where: Where) -> frozenset[str]:
    """The names, as seen from the task, of the modules that are a right place."""
    named = [where] if isinstance(where, str) else list(where)
    found: set[str] = set()
    for name in named:
        if name in (WHOLE, WHOLE_BACKWARD):
            found |= {"", f"net.{setup.layers[0]}"}
            found |= {f"net.{setup.layers[-1]}"} if name == WHOLE_BACKWARD else set()
        else:
            found.add(f"net.{name}")
    return frozenset(found)
