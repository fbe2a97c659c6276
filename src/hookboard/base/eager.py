"""Runs compiled code uncompiled for a while, so that hooks that were added after compilation fire."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_open: int = 0
_stance: Any = None


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled code uncompiled inside the context, in the whole process.

    Several contexts may be open at once and end in any order, as those of two callbacks do: code runs compiled again
    when the last one ends, under the stance (`torch.compiler.set_stance`) from before the first.
    """
    global _open, _stance
    if not _open:
        _stance = torch.compiler.set_stance("force_eager")
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if not _open:
            _stance.__exit__(None, None, None)
