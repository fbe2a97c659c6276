"""The flag for a call of our own."""

import threading

_STATE = threading.local()


def is_own_call() -> bool:
    """Whether this thread is in a call of our own."""
    return getattr(_STATE, "depth", 0) > 0
