"""The calls of a module that run: several threads may make them, checkpoints make them again, and some fail."""

import threading
from typing import NamedTuple

from hookboard.hooks.input_gradients import Edges
from hookboard.torch_private import in_backward, sequence_number

UNKNOWN = -1
"""The number of a call that cannot be told from others."""


class Call(NamedTuple):
    """A call that has begun.

    Args:
        arguments: identifies it: `id` of the tuple of its arguments.
        number: of the call, from 0 for each module.
        edges: where the gradients of its inputs go.
        since: autograd's number when it began.
    """

    arguments: int
    number: int
    edges: Edges
    since: int


class Calls:
    """The calls of one module that run, the innermost last, for each thread by itself.

    Calls are numbered in the order in which they begin. A recomputation under checkpointing gets the number of the
    call it repeats, or UNKNOWN if there were several.
    """

    def __init__(self) -> None:
        self._made = 0
        self._lock = threading.Lock()
        self._here = _Running()

    def enter(self, arguments: int, edges: Edges) -> None:
        """A call begins."""
        with self._lock:
            if in_backward():
                number = 0 if self._made == 1 else UNKNOWN
            else:
                number = self._made
                self._made += 1
        self._here.calls.append(Call(arguments, number, edges, sequence_number()))

    @property
    def are_running(self) -> bool:
        """Whether this thread is in a call. One that has begun before the taps were active is none."""
        return bool(self._here.calls)

    @property
    def number(self) -> int:
        """Of the innermost call of this thread."""
        return self._here.calls[-1].number

    def returned(self, arguments: int) -> Call:
        """The call with these arguments, which is now the innermost: what was inside of it and is left has failed."""
        calls = self._here.calls
        if any(call.arguments == arguments for call in calls):  # else another hook has changed them on the way
            while calls[-1].arguments != arguments:
                calls.pop()
        return calls[-1]

    def leave(self) -> None:
        """The innermost call ends."""
        self._here.calls.pop()

    def forget(self) -> None:
        """Forget calls that have not ended, in all threads."""
        self._here = _Running()


class _Running(threading.local):
    """The calls that a thread is in."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
