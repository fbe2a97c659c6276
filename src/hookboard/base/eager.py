"""Runs compiled code uncompiled for a while, so that hooks that were added after compilation fire."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hookboard.base.torch_private import is_in_force

_lock = threading.Lock()
_count = 0
_stance: Any = None


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled code uncompiled inside the context, in the whole process.

    Several contexts may be open at once and end in any order: code runs compiled again when the last one ends, under
    the stance (`torch.compiler.set_stance`) from before the first. A stance that the user sets in between stays in
    force; when it ends, the one from before the first context applies.
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
            if is_in_force(stance):
                stance.__exit__(None, None, None)
            # A stance that the user has set inside comes back to ours when it ends: let ours mean the earlier one.
            vars(stance.stance).update(vars(stance.prev))
