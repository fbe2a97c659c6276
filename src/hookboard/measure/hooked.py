"""`hooked`: puts hooks on a module, in the order that hookboard's hooks need, and takes them off together."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, Literal

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookboard.base.torch_private import Detour, forward_hooks_of, forward_pre_hooks_of, renumber

READS_BEFORE_EDITS, EDITS_VALUES, READS, EDITS_GRADIENTS = range(4)
"""The place of a hook among those of its module: the attribute `place_among_hooks` of its owner, `READS` without it."""


def hooked(
    module: nn.Module,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
    *,
    with_kwargs: bool = False,
    always_call: bool = False,
    is_hidden: bool = False,
    numbers: dict[str, int] | None = None,
) -> ExitStack:
    """Hook a module, until the returned stack is closed or its context ends, with or without an error.

    The module's hooks run in this order: those that read tensors before any edit; edits of values, in the order in
    which they were attached; all other hooks, also those of other libraries; edits of gradients, the last attached
    first, because backward runs in reverse.

    A copied or unpickled module has none of them from its first call on, and its pickle names nothing of hookboard.

    Args:
        module: the module.
        before: takes the module, its arguments and keyword arguments before a call; what it returns, if not None,
            replaces `(args, kwargs)`. None for no hook.
        after: takes the module, its arguments and its output after a call; what it returns, if not None, replaces the
            output.
        with_kwargs: whether `after` takes the keyword arguments, too, before the output. Without need it must not: if
            another thread calls the module while it is hooked or unhooked, torch may leave them out.
        always_call: whether `after` is called if the module raised an error, too.
        is_hidden: whether torch must find no hook on the module, see `fused.py`. Then nothing is replaced, and `after`
            takes the keyword arguments and is not called after an error.
        numbers: the id of the handle of each kind of hook, filled by the first call and used by those that follow. In
            older versions of torch, equal modules share a compiled graph only if the ids of their hooks are equal.
    """
    hooks = _Hooks()
    if is_hidden:
        hooks.ends.append(Detour(module, before or _ignore, after or _ignore).end)
        return hooks
    handles = {}
    try:
        if after is not None:
            hook = _OnModule(after)
            hook.handle = nn.Module.register_forward_hook(
                module, hook, with_kwargs=with_kwargs, always_call=always_call
            )
            handles["after"] = hook.handle
        if before is not None:
            hook = _OnModule(before)
            handles["before"] = hook.handle = nn.Module.register_forward_pre_hook(module, hook, with_kwargs=True)
        for kind, handle in handles.items():
            hooks.ends.append(handle.remove)
            if numbers is not None:
                renumber(handle, numbers.setdefault(kind, handle.id))
        _sort(forward_hooks_of(module))
        _sort(forward_pre_hooks_of(module))
    except BaseException:  # Ctrl-C: nobody has the stack yet
        for handle in handles.values():
            handle.remove()
        raise
    return hooks


class _Hooks(ExitStack):
    """Takes hooks off, as often as asked: an ExitStack forgets the one at which Ctrl-C interrupts it."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[Callable[[], None]] = []

    def __exit__(self, *error: object) -> Literal[False]:
        for end in self.ends:
            end()
        return False

    def close(self) -> None:
        self.__exit__()


class _OnModule(functools.partial[Any]):
    """A hook that stays behind where its module is copied: in its place is what takes itself off when it is called."""

    handle: RemovableHandle

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__self__ = getattr(function, "__self__", None)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of Python and torch alone: hookboard may not be installed where the module is loaded. Unlike that of the
        # handle, this `__exit__` takes any number of arguments.
        last = ExitStack()
        last.push(self.handle)
        return getattr, (closing(last), "__exit__")


def _sort(hooks: "OrderedDict[int, Callable[..., Any]]") -> None:
    """Sort the hooks of a module in place."""

    def place(key: int) -> tuple[int, int]:
        kind = getattr(getattr(hooks[key], "__self__", None), "place_among_hooks", READS)
        if kind in (READS, READS_BEFORE_EDITS):
            return kind, 0
        return kind, -key if kind == EDITS_GRADIENTS else key

    for key in sorted(hooks, key=place):
        hooks.move_to_end(key)


def _ignore(*_: object) -> None:
    pass
