"""`Hook`: the hooks of one module, which all taps on it share: each that a module has costs every call of it."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.hooks.hook_order import sort_hooks
from hookboard.hooks.module_tap import ModuleTap
from hookboard.hooks.own_call import own_calls
from hookboard.torch_private import (
    Detour,
    forward_hooks_of,
    forward_pre_hooks_of,
    frame_callback,
    put_back_forward_hook,
    put_back_forward_pre_hook,
    renumber,
)

Place = dict[str, tuple[set[int], set[int]]]
"""The numbers of the hooks of a module up to one of them, and behind it; by the method of `Hook` that this one is."""


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
        """By the name of the method; those of a hook that was let go, too."""
        self._detour: Detour | None = None
        """In place of hooks, while it must not be one."""

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        # A copied or unpickled model has the hook, but none of the life behind it.
        return Hook, ()

    # Where one thread hooks a module or takes the hook off, another that is calling it may leave the last argument out.

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """The forward pre-hook. It returns None, which leaves inputs as they are; inside a graph replacement inputs."""
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
        """The forward hook. It returns None, which leaves the output as it is; inside a graph a replacement output."""
        if not self.taps:
            return None
        if not torch.compiler.is_compiling():
            is_plain = type(output) is Tensor and not own_calls and frame_callback() is None
            for tap in self.taps:
                if not (is_plain and tap.quick is not None and tap.quick(output)):
                    tap.leave(args, output)
            return None
        replaced = None
        for tap in self.taps:
            if tap.graph_end is not None:
                new = tap.graph_end.after(tap.roles, args, kwargs, output)
                if new is not None:
                    replaced = output = new
        return replaced

    def hold(
        self, module: nn.Module, numbers: dict[str, int], place: Place | None = None, *, is_hidden: bool = False
    ) -> None:
        """Hook the module, unless somebody holds it already.

        Args:
            module: the module.
            numbers: of the hooks, by the name of the method. Graphs of older torch are bound to the numbers of hooks:
                equal modules share a graph if theirs are equal.
            place: what `place` gave before it was taken off: it comes back there. None: it comes behind all others.
            is_hidden: whether torch must find no hook on the module, see `fused.py`.
        """
        self.users += 1
        if self.users > 1:
            return
        if is_hidden:
            self._detour = Detour(module, self.enter, self.leave)
            return
        if not self._is_back_on(module):
            self._handles["leave"] = module.register_forward_hook(self.leave, with_kwargs=True)
            if self.before:
                self._handles["enter"] = module.register_forward_pre_hook(self.enter, with_kwargs=True)
            for when, handle in self._handles.items():
                renumber(handle, numbers.setdefault(when, handle.id))
        if place is not None:
            for when in self._handles:
                hooks = _HOOKS_OF[when](module)
                if len(hooks) > 1:
                    for number in list(hooks)[_start_behind(*place[when], list(hooks)[:-1]) : -1]:
                        hooks.move_to_end(number)  # one after the other, so that they keep their order
                    sort_hooks(hooks)

    def _is_back_on(self, module: nn.Module) -> bool:
        """Come back on a module that it was on before; returns whether it was, and could."""
        if not self._handles or not put_back_forward_hook(module, self._handles["leave"], self.leave):
            return False
        if self.before and not put_back_forward_pre_hook(module, self._handles["enter"], self.enter):
            self._handles["leave"].remove()
            return False
        return True

    @property
    def is_hidden(self) -> bool:
        """Whether torch finds no hook on the module."""
        return self._detour is not None

    def place(self, module: nn.Module) -> Place:
        """Where it stands among the hooks of the module."""
        found: Place = {}
        for when in self._handles:
            hooks = _HOOKS_OF[when](module)
            if len(hooks) == 1 and self._handles[when].id in hooks:
                found[when] = _ALONE
                continue
            numbers = list(hooks)
            owners = [getattr(hook, "__self__", None) for hook in hooks.values()]
            end = owners.index(self) + 1 if self in owners else len(owners)
            found[when] = set(numbers[:end]), set(numbers[end:])
        return found

    def let_go(self) -> None:
        """Remove it, unless somebody else holds it."""
        self.users -= 1
        if not self.users:
            if self._detour is not None:
                self._detour.end()
                self._detour = None
            for handle in self._handles.values():
                handle.remove()


def hook_of(module: nn.Module, before: bool, spare: Hook | None = None, *, is_hidden: bool = False) -> Hook:
    """The hook of other taps, if no hook has come behind it that may change what it would see; else another.

    Args:
        module: the module.
        before: whether calls are to be seen before they run, too.
        spare: the other hook, which was on the module before, unless somebody holds it; None for a new one.
        is_hidden: whether torch must find no hook on the module.
    """
    if is_hidden:
        detour = Detour.of(module)
        owner = None if detour is None else getattr(detour.leave, "__self__", None)
        if isinstance(owner, Hook):
            owner.before |= before
            return owner
        return Hook(before) if spare is None or spare.users else spare
    owner = _last_owner(forward_hooks_of(module))
    if isinstance(owner, Hook) and owner.users and owner.before is before:
        is_last = not before or _last_owner(forward_pre_hooks_of(module)) is owner
        return owner if is_last else Hook(before)
    return Hook(before) if spare is None or spare.users else spare


_HOOKS_OF = {"leave": forward_hooks_of, "enter": forward_pre_hooks_of}
_ALONE: tuple[set[int], set[int]] = (set(), set())


def _last_owner(hooks: "OrderedDict[int, Callable[..., Any]]") -> object:
    """Whose method the last hook is; None if there is no hook, or it is no method."""
    return getattr(next(reversed(hooks.values())), "__self__", None) if hooks else None


def _start_behind(front: set[int], behind: set[int], numbers: list[int]) -> int:
    """Where those hooks begin that come behind one which comes back: behind the last that stood in front of it.

    Args:
        front: the numbers of those that stood in front of it.
        behind: the numbers of those that stood behind it. Without any of the former it stands in front of the first.
        numbers: of the hooks that there are. Without any of both nothing tells: it stands in front of all.
    """
    known = [index + 1 for index, number in enumerate(numbers) if number in front]
    return known[-1] if known else next((index for index, number in enumerate(numbers) if number in behind), 0)
