"""`Clock`: adds up the time that the host spends in the hooks of one callback."""

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Clock:
    """Adds up the time that the host spends in the hooks of one callback, of Lightning and of modules and tensors."""

    def __init__(self) -> None:
        self.spent = 0.0
        """In seconds, without the hook that is running."""
        self.began: float | None = None
        """When the hook of Lightning began that is running; None while none is."""

    def until(self, now: float) -> float:
        """The seconds that were spent until now, with those in the hook that is running."""
        return self.spent + (0.0 if self.began is None else now - self.began)


def timed(hook: Hook) -> Hook:
    """A method of a callback that its clock times."""

    @functools.wraps(hook)
    def within(self: Any, *args: Any, **named: Any) -> Any:
        clock: Clock = self.clock
        start = clock.began = perf_counter()
        try:
            return hook(self, *args, **named)
        finally:
            clock.began = None
            clock.spent += perf_counter() - start

    return within  # type: ignore[return-value]  # it takes what the hook takes
