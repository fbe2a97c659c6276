"""The calls of a module, by number: several threads may make them, and checkpoints make them again."""

import threading

from hookboard.torch_private import in_backward

UNKNOWN = -1
"""The number of a call that cannot be told from others."""


class CallNumbers:
    """Counts a module's calls, in the order in which they begin.

    A recomputation under checkpointing gets the number of the call it repeats, or UNKNOWN if there were several.
    """

    def __init__(self) -> None:
        self._made = 0
        self._lock = threading.Lock()
        self._here = _Entered()

    @property
    def current(self) -> int:
        """The number of the call that this thread is in."""
        return self._here.numbers[-1]

    def enter(self) -> None:
        """A call begins."""
        with self._lock:
            if in_backward():
                self._here.numbers.append(0 if self._made == 1 else UNKNOWN)
            else:
                self._here.numbers.append(self._made)
                self._made += 1

    def leave(self) -> None:
        """It ends."""
        self._here.numbers.pop()


class _Entered(threading.local):
    """The numbers of the calls that a thread is in."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
