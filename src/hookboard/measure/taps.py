"""`Taps`: hooks on modules that show each tensor to an observer. Several taps share the `Hook` of a module."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from hookboard.base.torch_private import (
    Detour,
    forward_hooks_of,
    forward_pre_hooks_of,
    has_compiled_anything,
    parameters_in,
    version_of,
)
from hookboard.measure.fused import fused_layers, unhooked
from hookboard.measure.gradients import Switch
from hookboard.measure.graphs import GraphEnd
from hookboard.measure.hooked import hooked
from hookboard.measure.module_tap import ModuleTap
from hookboard.model.sites import Role, Site


class Hook:
    """The forward hook and pre-hook of one module: they show each call to all active taps of the module.

    If no tap is active, a call costs the check of an empty tuple.

    Args:
        before: whether there is a pre-hook too.
    """

    __slots__ = ("_on_module", "before", "taps", "users")

    def __init__(self, before: bool = False) -> None:
        self.before = before
        self.taps: tuple[ModuleTap, ...] = ()
        """The active taps."""
        self.users = 0
        """How many `Taps` have called `hold` and not yet `release`."""
        self._on_module = ExitStack()

    # If another thread calls the module while it is hooked or unhooked, torch may leave the last argument out.

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Forward pre-hook: shows the inputs to each active tap.

        Returns:
            None, which keeps the inputs. While torch.compile traces the module, `(args, kwargs)` with copies of the
            inputs if a tap watches their gradients.
        """
        if not self.taps or not self.before or kwargs is None or _is_written_down():
            return None
        if not torch.compiler.is_compiling():
            for tap in self.taps:
                tap.shielded(tap.show_inputs, args, kwargs)
            return None
        replaced = None
        for tap in self.taps:
            if tap.graph_end is not None:
                new = tap.graph_end.before(tap.roles, args, kwargs)
                if new is not None:
                    replaced = args, kwargs = new
        return replaced

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object = None) -> Any:
        """Forward hook: shows the output to each active tap.

        Returns:
            None, which keeps the output. While torch.compile traces the module, a copy of the output if a tap watches
            its gradient.
        """
        if not self.taps or _is_written_down():
            return None
        if not torch.compiler.is_compiling():
            for tap in self.taps:
                tap.shielded(tap.show_outputs, args, output)
            return None
        replaced = None
        for tap in self.taps:
            if tap.graph_end is not None:
                new = tap.graph_end.after(tap.roles, args, kwargs, output)
                if new is not None:
                    replaced = output = new
        return replaced

    def hold(self, module: nn.Module, numbers: dict[str, int], *, is_hidden: bool = False) -> None:
        """Count one more user; at the first, hook the module, after all other hooks that read.

        Args:
            module: the module.
            numbers: see `hooked`.
            is_hidden: see `hooked`.
        """
        self.users += 1
        if self.users == 1:
            # A detour costs nothing more with both, and a tap that needs `enter` may join it later.
            before = self.enter if self.before or is_hidden else None
            self._on_module = hooked(module, before, self.leave, with_kwargs=True, is_hidden=is_hidden, numbers=numbers)

    def release(self) -> None:
        """Count one user less; after the last, remove the hooks."""
        self.users -= 1
        if self.users <= 0:
            self._on_module.close()


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # new in torch 2.7


def _is_written_down() -> bool:
    """Return True while torch writes the model down for others, who have no use for what measures it."""
    return torch.jit.is_tracing() or _is_exporting()


def hook_of(module: nn.Module, before: bool, *, is_hidden: bool = False) -> Hook:
    """Return the module's `Hook`, if it has one and no later hook may change what it sees; otherwise a new one.

    Args:
        module: the module.
        before: whether it must have a pre-hook too.
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
        model: contains the modules. Layers in it that torch runs as one fused operation stay fused: modules inside
            them that are not called show nothing. None: hooks make torch call each module.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]],
        *,
        in_graphs: bool = False,
        each_call: bool = False,
        model: nn.Module | None = None,
    ) -> None:
        self._switch = Switch()
        self._taps = {name: ModuleTap(name, roles, open_site, self._switch, each_call) for name in modules}
        if in_graphs:
            for name, module in modules.items():
                self._taps[name].graph_end = GraphEnd(self._taps[name], module)
        self._modules = dict(modules)
        self._before = each_call or bool({"input", "grad_input"} & set(roles))
        self._hooks: dict[str, Hook] = {}
        """The attached hooks, by the module's name."""
        self._roles = tuple(roles)
        self._old_gradients = {state for module in modules.values() for state in _gradients_of(module)}
        self._model = model
        self._layers: list[list[nn.Module]] = []
        self._fused: list[str] = []
        """The names of modules on which even an idle hook would change the run."""
        self._find_fused()

    def attach(self) -> None:
        """Hook the modules, after the hooks that are already there; nothing is shown before `active` is set.

        TorchScript modules are never hooked, modules inside fused layers only while `active` is set.
        """
        self._hook(name for name in self._modules if name not in self._fused)

    def _find_fused(self) -> None:
        self._layers = [] if self._model is None else fused_layers(self._model)
        fused = {id(module) for layer in self._layers for module in layer}
        self._fused = [name for name, module in self._modules.items() if id(module) in fused]

    def _hook(self, names: Iterable[str], hidden: Collection[int] = ()) -> None:
        numbers: dict[str, int] = {}
        for name in names:
            module = self._modules[name]
            if name not in self._hooks and not isinstance(module, torch.jit.ScriptModule):
                is_hidden = id(module) in hidden
                hook = self._hooks[name] = hook_of(module, self._before, is_hidden=is_hidden)
                hook.hold(module, numbers, is_hidden=is_hidden)

    def _unhook(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._hooks:
                self._hooks[name].release()
                self._hooks.pop(name)

    def detach(self) -> None:
        """Remove every hook. Hooks on a graph that is still alive do nothing from now on."""
        try:
            self.end_step()
        finally:
            self._unhook(list(self._hooks))

    @property
    def active(self) -> bool:
        """Whether tensors are shown to observers. If not, a call of a module costs the check of an empty tuple."""
        return self._switch.on

    @active.setter
    def active(self, on: bool) -> None:
        if on is self._switch.on:
            return
        if on and self._fused:
            hooked_later = self._fused
            self._find_fused()  # some may have been compiled since
            self._hook(hooked_later, unhooked(self._layers))
        self._switch.on = on
        for name, hook in self._hooks.items():
            active = dict.fromkeys(hook.taps)  # in order; a call that is running goes on with the old ones
            active.pop(self._taps[name], None)
            hook.taps = (*active, self._taps[name]) if on else tuple(active)
        if self._fused and not on:
            self._unhook(self._fused)

    def show_pending(self) -> None:
        """Show the gradients of inputs that have arrived in part; another backward pass adds nothing to them."""
        for tap in self._taps.values():
            tap.show_pending()

    def settle(self) -> None:
        """Show the gradients that have arrived in part, and release all that belongs to the step."""
        for tap in self._taps.values():
            if tap.is_unsettled:
                tap.settle()

    def end_step(self) -> None:
        """Stop showing tensors, then `settle`."""
        self.active = False
        self.settle()

    def expected(self) -> Iterator[tuple[str, Role]]:
        """Yield each pair of module name and role; at least one tensor of each should be shown in a step."""
        return ((name, role) for name in self._taps for role in self._roles)

    def why_silent(self, name: str, role: Role) -> str:
        """Return the most likely reason why no tensor of this role of the module was shown."""
        module, tap = self._modules[name], self._taps[name]
        if isinstance(module, torch.jit.ScriptModule):
            return "hooks never fire in a TorchScript module"
        if role in tap.causes:
            return tap.causes[role]
        if not tap.called:
            return _why_not_called(module, self._old_gradients, name in self._fused)
        return NO_GRADIENT


NO_GRADIENT = "no gradient arrived, because the loss does not depend on the output"


def _why_not_called(module: nn.Module, old_gradients: Collection[object], is_in_fused: bool) -> str:
    causes = ["its forward was called directly"]
    if is_in_fused:
        causes.append("torch ran the nn.TransformerEncoderLayer around it as one operation, as in evaluation")
    if is_in_fused and has_compiled_anything():
        causes.append("it runs in a compiled function that is not an attribute of a module")
    if has_compiled_anything():
        causes.append("it runs under a function transform such as torch.func.vmap inside compiled code")
    if any(state not in old_gradients for state in _gradients_of(module)):
        causes.append("its parent uses the weights directly, as nn.MultiheadAttention does")
        return f"the module was not called, yet its parameters received a gradient: {' or '.join(causes)}"
    return f"the module was not called (or {' or '.join(causes)})"


def _gradients_of(module: nn.Module) -> list[tuple[int, int]]:
    """Return the id and version of each gradient of the module's own parameters: a new gradient changes one of them."""
    gradients = [parameter.grad for parameter in parameters_in(module, recurse=False).values()]
    return [(id(gradient), version_of(gradient)) for gradient in gradients if gradient is not None]
