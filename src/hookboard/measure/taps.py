"""`Taps`: hooks on modules that show each tensor to an observer."""

import functools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hookboard.base.messages import warn_switched_off
from hookboard.base.torch_private import in_backward, modules_in, runs_compiled, sequence_number, unseen
from hookboard.measure.gradients import (
    NO_GRADIENT,
    Edges,
    Observer,
    Switch,
    edges_of,
    watch_inputs,
    watch_output,
    why_no_gradient,
)
from hookboard.measure.graphs import NOT_SHOWN, GraphEnd
from hookboard.measure.hooked import Hooks, hooked, own_calls
from hookboard.model.nested import named_inputs, tensors_in
from hookboard.model.sites import ROLES, Role, Site

UNKNOWN = -1  # the number of a recomputed call if the module was called several times before: it may repeat any

NOT_CALLED = (
    "the module was not called (or its forward was called directly, its parent uses the weights directly, as "
    "nn.MultiheadAttention does, compiled code runs it, or torch runs an nn.TransformerEncoderLayer, and all inside "
    "it, as one operation in evaluation)"
)


class Taps:
    """Hooks on modules that show the tensors of some roles to observers while they are active.

    Args:
        open_site: returns the observer of a site, before its first tensor. Tensors are not detached.
        in_graphs: whether graphs of torch.compile show theirs too, if they are compiled while the taps are on.
        each_call: whether observers get the number of the module's call, from 0 or `UNKNOWN`, before the tensor.
        model: layers in it that torch fuses stay so, and show nothing in evaluation. None: torch calls each module.
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
        self.open_site, self.each_call = open_site, each_call
        self.roles = tuple(roles)
        self.switch = Switch()
        self._names = tuple(modules)
        fused = {} if model is None else layers_around(model)
        self._taps = {
            name: _ModuleTap(name, module, fused.get(id(module)), self)
            for name, module in modules.items()
            if not isinstance(module, torch.jit.ScriptModule)
        }
        for tap in self._taps.values() if in_graphs else ():
            tap.graph_end = GraphEnd(tap.receive, tap.module)

    def attach(self) -> None:
        """Hook the modules, but those in fused layers, see `layers_around`; nothing is shown before `active` is set."""
        self._hook(tap for tap in self._taps.values() if tap.layer is None)

    def _hook(self, taps: Iterable["_ModuleTap"]) -> None:
        for tap in taps:
            if not tap.hooks:
                before = tap.enter if tap.counts_calls or "input" in self.roles else None
                tap.hooks = hooked(tap.module, before, tap.leave, with_kwargs=True)

    def detach(self) -> None:
        """Remove every hook. Hooks on a graph that is still alive do nothing from now on."""
        try:
            self.end_step()
        finally:
            for tap in self._taps.values():
                tap.hooks.close()
                if tap.graph_end is not None:
                    tap.graph_end.end()

    @property
    def active(self) -> bool:
        """Whether tensors are shown to observers. If not, a call of a module costs the check of a flag."""
        return self.switch.on

    @active.setter
    def active(self, on: bool) -> None:
        if on:
            self._hook(tap for tap in self._taps.values() if tap.layer is not None and tap.layer.training)
        self.switch.on = on
        for tap in self._taps.values():
            if not on and tap.layer is not None:
                tap.hooks.close()

    def end_step(self) -> None:
        """Stop showing tensors, and release all that belongs to the step."""
        self.active = False
        for tap in self._taps.values():
            tap.running.clear()

    def expected(self) -> Iterator[tuple[str, Role]]:
        """Yield each pair of module name and role; at least one tensor of each should be shown in a step."""
        return ((name, role) for name in self._names for role in self.roles)

    def why_silent(self, name: str, role: Role) -> str:
        """Return the most likely reason why no tensor of this role of the module was shown."""
        tap = self._taps.get(name)
        if tap is None:
            return "hooks never fire in a TorchScript module"
        if tap.causes.get(role):
            return tap.causes[role]
        if tap.is_in_graph:
            return NOT_SHOWN
        if not tap.called:
            return NOT_CALLED
        return NO_GRADIENT if ROLES[role].is_gradient else "every tensor was empty"


def layers_around(model: nn.Module) -> dict[int, nn.Module]:
    """Return the layers of a model that torch may run as one operation, by the id of each module in them, or itself."""
    # In evaluation `nn.TransformerEncoderLayer` calls none of the modules inside it. One fused operation does their
    # work; its result differs in the last bits, and is NaN for a fully masked row. torch takes this path only if no
    # module inside has a forward hook or forward pre-hook, so any hook there would change the run.
    every = modules_in(model).values()
    layers = [module for module in every if isinstance(module, nn.TransformerEncoderLayer)]
    if not layers:
        return {}
    # A graph shows tensors only through hooks that it was compiled with.
    compiled = {id(part) for module in every if runs_compiled(module) for part in modules_in(module).values()}
    return {id(part): layer for layer in layers if id(layer) not in compiled for part in modules_in(layer).values()}


class _Call(NamedTuple):
    """A call of a module: its number (UNKNOWN in some); the edges to its inputs; autograd's number when it began."""

    number: int
    edges: Edges
    since: int


class _ModuleTap:
    """The forward hook and pre-hook of one module, which keep no tensor after the call; `taps` has what all share."""

    def __init__(self, name: str, module: nn.Module, layer: nn.Module | None, taps: Taps) -> None:
        self.module, self.hooks = module, Hooks()
        self.layer = layer  # the fused layer in which even an idle hook would change the run
        self.called = False  # whether a call outside of compiled graphs has been seen
        self.is_in_graph = False  # whether a compiled graph has told of a call
        self.causes: dict[str, str] = {}  # by role, why a tensor could not be shown
        self.graph_end: GraphEnd | None = None  # shows the tensors of compiled graphs
        self.running: dict[int, _Call] = {}
        """The calls that have not returned, by the `id` of the tuple of positional arguments; the last one last."""
        self.counts_calls = taps.each_call or "grad_input" in taps.roles
        self._name, self._taps, self._roles, self._switch = name, taps, frozenset(taps.roles), taps.switch
        self._is_off = False
        self._observers: dict[tuple[str, str], Callable[..., object]] = {}
        self._count = 0
        self._lock = threading.Lock()

    # If another thread calls the module while it is hooked or unhooked, torch may leave the last argument out.

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Forward pre-hook: shows the inputs; may return others, which torch.compile traces in their place."""
        if not self._switch.on or kwargs is None or _is_written_down():
            return None
        if torch.compiler.is_compiling():
            return None if self.graph_end is None else self.graph_end.before(self._roles, args, kwargs)
        self._shielded_outside(self._show_inputs, args, kwargs)
        return None

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object = None) -> Any:
        """Forward hook: shows the output; may return another, which torch.compile traces in its place."""
        if not self._switch.on or _is_written_down():
            return None
        if torch.compiler.is_compiling():
            return None if self.graph_end is None else self.graph_end.after(self._roles, args, kwargs, output)
        self._shielded_outside(self._show_outputs, args, output)
        return None

    def receive(self, role: Role, path: str, tensor: Tensor | None) -> None:
        """Show a tensor of a running compiled graph; see `graphs.Receive`."""
        if self._switch.on:
            self._shielded(self._show_from_graph, role, path, tensor)

    def _guarded(self, show: Callable[..., object], *arguments: Any) -> None:
        """Call `show(*arguments)`, but not in own calls; an error gives a warning, and ends the showing."""
        if self._is_off or own_calls:
            return
        try:
            show(*arguments)
        except Exception as error:  # raised in a hook, it would end the training
            self.causes.update(dict.fromkeys(self._roles, f"could not be read: {error}"))
            self._is_off = True
            warn_switched_off(f"module {self._name!r}", error)

    _shielded = unseen(_guarded)
    # Between two graphs torch.compile would compile this function, and all that it calls.
    _shielded_outside = torch.compiler.disable(_shielded)

    def _show_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a call begins, and show its inputs now: an in-place module will change them."""
        inputs = list(tensors_in(named_inputs(args, kwargs)))
        number = 0
        if self.counts_calls:
            with self._lock:
                if not in_backward():
                    number = self._count
                    self._count += 1
                elif self._count != 1:  # a recomputation under checkpointing: nothing says of which call
                    number = UNKNOWN
            edges = edges_of(inputs) if "grad_input" in self._roles else {}
            self.running[id(args)] = _Call(number, edges, sequence_number())
        if "input" in self._roles:
            self._show_all("input", inputs, number)
        if not inputs:
            nothing = "the module was called without any tensor"
            self.causes |= dict.fromkeys(self._roles & {"input", "grad_input"}, nothing)
        elif "grad_input" in self._roles and not any(tensor.requires_grad for _, tensor in inputs):
            self.causes["grad_input"] = f"the input {why_no_gradient(inputs[0][1])}"

    def _show_outputs(self, args: tuple[Any, ...], output: object) -> None:
        """Show the output tensors after the call, and hook the gradients of outputs and inputs."""
        call = _Call(0, {}, 0)
        if self.counts_calls:
            if not self.running:  # it began before the taps were active
                return
            # If another hook has replaced the arguments, it is the innermost call.
            call = self.running.pop(id(args)) if id(args) in self.running else self.running.popitem()[1]
        self.called = True
        outputs = [("", output)] if isinstance(output, Tensor) else list(tensors_in(output))
        if not outputs:
            nothing = f"the module returned {type(output).__name__}, which contains no tensor"
            self.causes |= dict.fromkeys(self._roles & {"output", "grad_output"}, nothing)
        if "output" in self._roles:
            self._show_all("output", outputs, call.number)
        if "grad_output" in self._roles:
            for path, tensor in outputs:
                if tensor.requires_grad and not tensor.is_leaf:
                    watch_output(tensor, self._observer("grad_output", path, call.number), self._switch)
                else:
                    self.causes["grad_output"] = f"the output {why_no_gradient(tensor)}"
        if call.edges:
            observers = {path: self._observer("grad_input", path, call.number) for path in call.edges}
            watch_inputs(call.edges, [tensor for _, tensor in outputs], call.since, observers, self._switch)

    def _show_from_graph(self, role: Role, path: str, tensor: Tensor | None) -> None:
        self.is_in_graph = True
        if tensor is None:
            return
        if ROLES[role].is_gradient:
            self._observer(role, path, 0)(tensor)
        else:
            self._show_all(role, [(path, tensor)], 0)

    def _show_all(self, role: Role, tensors: list[tuple[str, Tensor]], number: int) -> None:
        if not in_backward():  # otherwise a checkpoint recomputes what has been shown before
            for path, tensor in tensors:
                self._observer(role, path, number)(tensor)

    def _observer(self, role: Role, path: str, number: int) -> Observer:
        """Return the observer of a site; with `each_call`, it passes on the number of the call."""
        observer = self._observers.get((role, path))
        if observer is None:
            observer = self._taps.open_site(Site(self._name, role, path))
            if not self._taps.each_call and ROLES[role].is_gradient:  # autograd calls it, outside of the methods here
                observer = functools.partial(self._guarded, observer)
            self._observers[role, path] = observer
        return functools.partial(observer, number) if self._taps.each_call else observer


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # new in torch 2.7


def _is_written_down() -> bool:
    """Return True while torch writes the model down for others, who have no use for what measures it."""
    return torch.jit.is_tracing() or _is_exporting()
