"""`ModuleTap`: shows the tensors of one module to observers."""

import functools
import threading
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hookboard.base.messages import warn_switched_off
from hookboard.base.torch_private import backward_number, in_backward, sequence_number, unseen
from hookboard.measure.gradients import Observer, Switch, watch_output, why_no_gradient
from hookboard.measure.graphs import GraphEnd
from hookboard.measure.input_gradients import Edges, InputGradients, edges_of
from hookboard.measure.own_call import own_calls
from hookboard.model.nested import named_inputs, tensors_in
from hookboard.model.sites import ROLES, Role, Site

UNKNOWN = -1
"""The number of a recomputed call if the module was called several times before: it may repeat any of them."""


class OpenCall(NamedTuple):
    """A call of the module that has not returned yet.

    Args:
        arguments: identifies the call: the `id` of the tuple of its positional arguments.
        number: counts the calls of the module, from 0; a recomputed call may have UNKNOWN.
        edges: the autograd edges to its inputs, on which their gradients arrive.
        since: autograd's sequence number when the call began.
    """

    arguments: int
    number: int
    edges: Edges
    since: int


class CallStack(threading.local):
    """The calls of one module that are running in this thread, the innermost last."""

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []


class CallCounter:
    """Counts a module's calls, and keeps those that are running, separately for each thread.

    A recomputation under checkpointing gets the number of the call it repeats, or UNKNOWN if there were several.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._here = CallStack()

    def enter(self, arguments: int, edges: Edges) -> None:
        """Note that a call begins in this thread.

        Args:
            arguments: the `id` of its tuple of arguments.
            edges: see `OpenCall`.
        """
        with self._lock:
            if in_backward():
                number = 0 if self._count == 1 else UNKNOWN
            else:
                number = self._count
                self._count += 1
        self._here.calls.append(OpenCall(arguments, number, edges, sequence_number()))

    @property
    def are_running(self) -> bool:
        """Whether this thread is in a call; one that began before the taps were active does not count."""
        return bool(self._here.calls)

    @property
    def number(self) -> int:
        """The number of the innermost call of this thread; a recomputed call may have UNKNOWN."""
        return self._here.calls[-1].number

    def returned(self, arguments: int) -> OpenCall:
        """Return the running call with these arguments, and drop calls inside it that have not ended: they failed.

        Args:
            arguments: the `id` of its tuple of arguments. If no call has it, the innermost one is returned.
        """
        calls = self._here.calls
        if any(call.arguments == arguments for call in calls):  # otherwise another hook has replaced the arguments
            while calls[-1].arguments != arguments:
                calls.pop()
        return calls[-1]

    def leave(self) -> None:
        """Note that the innermost call ends."""
        self._here.calls.pop()

    def forget(self) -> None:
        """Drop the calls that have not ended, in all threads."""
        # A new object: from here the lists of other threads cannot be emptied.
        self._here = CallStack()


class ModuleTap:
    """Shows the tensors of one module's calls to observers; `Hook` calls it. It keeps no tensor after the call.

    Args:
        name: the module's dotted name.
        roles: see `Taps`.
        open_site: see `Taps`.
        switch: gradients and the tensors of compiled graphs are shown only while it is on.
        each_call: see `Taps`.
    """

    def __init__(
        self,
        name: str,
        roles: Collection[Role],
        open_site: Callable[[Site], Callable[..., object]],
        switch: Switch,
        each_call: bool = False,
    ) -> None:
        self.name = name
        self.roles = frozenset(roles)
        self.called = False
        """Whether a call has been seen."""
        self.causes: dict[str, str] = {}
        """By role, why a tensor could not be shown."""
        self.graph_end: GraphEnd | None = None
        """Shows the tensors of compiled graphs; None if they are not shown."""
        self.is_unsettled = False
        """Whether `settle` has something to do."""
        self._is_off = False
        self._open_site = open_site
        self._switch = switch
        self._observers: dict[tuple[str, str], Callable[..., object]] = {}
        self._each_call = each_call
        self._calls = CallCounter() if each_call or "grad_input" in roles else None
        self._input_gradients: list[InputGradients] = []
        self._leaf_hooks: list[RemovableHandle] = []

    def receive(self, role: Role, path: str, tensor: Tensor | None, cause: str) -> None:
        """Show a tensor of a running compiled graph, or note why there is none; see `graphs.Receiver.receive`."""
        if self._switch.on:
            self._shielded(self._show_from_graph, role, path, tensor, cause)

    @unseen
    def _shielded(self, show: Callable[..., object], *given: Any) -> None:
        """Call `show(*given)`. An error gives a warning, and nothing is shown from then on.

        Does nothing while hookboard itself calls the model.
        """
        if self._is_off or own_calls:
            return
        try:
            show(*given)
        except Exception as error:  # raised in a hook, it would end the training
            self.causes.update(dict.fromkeys(self.roles, f"could not be read: {error}"))
            self._is_off = True
            warn_switched_off(f"module {self.name!r}", error)

    # Between two graphs torch.compile would compile this function, and all that it calls.
    shielded = torch.compiler.disable(_shielded)
    """`_shielded`, for a caller that torch.compile may have compiled."""

    def show_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a call begins, and show its inputs to their observers now: an in-place module will change them.

        Inputs are shown only if `roles` has "input". The edges for their gradients are noted only for "grad_input".
        """
        inputs = list(tensors_in(named_inputs(args, kwargs)))
        if self._calls is not None:
            self.is_unsettled = True
            self._calls.enter(id(args), edges_of(inputs) if "grad_input" in self.roles else {})
        if "input" in self.roles:
            self._show_all("input", inputs)
            if not inputs:
                self.causes["input"] = "the module was called without any tensor"
        if "grad_input" in self.roles and not any(tensor.requires_grad for _, tensor in inputs):
            self.causes["grad_input"] = _why_no_gradient_of("input", [tensor for _, tensor in inputs])

    def show_outputs(self, args: tuple[Any, ...], output: object) -> None:
        """Show the output tensors to their observers after the call, and hook the gradients of outputs and inputs.

        Each is done only for its role in `roles`. A call that began before the taps were active is skipped if
        calls are counted.
        """
        if self._calls is not None and not self._calls.are_running:
            return
        self.called = True
        call = self._calls.returned(id(args)) if self._calls is not None else None
        outputs = [("", output)] if isinstance(output, Tensor) else list(tensors_in(output))
        if not outputs:
            nothing = f"the module returned {type(output).__name__}, which contains no tensor"
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

    def _show_from_graph(self, role: Role, path: str, tensor: Tensor | None, cause: str) -> None:
        self.called = True
        if tensor is None:
            if cause:
                self.causes[role] = cause
        elif role in ("grad_input", "grad_output"):
            self._observer(role, path)(tensor)
        else:
            self._show_all(role, [(path, tensor)])

    def show_pending(self) -> None:
        """See `Taps.show_pending`."""
        for gradients in self._input_gradients:
            gradients.show_pending()

    def settle(self) -> None:
        """See `Taps.settle`."""
        self.is_unsettled = False
        for gradients in self._input_gradients:
            gradients.settle()
        self._input_gradients.clear()
        for handle in self._leaf_hooks:
            handle.remove()
        self._leaf_hooks.clear()
        if self._calls is not None:
            self._calls.forget()

    def _show_all(self, role: Role, tensors: list[tuple[str, Tensor]]) -> None:
        if backward_number() == -1:  # otherwise a checkpoint recomputes what has been shown before
            for path, tensor in tensors:
                self._observer(role, path)(tensor)

    def _watch_gradient(self, path: str, tensor: Tensor) -> None:
        if not tensor.requires_grad:
            self.causes["grad_output"] = _why_no_gradient_of("output", [tensor])
            return
        on_unclear = functools.partial(self.causes.__setitem__, "grad_output")
        handle = watch_output(tensor, self._observer("grad_output", path), self._switch, on_unclear)
        if handle is not None:
            self.is_unsettled = True
            self._leaf_hooks.append(handle)

    def _watch_input_gradients(self, call: OpenCall, outputs: list[Tensor]) -> None:
        observers = {path: self._observer("grad_input", path) for path in call.edges}
        on_unclear = functools.partial(self.causes.__setitem__, "grad_input")
        gradients = InputGradients(call.edges, outputs, call.since, observers, self._switch, on_unclear)
        self.is_unsettled = True
        self._input_gradients.append(gradients)
        if call.edges and len(gradients.unreached) == len(call.edges):
            self.causes["grad_input"] = "the output does not depend on the input, or is computed in other threads"

    def _observer(self, role: Role, path: str) -> Observer:
        """Return the observer of a site; with `each_call`, it passes on the number of the running call."""
        observer = self._observers.get((role, path))
        if observer is None:
            observer = self._open_site(Site(self.name, role, path))
            if not self._each_call and ROLES[role].is_gradient:  # autograd calls it, outside of the methods here
                observer = functools.partial(self._shielded, observer)
            self._observers[role, path] = observer
        if not self._each_call or self._calls is None:
            return observer
        return functools.partial(observer, self._calls.number)


def _why_no_gradient_of(what: str, tensors: list[Tensor]) -> str:
    if not tensors:
        return "the module was called without any tensor"
    return f"the {what} {why_no_gradient(tensors[0])}"
