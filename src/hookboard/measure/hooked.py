"""`hooked`: puts hooks on a module, in the order that hookboard's hooks need, and takes them off together."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookboard.base.torch_private import forward_hooks_of, forward_pre_hooks_of

READS_BEFORE_EDITS, EDITS_VALUES, READS, EDITS_GRADIENTS = range(4)
"""The place of a hook among those of its module; hooks of others have `READS`."""


class Hooks(dict[str, RemovableHandle]):
    """The handles of the hooks that `hooked` has put on a module; as a context manager it takes them off at its end."""

    def __enter__(self) -> "Hooks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off; again, if Ctrl-C has come in the middle of it."""
        for handle in self.values():
            handle.remove()
        self.clear()


def hooked(
    module: nn.Module,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
    *,
    place: int = READS,
    with_kwargs: bool = False,
    always_call: bool = False,
) -> Hooks:
    """Hook a module, until the returned hooks are closed or their context ends, with or without an error.

    A copied or unpickled module has none of them from its first call on, and its pickle names nothing of hookboard.

    Args:
        module: the module.
        before: takes the module, its arguments and keyword arguments before a call; what it returns, if not None,
            replaces `(args, kwargs)`. None for no hook.
        after: takes the module, its arguments and its output after a call; what it returns, if not None, replaces the
            output.
        place: hooks run in the order of their places; those of one place as they were attached, but edits of gradients
            the last attached first, because backward runs in reverse.
        with_kwargs: whether `after` takes the keyword arguments, too, before the output. Without need it must not: if
            another thread calls the module while it is hooked or unhooked, torch may leave them out.
        always_call: whether `after` is called if the module raised an error, too.
    """
    hooks = Hooks()
    try:
        if after is not None:
            hook, how = _OnModule(after), {"with_kwargs": with_kwargs, "always_call": always_call}
            hooks["after"] = hook.handle = nn.Module.register_forward_hook(module, hook, **how)
            hook.place = place
        if before is not None:
            hook = _OnModule(before)
            hooks["before"] = hook.handle = nn.Module.register_forward_pre_hook(module, hook, with_kwargs=True)
            hook.place = place
        _sort(forward_hooks_of(module))
        _sort(forward_pre_hooks_of(module))
    except BaseException:  # Ctrl-C: nobody has the hooks yet
        hooks.close()
        raise
    return hooks


class _OnModule(functools.partial[Any]):
    """A hook that stays behind where its module is copied: in its place is what takes itself off when it is called."""

    handle: RemovableHandle
    place: int

    def __reduce__(self) -> tuple[Any, ...]:
        # Of Python and torch alone: hookboard may not be installed where the module is loaded. Unlike that of the
        # handle, this `__exit__` takes any number of arguments.
        last = ExitStack()
        last.push(self.handle)
        return getattr, (closing(last), "__exit__")


def _sort(hooks: "OrderedDict[int, Callable[..., Any]]") -> None:
    """Sort the hooks of a module in place."""

    def order(key: int) -> tuple[int, int]:
        place = getattr(hooks[key], "place", READS)
        return place, -key if place == EDITS_GRADIENTS else 0

    for key in sorted(hooks, key=order):
        hooks.move_to_end(key)
