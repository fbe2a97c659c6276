"""`Hook`: the hooks of one module, which all taps on it share: each that a module has costs every call of it."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookboard.hooks.module_tap import ModuleTap
from hookboard.torch_private import Detour, forward_hooks_of, forward_pre_hooks_of, renumber

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


class Hook:
    """The hooks of one module. Every tap on it that is active sees its calls; if none is, a call costs one look."""

    __slots__ = ("_detour", "_handles", "before", "taps", "users")

    def __init__(self, before: bool = False) -> None:
        self.before = before
        """Whether calls are seen before they run, too."""
        self.taps: tuple[ModuleTap, ...] = ()
        """Those that are active."""
        self.users = 0
        """How many hold it."""
        self._handles: dict[str, RemovableHandle] = {}
        """By the name of the method."""
        self._detour: Detour | None = None
        """In place of hooks, while it must not be one."""

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        # A copied or unpickled model has the hook, but none of the life behind it.
        return Hook, ()

    # Where one thread hooks a module or takes the hook off, another that is calling it may leave the last argument out.

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Act as forward pre-hook: return None, which leaves the inputs; inside a graph, other inputs."""
        if not self.taps or not self.before or kwargs is None:
            return None
        if not torch.compiler.is_compiling():
            for tap in self.taps:
                tap.enter(args, kwargs)
            return None
        replaced = None
        for tap in self.taps:
            if tap.graph_end is not None:
                new = tap.graph_end.before(tap.roles, args, kwargs)
                if new is not None:
                    replaced = args, kwargs = new
        return replaced

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object = None) -> Any:
        """Act as forward hook: return None, which leaves the output; inside a graph, another output."""
        if not self.taps:
            return None
        if not torch.compiler.is_compiling():
            for tap in self.taps:
                tap.leave(args, output)
            return None
        replaced = None
        for tap in self.taps:
            if tap.graph_end is not None:
                new = tap.graph_end.after(tap.roles, args, kwargs, output)
                if new is not None:
                    replaced = output = new
        return replaced

    def hold(self, module: nn.Module, numbers: dict[str, int], *, is_hidden: bool = False) -> None:
        """Hook the module behind all others that read, unless somebody holds it already.

        Args:
            module: the module.
            numbers: of the hooks, by the name of the method. Graphs of older torch are bound to the numbers of hooks:
                equal modules share a graph if theirs are equal.
            is_hidden: whether torch must find no hook on the module, see `fused.py`.
        """
        self.users += 1
        if self.users > 1:
            return
        if is_hidden:
            self._detour = Detour(module, self.enter, self.leave)
            return
        self._handles["leave"] = module.register_forward_hook(self.leave, with_kwargs=True)
        if self.before:
            self._handles["enter"] = module.register_forward_pre_hook(self.enter, with_kwargs=True)
        for when, handle in self._handles.items():
            renumber(handle, numbers.setdefault(when, handle.id))
        sort_hooks(forward_hooks_of(module))
        sort_hooks(forward_pre_hooks_of(module))

    def let_go(self) -> None:
        """Remove it, unless somebody else holds it."""
        self.users -= 1
        if not self.users:
            if self._detour is not None:
                self._detour.end()
                self._detour = None
            for handle in self._handles.values():
                handle.remove()


def hook_of(module: nn.Module, before: bool, *, is_hidden: bool = False) -> Hook:
    """Return the hook of other taps, if no hook has come behind it that may change what it would see; else a new one.

    Args:
        module: the module.
        before: whether calls are to be seen before they run, too.
        is_hidden: whether torch must find no hook on the module.
    """
    if is_hidden:
        detour = Detour.of(module)
        owner = None if detour is None else getattr(detour.leave, "__self__", None)
        if isinstance(owner, Hook):
            owner.before |= before
            return owner
        return Hook(before)
    owner = _last_owner(forward_hooks_of(module))
    is_last = not before or _last_owner(forward_pre_hooks_of(module)) is owner
    if isinstance(owner, Hook) and owner.users and owner.before is before and is_last:
        return owner
    return Hook(before)


def _last_owner(hooks: "OrderedDict[int, Callable[..., Any]]") -> object:
    """Return the object whose method the last hook is; None if there is no hook, or it is not a method."""
    return getattr(next(reversed(hooks.values())), "__self__", None) if hooks else None
