"""`Hook`: the hooks of one module, which all taps on it share: each that a module has costs every call of it."""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from hookboard.hooks.module_tap import ModuleTap
from hookboard.torch_private import forward_hooks_of, forward_pre_hooks_of, renumber

Front = dict[str, set[int]]
"""Numbers of hooks of one module, by the method of `Hook` that stands among them."""


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

    # Where one thread hooks a module or takes the hook off, another that is calling it may leave the last argument out.

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """The forward pre-hook. It returns None, which leaves inputs as they are; inside a graph replacement inputs."""
        if not self.taps or kwargs is None:
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

    def hold(self, module: nn.Module, numbers: dict[str, int], front: Front | None = None) -> None:
        """Hook the module, unless somebody holds it already.

        Args:
            module: the module.
            numbers: of the hooks, by the name of the method. Graphs of older torch are bound to the numbers of hooks:
                equal modules share a graph if theirs are equal.
            front: what `front` gave when the module was hooked before: all other hooks stay behind this one, as they
                would have if it had never been taken off. None: it comes behind all.
        """
        self.users += 1
        if self.users > 1:
            return
        for when, hooks in _hooks_on(module).items():
            if when == "leave":
                handle = module.register_forward_hook(self.leave, with_kwargs=True)
            elif self.before:
                handle = module.register_forward_pre_hook(self.enter, with_kwargs=True)
            else:
                continue
            renumber(handle, numbers.setdefault(when, handle.id))
            self._until_removed.callback(handle.remove)
            if front is not None:
                for number in [number for number in hooks if number not in front[when] and number != handle.id]:
                    hooks.move_to_end(number)

    def front(self, module: nn.Module) -> Front:
        """The numbers of the module's hooks up to this one."""
        found: Front = {}
        for when, hooks in _hooks_on(module).items():
            owners = [getattr(hook, "__self__", None) for hook in hooks.values()]
            place = owners.index(self) if self in owners else len(owners)
            found[when] = set(list(hooks)[: place + 1])
        return found

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
    last = {when: next(reversed(hooks.values()), None) for when, hooks in _hooks_on(module).items()}
    owner = getattr(last["leave"], "__self__", None)
    if not isinstance(owner, Hook) or not owner.users or owner.before is not before:
        return Hook(before)
    return owner if not before or getattr(last["enter"], "__self__", None) is owner else Hook(before)


def _hooks_on(module: nn.Module) -> dict[str, "OrderedDict[int, Callable[..., Any]]"]:
    return {"leave": forward_hooks_of(module), "enter": forward_pre_hooks_of(module)}
