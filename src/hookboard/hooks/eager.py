"""Compiled code that runs uncompiled for a while, so that hooks which were added later fire."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hookboard.torch_private import compiler_stance

_lock = threading.Lock()
_count = 0
_stance: Any = None


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled code uncompiled until the context is left.

    Several contexts may be open at once, in the whole process, and be left in any order: compiled code stays
    uncompiled until the last is left. Then the stance is again the one that the user had set before the first
    (`torch.compiler.set_stance`). A stance that the user sets in between is the user's own and stays.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _count, _stance
    with _lock:
        if _count == 0:
            _stance = torch.compiler.set_stance("force_eager")
        _count += 1


def _leave() -> None:
    global _count, _stance
    with _lock:
        _count -= 1
        if _count == 0:
            stance, _stance = _stance, None
            if compiler_stance() == "force_eager":
                stance.__exit__(None, None, None)
