"""`Clock` and `timed`: how much time the host spends in the hooks of one callback."""

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


class Clock:
    """Adds up the time that the host spends in the hooks of one callback: those of Lightning, modules and tensors.

    A hook that starts while `began` is set must not add its time: it is part of that of the hook that called it.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        """Seconds spent, without the hook that is running now."""
        self.began: float | None = None
        """When the running hook began; None if none is running."""


def timed(hook: Method) -> Method:
    """Decorate a method so that the `clock` of its object counts the time that it takes."""

    @functools.wraps(hook)
    def within(*args: Any, **named: Any) -> Any:
        clock: Clock = args[0].clock
        if clock.began is not None:
            return hook(*args, **named)
        clock.began = perf_counter()
        try:
            return hook(*args, **named)
        finally:
            if clock.began is not None:
                clock.spent += perf_counter() - clock.began
                clock.began = None

    return within  # type: ignore[return-value]  # it takes what the hook takes
