"""`Clock`: adds up the time that the host spends in the hooks of one callback."""

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Clock:
    """Adds up the time that the host spends in the hooks of one callback: those of Lightning, modules and tensors."""

    def __init__(self) -> None:
        self.spent = 0.0
        """Seconds spent, without the hook that is running now."""
        self.began: float | None = None
        """When the running hook began; None if none is running."""

    def until(self, now: float) -> float:
        """Return the seconds spent until now, including those in the running hook."""
        return self.spent + (0.0 if self.began is None else now - self.began)


def timed(hook: Hook, by: Clock | None = None) -> Hook:
    """Have a clock time a function; left out, the `clock` of its object times a method.

    Where one calls another, nothing is counted twice.
    """

    @functools.wraps(hook)
    def within(*args: Any, **named: Any) -> Any:
        clock: Clock | None = by or args[0].clock
        if clock is None or clock.began is not None:
            return hook(*args, **named)
        clock.began = began = perf_counter()
        try:
            return hook(*args, **named)
        finally:
            clock.began = None
            clock.spent += perf_counter() - began

    return within  # type: ignore[return-value]  # it takes what the hook takes
