"""Hooks on modules: each tensor that passes is shown to an observer; every handle has one owner."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.hooks.compiled import Slots, Traced, TracedTap, in_backward
from hookboard.hooks.gradients import (
    Edges,
    InputGradients,
    Observer,
    Switch,
    edges_of,
    watch_output,
    why_no_gradient,
)
from hookboard.messages import warn_switched_off
from hookboard.nested import tensors_in
from hookboard.sites import Role, Site

UNKNOWN = -1
"""The number of a call that cannot be told from others."""


class Taps:
    """Taps on modules, which show the tensors of some roles to observers while they are active.

    Args:
        modules: name to module.
        roles: from `input`, `output`, `grad_input`, `grad_output`.
        open_site: called with a site when its first tensor is about to pass; returns what that tensor and all
            later ones of the site are shown to, as they are: an observer that keeps one detaches it.
        trace: called with all modules and roles; returns the rows that compiled graphs write to in place of
            observers. Left out: compiled modules are left as they are.
        each_call: whether observers are to know the call: they get its number, from 0 for each module, before the
            tensor.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]],
        trace: Callable[[Collection[tuple[str, Role]]], Mapping[tuple[str, Role], Slots]] | None = None,
        *,
        each_call: bool = False,
    ) -> None:
        self._switch = Switch()
        slots = trace([(name, role) for name in modules for role in roles]) if trace else {}
        self._taps = {}
        for name in modules:
            traced = TracedTap(self._switch, {role: slots[name, role] for role in roles}) if slots else None
            self._taps[name] = _ModuleTap(name, roles, open_site, self._switch, traced, each_call)
        self._modules = dict(modules)
        self._roles = tuple(roles)
        self._each_call = each_call
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Hook every module, behind the hooks that are there already."""
        before = self._each_call or bool({"input", "grad_input"} & set(self._roles))
        for name, module in self._modules.items():
            tap = self._taps[name]
            if isinstance(module, torch.jit.ScriptModule):
                continue
            if before:
                self._handles.append(module.register_forward_pre_hook(tap.before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(tap.after, with_kwargs=True))

    def detach(self) -> None:
        """Remove every hook. What hangs on a graph that is still alive does nothing from now on."""
        self.active = False
        try:
            self.settle()
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    @property
    def active(self) -> bool:
        """Whether tensors are shown to observers; costs one boolean per call where not."""
        return self._switch.on

    @active.setter
    def active(self, on: bool) -> None:
        self._switch.on = on

    def settle(self) -> None:
        """Finish the step: show what is still held back, let go of everything that belonged to it."""
        for tap in self._taps.values():
            tap.settle()

    def expected(self) -> Iterator[tuple[str, Role]]:
        """Every module and role of which at least one tensor should pass."""
        return ((name, role) for name in self._taps for role in self._roles)

    def why_silent(self, name: str, role: Role) -> str:
        """The likeliest cause, as far as it can be established, why no tensor of this role passed the module."""
        module, tap = self._modules[name], self._taps[name]
        if isinstance(module, torch.jit.ScriptModule):
            return "hooks never fire in a TorchScript module"
        if role in tap.causes:
            return tap.causes[role]
        if not tap.called:
            cause = _why_not_called(module)
            if role == "grad_input" and Traced.most_tensors():
                cause += "; or, in a compiled graph, its input needs no gradient or is changed in place by it"
            return cause
        return "no gradient arrived: the output took no part in what was back-propagated"


@contextmanager
def shut_taps(model: nn.Module) -> Iterator[None]:
    """Until the context is left, no taps on modules of `model` show anything: what runs is a call of our own."""
    owners = (getattr(hook, "__self__", None) for m in model.modules() for hook in m._forward_hooks.values())
    switches = {tap._switch for tap in owners if isinstance(tap, _ModuleTap) and tap._switch.on}
    for switch in switches:
        switch.on = False
    try:
        yield
    finally:
        for switch in switches:
            switch.on = True


def _why_not_called(module: nn.Module) -> str:
    graph = (
        "it runs inside a function that was compiled and run before the fit (torch.compiler.reset() before it helps)"
    )
    if any(p.grad is not None for p in module.parameters(recurse=False)):
        return (
            "the module was not called, yet its parameters received a gradient: its forward was called directly, "
            f"{graph}, or its parent uses its weights itself (as nn.MultiheadAttention does)"
        )
    return f"the module was not called in this step (or its forward was called directly, or {graph})"


class _ModuleTap:
    """The hooks of one module. It holds no tensor beyond the call that it is in."""

    def __init__(
        self,
        name: str,
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]] | None,
        switch: Switch,
        traced: TracedTap | None = None,
        each_call: bool = False,
    ) -> None:
        self.name = name
        self.traced = traced
        self.roles = frozenset(roles)
        self.called = False
        self.causes: dict[Role, str] = {}
        self._open_site = open_site
        self._switch = switch
        self._observers: dict[tuple[Role, str], Callable[..., object]] = {}
        self._numbers = _CallNumbers() if each_call else None
        self._entered: list[tuple[Edges, int]] = []
        self._input_gradients: list[InputGradients] = []
        self._leaf_handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied or unpickled model has the hook, but none of the life behind it.
        return _ModuleTap, ("", (), None, Switch())

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pre-hook: an in-place module changes its input, so the input is read here."""
        if torch.compiler.is_compiling():
            return None if self.traced is None else self.traced.before(module, args, kwargs)
        if not self._switch.on or not self.roles:
            return None
        try:
            if self._numbers is not None:
                self._numbers.enter()
            inputs = list(_inputs(args, kwargs))
            if "input" in self.roles and not in_backward():
                for path, tensor in inputs:
                    self._observer("input", path)(tensor)
                if not inputs:
                    self.causes["input"] = "the module was called with no tensor"
            if "grad_input" in self.roles:
                edges = edges_of(inputs)
                self._entered.append((edges, torch.autograd._get_sequence_nr()))
                if not edges:
                    self.causes["grad_input"] = _why_no_gradient_of("input", [tensor for _, tensor in inputs])
        except Exception as error:
            self._give_up(error)
        return None

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> Any:
        """The forward hook. What it returns would replace the output: nothing, but inside a graph."""
        if torch.compiler.is_compiling():
            return None if self.traced is None else self.traced.after(output)
        if not self._switch.on or not self.roles:
            return None
        try:
            self.called = True
            outputs = [("", output)] if isinstance(output, Tensor) else list(tensors_in(output))
            if not outputs:
                nothing = f"the module returned {type(output).__name__}, in which there is no tensor"
                self.causes |= dict.fromkeys(self.roles & {"output", "grad_output"}, nothing)
            if "output" in self.roles and not in_backward():
                for path, tensor in outputs:
                    self._observer("output", path)(tensor)
            if "grad_output" in self.roles:
                for path, tensor in outputs:
                    self._watch_gradient(path, tensor)
            if self._entered:
                self._watch_input_gradients([tensor for _, tensor in outputs])
            if self._numbers is not None:
                self._numbers.leave()
        except Exception as error:
            self._give_up(error)
        return None

    def settle(self) -> None:
        for gradients in self._input_gradients:
            gradients.settle()
        for handle in self._leaf_handles:
            handle.remove()
        self._input_gradients.clear()
        self._leaf_handles.clear()
        self._entered.clear()

    def _watch_gradient(self, path: str, tensor: Tensor) -> None:
        if not tensor.requires_grad:
            self.causes["grad_output"] = _why_no_gradient_of("output", [tensor])
            return
        handle = watch_output(tensor, self._observer("grad_output", path), self._switch)
        if handle is not None:
            self._leaf_handles.append(handle)

    def _watch_input_gradients(self, outputs: list[Tensor]) -> None:
        edges, since = self._entered.pop()
        observers = {path: self._observer("grad_input", path) for path in edges}
        gradients = InputGradients(edges, outputs, since, observers, self._switch)
        self._input_gradients.append(gradients)
        if edges and len(gradients.unreached) == len(edges):
            self.causes["grad_input"] = "the output does not depend on the input"

    def _observer(self, role: Role, path: str) -> Observer:
        observer = self._observers.get((role, path))
        if observer is None:
            assert self._open_site is not None
            observer = self._observers[role, path] = self._open_site(Site(self.name, role, path))
        return observer if self._numbers is None else functools.partial(observer, self._numbers.current)

    def _give_up(self, error: Exception) -> None:
        self.causes = dict.fromkeys(self.roles, f"could not be read: {error}")
        self.roles = frozenset()
        warn_switched_off(f"module {self.name!r}", error)


class _CallNumbers:
    """Numbers the calls of a module; a checkpoint's recomputation is that of the only call or, of several, UNKNOWN."""

    def __init__(self) -> None:
        self._made = 0
        self._entered: list[int] = []

    @property
    def current(self) -> int:
        return self._entered[-1]

    def enter(self) -> None:
        if in_backward():
            self._entered.append(0 if self._made == 1 else UNKNOWN)
        else:
            self._entered.append(self._made)
            self._made += 1

    def leave(self) -> None:
        self._entered.pop()


def _why_no_gradient_of(what: str, tensors: list[Tensor]) -> str:
    if not tensors:
        return "the module was called with no tensor"
    return f"the {what} {why_no_gradient(tensors[0])}"


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """A single positional argument stands without an index; several go by their index, keywords by their name."""
    if len(args) == 1 and not kwargs:
        return tensors_in(args[0])
    named: dict[object, object] = dict(enumerate(args))
    named.update(kwargs)
    return tensors_in(named)
