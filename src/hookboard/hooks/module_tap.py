"""`ModuleTap`: shows the tensors of one module to observers."""

import functools
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookboard.clock import Clock, timed
from hookboard.hooks.gradients import Observer, Switch, watch_output, why_no_gradient
from hookboard.hooks.graphs import GraphEnd
from hookboard.hooks.input_gradients import Edges, InputGradients, edges_of
from hookboard.hooks.own_call import own_calls
from hookboard.messages import warn_switched_off
from hookboard.nested import named_inputs, tensors_in
from hookboard.sites import ROLES, Role, Site
from hookboard.torch_private import backward_number, in_backward, sequence_number

UNKNOWN = -1
"""The number of a call that cannot be told from others."""


class OpenCall(NamedTuple):
    """A call that has begun.

    Args:
        arguments: identifies it: `id` of the tuple of its arguments.
        number: of the call, from 0 for each module.
        edges: where the gradients of its inputs go.
        since: autograd's number when it began.
    """

    arguments: int
    number: int
    edges: Edges
    since: int


class Calls:
    """The running calls of one module, for each thread by itself, the innermost last.

    Calls are numbered in the order in which they begin. A recomputation under checkpointing gets the number of the
    call it repeats, or UNKNOWN if there were several.
    """

    def __init__(self) -> None:
        self._made = 0
        self._lock = threading.Lock()
        self._here = _Running()

    def enter(self, arguments: int, edges: Edges) -> None:
        """Note that a call begins."""
        with self._lock:
            if in_backward():
                number = 0 if self._made == 1 else UNKNOWN
            else:
                number = self._made
                self._made += 1
        self._here.calls.append(OpenCall(arguments, number, edges, sequence_number()))

    @property
    def are_running(self) -> bool:
        """Whether this thread is in a call; one that began before the taps were active does not count."""
        return bool(self._here.calls)

    @property
    def number(self) -> int:
        """The number of the innermost call of this thread."""
        return self._here.calls[-1].number

    def returned(self, arguments: int) -> OpenCall:
        """Return the call with these arguments, and drop the calls still open inside it, which have failed."""
        calls = self._here.calls
        if any(call.arguments == arguments for call in calls):  # else another hook has changed them on the way
            while calls[-1].arguments != arguments:
                calls.pop()
        return calls[-1]

    def leave(self) -> None:
        """Note that the innermost call ends."""
        self._here.calls.pop()

    def forget(self) -> None:
        """Forget calls that have not ended, in all threads."""
        self._here = _Running()


class _Running(threading.local):
    """The calls that are running in a thread."""

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []


class ModuleTap:
    """Shows the tensors of one module's calls to observers; its hooks call it. It keeps no tensor after the call."""

    def __init__(
        self,
        name: str,
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]],
        switch: Switch,
        each_call: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
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

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
    @timed
    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Show the inputs before a call, because an in-place module will change them."""
        # Between two graphs torch.compile would compile this function, and all that it calls.
        if self._is_off or own_calls:
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

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
    @timed
    def leave(self, args: tuple[Any, ...], output: object) -> None:
        """Show the outputs after a call, and watch the gradients that will arrive."""
        if self._is_off or own_calls or (self._calls is not None and not self._calls.are_running):
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

    @timed
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
        """See `Taps.show_pending`."""
        for gradients in self._input_gradients:
            gradients.show_pending()

    def settle(self) -> None:
        """See `Taps.settle`."""
        for gradients in self._input_gradients:
            gradients.settle()
        self._input_gradients.clear()
        self._until_settled.close()
        if self._calls is not None:
            self._calls.forget()

    def _show_all(self, role: Role, tensors: list[tuple[str, Tensor]]) -> None:
        if backward_number() == -1:  # else a checkpoint computes again what has been shown before
            for path, tensor in tensors:
                self._observer(role, path)(tensor)

    def _watch_gradient(self, path: str, tensor: Tensor) -> None:
        if not tensor.requires_grad:
            self.causes["grad_output"] = _why_no_gradient_of("output", [tensor])
            return
        on_unclear = functools.partial(self.causes.__setitem__, "grad_output")
        handle = watch_output(tensor, self._observer("grad_output", path), self._switch, on_unclear)
        if handle is not None:
            self._until_settled.callback(handle.remove)

    def _watch_input_gradients(self, call: OpenCall, outputs: list[Tensor]) -> None:
        observers = {path: self._observer("grad_input", path) for path in call.edges}
        on_unclear = functools.partial(self.causes.__setitem__, "grad_input")
        gradients = InputGradients(call.edges, outputs, call.since, observers, self._switch, on_unclear)
        self._input_gradients.append(gradients)
        if call.edges and len(gradients.unreached) == len(call.edges):
            self.causes["grad_input"] = "the output does not depend on the input, or other threads compute it"

    def _observer(self, role: Role, path: str) -> Observer:
        observer = self._observers.get((role, path))
        if observer is None:
            observer = self._open_site(Site(self.name, role, path))
            if self.clock is not None and ROLES[role].is_gradient:  # autograd calls it, not one of the methods here
                observer = timed(observer, self.clock)
            self._observers[role, path] = observer
        if not self._each_call or self._calls is None:
            return observer
        return functools.partial(observer, self._calls.number)

    def _give_up(self, error: Exception) -> None:
        self.causes.update(dict.fromkeys(self.roles, f"could not be read: {error}"))
        self._is_off = True
        warn_switched_off(f"module {self.name!r}", error)


def _why_no_gradient_of(what: str, tensors: list[Tensor]) -> str:
    if not tensors:
        return "the module was called with no tensor"
    return f"the {what} {why_no_gradient(tensors[0])}"
