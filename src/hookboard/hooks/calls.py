"""Numbers of the calls of a module, also with several threads and with checkpoints, which repeat calls."""

import threading

from hookboard.torch_private import in_backward

UNKNOWN = -1
"""The number of a repeated call if it is unknown which call it repeats."""


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
        """Note that a call begins in this thread."""
        with self._lock:
            if in_backward():
                self._here.numbers.append(0 if self._made == 1 else UNKNOWN)
            else:
                self._here.numbers.append(self._made)
                self._made += 1

    def leave(self) -> None:
        """Note that the innermost call of this thread ends."""
        self._here.numbers.pop()


class _Entered(threading.local):
    """The numbers of the calls that run in a thread, the innermost last."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
