"""`Control`: a healthy training that looks sick to somebody."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.health.training import Setup


@dataclass(frozen=True)
class Control:
    """A healthy configuration.

    Args:
        name: its name.
        change: makes it of a setup.
        bases: the bases that it is made of.
    """

    name: str
    change: Callable[[Setup], None]
    bases: tuple[str, ...]


CONTROLS: dict[str, Control] = {}
"""Every control by name."""


def control(on: str) -> Callable[[Callable[[Setup], None]], Callable[[Setup], None]]:
    """Register a function that changes a setup, for the bases with these names."""

    def register(change: Callable[[Setup], None]) -> Callable[[Setup], None]:
        CONTROLS[change.__name__] = Control(change.__name__, change, tuple(on.split()))
        return change

    return register
