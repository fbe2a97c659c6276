"""Taps: hooks on modules that show each tensor to an observer."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookboard.hooks.gradients import Switch
from hookboard.hooks.graphs import GraphEnd
from hookboard.hooks.module_tap import ModuleTap
from hookboard.selection import are_same
from hookboard.sites import Role, Site
from hookboard.torch_private import has_compiled_anything, renumber, version_of


class Hook:
    """The hooks of one module. Whichever tap is active sees its calls; if none is, a call costs one look."""

    __slots__ = ("tap",)

    def __init__(self) -> None:
        self.tap: ModuleTap | None = None

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        # A copied or unpickled model has the hook, but none of the life behind it.
        return Hook, ()

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pre-hook; inside a graph it may return replacement inputs."""
        tap = self.tap
        if tap is None:
            return None
        if torch.compiler.is_compiling():
            return None if tap.graph_end is None else tap.graph_end.before(tap.roles, args, kwargs)
        tap.enter(args, kwargs)
        return None

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> Any:
        """The forward hook. It returns None, which leaves the output as it is; inside a graph a replacement output."""
        tap = self.tap
        if tap is None:
            return None
        if torch.compiler.is_compiling():
            return None if tap.graph_end is None else tap.graph_end.after(tap.roles, args, kwargs, output)
        tap.leave(args, output)
        return None


class Hooks:
    """Hooks on modules, which several taps may share. They are removed when the last of these lets them go.

    Args:
        modules: name to module.
        before: whether the calls are seen before they run, too.
    """

    def __init__(self, modules: Mapping[str, nn.Module], before: bool) -> None:
        self.modules = dict(modules)
        self.before = before
        self.of = {name: Hook() for name in modules}
        self._users = 0
        self._until_removed = ExitStack()

    def are_like(self, other: "Hooks") -> bool:
        """Whether the others are on the same modules, and see the same."""
        return self.before is other.before and are_same(self.modules, other.modules)

    def hold(self) -> None:
        """Hook every module, after the hooks that are already there, unless somebody holds them already."""
        self._users += 1
        if self._users > 1:
            return
        numbers: dict[str, int] = {}
        for name, module in self.modules.items():
            hook = self.of[name]
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if self.before:
                self._keep(module.register_forward_pre_hook(hook.before, with_kwargs=True), numbers, "before")
            self._keep(module.register_forward_hook(hook.after, with_kwargs=True), numbers, "after")

    def _keep(self, handle: RemovableHandle, numbers: dict[str, int], when: str) -> None:
        # Graphs of older torch are bound to the numbers of hooks: equal modules share a graph if theirs are equal.
        renumber(handle, numbers.setdefault(when, handle.id))
        self._until_removed.callback(handle.remove)

    def let_go(self) -> None:
        """Remove them, unless somebody else holds them."""
        self._users -= 1
        if not self._users:
            self._until_removed.close()


class Taps:
    """Hooks on modules that show the tensors of some roles to observers while they are active.

    Args:
        modules: name to module.
        roles: from `input`, `output`, `grad_input`, `grad_output`.
        open_site: called with a site before its first tensor; returns the observer, a function that is called with
            each tensor of the site. Tensors are not detached: an observer that keeps one must detach it.
        in_graphs: whether graphs of torch.compile show their tensors too, if they are compiled while the taps are on.
        each_call: whether observers get the number of the module's call (counted from 0) as an argument before the
            tensor.
        beside: other taps, whose hooks these share if they are on the same modules. At most one of them is active.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]],
        *,
        in_graphs: bool = False,
        each_call: bool = False,
        beside: "Taps | None" = None,
    ) -> None:
        self._switch = Switch()
        self._taps = {name: ModuleTap(name, roles, open_site, self._switch, each_call) for name in modules}
        if in_graphs:
            for name, module in modules.items():
                self._taps[name].graph_end = GraphEnd(self._taps[name], module)
        self._modules = dict(modules)
        before = each_call or bool({"input", "grad_input"} & set(roles))
        self.hooks = Hooks(modules, before)
        if beside is not None and beside.hooks.are_like(self.hooks):
            self.hooks = beside.hooks
        self._roles = tuple(roles)
        self._old_gradients = {state for module in modules.values() for state in _gradients_of(module)}
        self._until_detached = ExitStack()

    def attach(self) -> None:
        """Hook every module, after the hooks that are already there."""
        self.hooks.hold()
        self._until_detached.callback(self.hooks.let_go)

    def detach(self) -> None:
        """Remove every hook. Hooks on a graph that is still alive do nothing from now on."""
        self.active = False
        with self._until_detached:
            self.settle()

    @property
    def active(self) -> bool:
        """Whether tensors are shown to observers. If not, a call costs one look at a boolean."""
        return self._switch.on

    @active.setter
    def active(self, on: bool) -> None:
        self._switch.on = on
        for name, tap in self._taps.items():
            hook = self.hooks.of[name]
            if on:
                hook.tap = tap
            elif hook.tap is tap:
                hook.tap = None

    def show_pending(self) -> None:
        """Show gradients of inputs that are held back because a part of them may still come."""
        for tap in self._taps.values():
            tap.show_pending()

    def settle(self) -> None:
        """Finish the step: show what is still held back, and release everything that belongs to the step."""
        for tap in self._taps.values():
            tap.settle()

    def expected(self) -> Iterator[tuple[str, Role]]:
        """Every pair of module name and role; of each at least one tensor should be seen in a step."""
        return ((name, role) for name in self._taps for role in self._roles)

    def why_silent(self, name: str, role: Role) -> str:
        """The most likely reason why no tensor of this role of the module was seen."""
        module, tap = self._modules[name], self._taps[name]
        if isinstance(module, torch.jit.ScriptModule):
            return "hooks never fire in a TorchScript module"
        if role in tap.causes:
            return tap.causes[role]
        if not tap.called:
            return _why_not_called(module, self._old_gradients)
        return NO_GRADIENT


NO_GRADIENT = "no gradient arrived: the loss does not depend on the output"


def _why_not_called(module: nn.Module, old_gradients: Collection[object]) -> str:
    causes = ["its forward was called directly"]
    if has_compiled_anything():
        causes.append("it runs in a compiled function transform such as torch.func.vmap")
    if any(state not in old_gradients for state in _gradients_of(module)):
        causes.append("its parent uses its weights itself, as nn.MultiheadAttention does")
        return f"the module was not called, yet its parameters received a gradient: {' or '.join(causes)}"
    return f"the module was not called in this step (or {' or '.join(causes)})"


def _gradients_of(module: nn.Module) -> list[tuple[int, int]]:
    """What tells whether a gradient has come to the module's own parameters since."""
    gradients = [parameter.grad for parameter in module.parameters(recurse=False)]
    return [(id(gradient), version_of(gradient)) for gradient in gradients if gradient is not None]
