"""Taps: hooks on modules that show each tensor to an observer."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.hooks.calls import Call, Calls
from hookboard.hooks.gradients import Observer, Switch, watch_output, why_no_gradient
from hookboard.hooks.graphs import GraphEnd
from hookboard.hooks.input_gradients import InputGradients, edges_of
from hookboard.hooks.own_call import is_own_call
from hookboard.messages import warn_switched_off
from hookboard.nested import named_inputs, tensors_in
from hookboard.sites import Role, Site
from hookboard.torch_private import has_compiled_anything, in_backward, renumber, version_of


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
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]],
        *,
        in_graphs: bool = False,
        each_call: bool = False,
    ) -> None:
        self._switch = Switch()
        self._taps = {name: _ModuleTap(name, roles, open_site, self._switch, each_call) for name in modules}
        if in_graphs:
            for name, module in modules.items():
                self._taps[name].graph_end = GraphEnd(self._taps[name], module)
        self._modules = dict(modules)
        self._roles = tuple(roles)
        self._each_call = each_call
        self._old_gradients = {state for module in modules.values() for state in _gradients_of(module)}
        self._until_detached = ExitStack()

    def attach(self) -> None:
        """Hook every module, after the hooks that are already there."""
        before = self._each_call or bool({"input", "grad_input"} & set(self._roles))
        numbers: dict[str, int] = {}
        for name, module in self._modules.items():
            tap = self._taps[name]
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if before:
                self._keep(module.register_forward_pre_hook(tap.before, with_kwargs=True), numbers, "before")
            self._keep(module.register_forward_hook(tap.after, with_kwargs=True), numbers, "after")

    def _keep(self, handle: RemovableHandle, numbers: dict[str, int], when: str) -> None:
        # Graphs of older torch are bound to the numbers of hooks: equal modules share a graph if theirs are equal.
        renumber(handle, numbers.setdefault(when, handle.id))
        self._until_detached.callback(handle.remove)

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


class _ModuleTap:
    """The hooks of one module. It keeps no tensor after the call."""

    def __init__(
        self,
        name: str,
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]] | None,
        switch: Switch,
        each_call: bool = False,
    ) -> None:
        self.name = name
        self.roles = frozenset(roles)
        self.called = False
        self.causes: dict[str, str] = {}
        self._is_off = False
        self._open_site = open_site
        self._switch = switch
        self.graph_end: GraphEnd | None = None
        self._observers: dict[tuple[str, str], Callable[..., object]] = {}
        self._each_call = each_call
        self._calls = Calls() if each_call or "grad_input" in roles else None
        self._input_gradients: list[InputGradients] = []
        self._until_settled = ExitStack()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or unpickled model has the hook, but none of the life behind it.
        return _ModuleTap, ("", (), None, Switch())

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pre-hook. Inputs are read here, because an in-place module changes them."""
        if not self._switch.on:
            return None
        if torch.compiler.is_compiling():
            return None if self.graph_end is None else self.graph_end.before(self.roles, args, kwargs)
        self._enter(args, kwargs)
        return None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Between two graphs torch.compile would compile this function, and all that it calls.
        if self._is_off or is_own_call():
            return
        try:
            inputs = list(tensors_in(named_inputs(args, kwargs)))
            if self._calls is not None:
                self._calls.enter(id(args), edges_of(inputs) if "grad_input" in self.roles else {})
            if "input" in self.roles:
                self._show_all("input", inputs)
                if not inputs:
                    self.causes["input"] = "the module was called with no tensor"
            if "grad_input" in self.roles and not any(tensor.requires_grad for _, tensor in inputs):
                self.causes["grad_input"] = _why_no_gradient_of("input", [tensor for _, tensor in inputs])
        except Exception as error:
            self._give_up(error)

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> Any:
        """The forward hook. It returns None, which leaves the output as it is; inside a graph a replacement output."""
        if not self._switch.on:
            return None
        if torch.compiler.is_compiling():
            return None if self.graph_end is None else self.graph_end.after(self.roles, args, kwargs, output)
        self._leave(args, output)
        return None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
    def _leave(self, args: tuple[Any, ...], output: object) -> None:
        if self._is_off or is_own_call():
            return
        try:
            self.called = True
            call = self._calls.returned(id(args)) if self._calls is not None else None
            outputs = [("", output)] if isinstance(output, Tensor) else list(tensors_in(output))
            if not outputs:
                nothing = f"the module returned {type(output).__name__}, in which there is no tensor"
                self.causes |= dict.fromkeys(self.roles & {"output", "grad_output"}, nothing)
            if "output" in self.roles:
                self._show_all("output", outputs)
            if "grad_output" in self.roles:
                for path, tensor in outputs:
                    self._watch_gradient(path, tensor)
            if self._calls is not None and call is not None:
                if "grad_input" in self.roles:
                    self._watch_input_gradients(call, [tensor for _, tensor in outputs])
                self._calls.leave()
        except Exception as error:
            self._give_up(error)

    def receive(self, role: Role, path: str, tensor: Tensor | None, cause: str) -> None:
        """Take a tensor that a running graph shows; see `graphs.Receiver`."""
        if not self._switch.on or self._is_off:
            return
        try:
            self.called = True
            if tensor is None:
                if cause:
                    self.causes[role] = cause
            elif role in ("grad_input", "grad_output"):
                self._observer(role, path)(tensor)
            else:
                self._show_all(role, [(path, tensor)])
        except Exception as error:
            self._give_up(error)

    def show_pending(self) -> None:
        for gradients in self._input_gradients:
            gradients.show_pending()

    def settle(self) -> None:
        for gradients in self._input_gradients:
            gradients.settle()
        self._input_gradients.clear()
        self._until_settled.close()
        if self._calls is not None:
            self._calls.forget()

    def _show_all(self, role: Role, tensors: list[tuple[str, Tensor]]) -> None:
        if in_backward():  # a checkpoint computes again what has been shown before
            return
        for path, tensor in tensors:
            self._observer(role, path)(tensor)

    def _watch_gradient(self, path: str, tensor: Tensor) -> None:
        if not tensor.requires_grad:
            self.causes["grad_output"] = _why_no_gradient_of("output", [tensor])
            return
        handle = watch_output(tensor, self._observer("grad_output", path), self._switch, self._explain("grad_output"))
        if handle is not None:
            self._until_settled.callback(handle.remove)

    def _watch_input_gradients(self, call: Call, outputs: list[Tensor]) -> None:
        observers = {path: self._observer("grad_input", path) for path in call.edges}
        gradients = InputGradients(
            call.edges, outputs, call.since, observers, self._switch, self._explain("grad_input")
        )
        self._input_gradients.append(gradients)
        if call.edges and len(gradients.unreached) == len(call.edges):
            self.causes["grad_input"] = "the output does not depend on the input, or other threads compute it"

    def _explain(self, role: Role) -> Callable[[str], None]:
        return lambda cause: self.causes.__setitem__(role, cause)

    def _observer(self, role: Role, path: str) -> Observer:
        observer = self._observers.get((role, path))
        if observer is None:
            assert self._open_site is not None
            observer = self._observers[role, path] = self._open_site(Site(self.name, role, path))
        if not self._each_call or self._calls is None:
            return observer
        return functools.partial(observer, self._calls.number)

    def _give_up(self, error: Exception) -> None:
        self.causes = dict.fromkeys(self.roles, f"could not be read: {error}")
        self._is_off = True
        warn_switched_off(f"module {self.name!r}", error)


def _why_no_gradient_of(what: str, tensors: list[Tensor]) -> str:
    if not tensors:
        return "the module was called with no tensor"
    return f"the {what} {why_no_gradient(tensors[0])}"
