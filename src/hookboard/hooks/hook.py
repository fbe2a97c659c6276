"""`Hook`: the hooks of one module, which all taps on it share: each that a module has costs every call of it."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from hookboard.hooks.module_tap import ModuleTap
from hookboard.torch_private import forward_hooks_of, forward_pre_hooks_of, renumber


class Hook:
    """The hooks of one module. Every tap on it that is active sees its calls; if none is, a call costs one look."""

    __slots__ = ("_until_removed", "before", "taps", "users")

    def __init__(self, before: bool = False) -> None:
        self.before = before
        """Whether calls are seen before they run, too."""
        self.taps: tuple[ModuleTap, ...] = ()
        """Those that are active."""
        self.users = 0
        """How many hold it."""
        self._until_removed = ExitStack()

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        # A copied or unpickled model has the hook, but none of the life behind it.
        return Hook, ()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pre-hook. It returns None, which leaves inputs as they are; inside a graph replacement inputs."""
        if not self.taps:
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

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> Any:
        """The forward hook. It returns None, which leaves the output as it is; inside a graph a replacement output."""
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

    def hold(self, module: nn.Module, numbers: dict[str, int]) -> None:
        """Hook the module, after the hooks that are already there, unless somebody holds it already.

        Args:
            module: the module.
            numbers: of the hooks, by the name of the method. Graphs of older torch are bound to the numbers of hooks:
                equal modules share a graph if theirs are equal.
        """
        self.users += 1
        if self.users > 1:
            return
        hooks = [module.register_forward_hook(self.leave, with_kwargs=True)]
        if self.before:
            hooks.append(module.register_forward_pre_hook(self.enter, with_kwargs=True))
        for when, handle in zip(("leave", "enter"), hooks, strict=False):
            renumber(handle, numbers.setdefault(when, handle.id))
            self._until_removed.callback(handle.remove)

    def let_go(self) -> None:
        """Remove it, unless somebody else holds it."""
        self.users -= 1
        if not self.users:
            self._until_removed.close()


def hook_of(module: nn.Module, before: bool) -> Hook:
    """The hook of other taps, if no hook has come behind it that may change what it would see; else a new one.

    Args:
        module: the module.
        before: whether calls are to be seen before they run, too.
    """
    last = _owner_of_last(forward_hooks_of(module))
    is_last = not before or last is _owner_of_last(forward_pre_hooks_of(module))
    return last if last is not None and last.users and last.before is before and is_last else Hook(before)


def _owner_of_last(hooks: dict[int, Callable[..., Any]]) -> Hook | None:
    last = getattr(next(reversed(hooks.values()), None), "__self__", None)
    return last if isinstance(last, Hook) else None
