"""The order of the hooks of a module, so that each reads edited or unedited tensors as it should."""

from collections.abc import Callable
from typing import Any

READS_BEFORE_EDITS, EDITS_VALUES, READS, EDITS_GRADIENTS = range(4)
"""Where a hook stands: its owner says so by an attribute `place_among_hooks`; all others read what was edited."""


def sort_hooks(hooks: dict[int, Callable[..., Any]]) -> None:
    """Sort the hooks of a module.

    First come hooks that read tensors before any edit, then edits of values in the order in which they were attached,
    then all other hooks, and last the edits of gradients in reverse order, because backward runs in reverse.
    """

    def place(key: int) -> tuple[int, int]:
        kind = getattr(getattr(hooks[key], "__self__", None), "place_among_hooks", READS)
        if kind in (READS, READS_BEFORE_EDITS):
            return kind, 0
        return kind, -key if kind == EDITS_GRADIENTS else key

    for key in sorted(hooks, key=place):
        hooks[key] = hooks.pop(key)
