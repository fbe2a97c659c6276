"""`Search`: records the module calls of one run, and finds the one that produced the first NaN or Inf."""

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookboard.hooks import Edges, InputGradients, Switch, edges_of, fused_layers, is_own_call, unhooked, watch_output
from hookboard.measure import Moments, measure, plan
from hookboard.nested import named_inputs, tensors_in
from hookboard.ranks import local
from hookboard.selection import PARAMETRIZATIONS, named_submodules
from hookboard.torch_private import Detour, in_backward, sequence_number

FaultKind = Literal["module", "between", "batch", "parameter"]

_PLAN = plan("nan_count")


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """How many values of a tensor are NaN or infinite, and the largest absolute value among the finite ones.

    Args:
        count: number of elements.
        nan: number of NaN.
        inf: number of infinite elements, of both signs.
        largest: largest absolute finite value; 0 if there is none.
        is_mask: True if the tensor looks like an attention mask: it has -Inf, no NaN or +Inf, and needs no gradient.
    """

    count: int
    nan: int
    inf: int
    largest: float
    is_mask: bool = False

    @property
    def is_finite(self) -> bool:
        """True if there is neither NaN nor Inf."""
        return not (self.nan or self.inf)


def summarized(tensor: Tensor) -> ValueSummary:
    """Return the summary of a tensor, which waits for the device; all 0 for a tensor that cannot be read.

    >>> summarized(torch.tensor([1.0, -3.0, torch.nan]))
    ValueSummary(count=3, nan=1, inf=0, largest=3.0, is_mask=False)
    """
    try:
        row = measure(local(tensor.detach()), _PLAN)
    except (TypeError, RuntimeError):
        return ValueSummary(0, 0, 0, 0.0)
    found = Moments(*(row.tolist() if isinstance(row, Tensor) else row))
    largest = max(abs(found.min), abs(found.max)) if found.count else 0.0
    is_mask = bool(found.neginf) and not (found.nan or found.posinf or tensor.requires_grad)
    inf = int(found.posinf + found.neginf)
    return ValueSummary(int(found.count + found.nonfinite), int(found.nan), inf, largest, is_mask)


def floats_in(value: object) -> list[Tensor]:
    """Return the floating-point and complex tensors in a nested structure."""
    return [tensor for _, tensor in tensors_in(value) if tensor.is_floating_point() or tensor.is_complex()]


@dataclass(eq=False)
class CallNode:
    """One call of a module, as a node in the tree of calls that a search records.

    Args:
        name: the module's dotted name; "" for the model itself and for the step around all calls.
        module: the module.
        parent: the call that made this one; None for the step.
        inputs: summaries of its floating-point inputs.
        outputs: summaries of its floating-point outputs.
        output_grads: gradients with respect to its outputs, as (order of arrival, summary).
        input_grads: gradients with respect to its inputs, likewise.
        children: the calls that it made itself.
        bad_inputs: `id` of each input that is not finite.
        is_clean: True if all inputs are finite, apart from masks.
        edges: the autograd edges of its inputs; empty without gradients.
        since: autograd's sequence number when the call began.
    """

    name: str
    module: nn.Module
    parent: "CallNode | None" = None
    inputs: list[ValueSummary] = field(default_factory=list)
    outputs: list[ValueSummary] = field(default_factory=list)
    output_grads: list[tuple[int, ValueSummary]] = field(default_factory=list)
    input_grads: list[tuple[int, ValueSummary]] = field(default_factory=list)
    children: list["CallNode"] = field(default_factory=list)
    bad_inputs: set[int] = field(default_factory=set)
    is_clean: bool = True
    edges: Edges = field(default_factory=dict)
    since: int = 0

    def is_inside(self, other: "CallNode") -> bool:
        """Return True if this call runs within `other`, or is `other`."""
        return self is other or (self.parent is not None and self.parent.is_inside(other))

    @property
    def first_bad_gradient(self) -> int | None:
        """The order of arrival of the first bad gradient in this call and the calls inside; None if all are finite."""
        own = [number for number, values in [*self.output_grads, *self.input_grads] if not values.is_finite]
        inside = [number for child in self.children if (number := child.first_bad_gradient) is not None]
        return min([*own, *inside], default=None)


MODEL = "the model itself"
"""Names the model in messages, because its own dotted name is empty."""


@dataclass(frozen=True)
class Fault:
    """Where the first non-finite values come from.

    Args:
        kind: `module`: the module produces them. `between`: code in the module's forward does, outside the modules that
            it calls. `batch`: they are in the batch, and this module is the first that gets them. `parameter`: a
            parameter of the module holds them.
        name: the module's dotted name; "" for the model itself.
        near: for `between`: the module that gets them first (MODEL: the model itself), or, in the backward pass, the
            one whose gradient is bad first. For `parameter`: the parameter's dotted name.
        is_in_step: True if the code is in `training_step`, outside all modules.
        before: summaries of the inputs (for the loss: of the last module's outputs); backward: of the gradients with
            respect to the outputs.
        after: summaries of the outputs; backward: of the bad gradients with respect to the inputs. For `batch` and
            `parameter`: of the bad tensors.
    """

    kind: FaultKind
    name: str
    near: str = ""
    is_in_step: bool = False
    before: tuple[ValueSummary, ...] = ()
    after: tuple[ValueSummary, ...] = ()


@dataclass(eq=False)
class _Suspect:
    """A possible source: something that produced non-finite values from finite ones.

    Args:
        kind: as in `Fault`.
        call: the call that produced them.
        bad: `id` of each bad tensor, and of each tensor that was computed from one by a module.
        first_user: the first call that gets them, if they come from the batch or from code between modules.
        values: summaries of the bad tensors.
        is_healed: True while a later module has turned them into finite values, as softmax does with -Inf.
    """

    kind: FaultKind
    call: CallNode
    bad: set[int]
    first_user: CallNode | None = None
    values: tuple[ValueSummary, ...] = ()
    is_healed: bool = False


class Search:
    """Records all module calls of a run inside `recording`, and returns where its first NaN or Inf came from.

    Args:
        model: the model.
        batch: the batch that the step is run on.
        with_gradients: True to record the backward pass too.
    """

    def __init__(self, model: nn.Module, batch: object, *, with_gradients: bool = False) -> None:
        self._with_gradients = with_gradients
        self._modules = {"": model, **dict(named_submodules(model))}
        self.step = CallNode("", model)
        self._running = [self.step]
        self._suspects: list[_Suspect] = []
        self._kept: list[Tensor] = []  # so that no other tensor gets the same id
        self._gradients: list[InputGradients] = []
        self._switch = Switch()
        self._thread = threading.get_ident()
        self._number = 0
        self.step.inputs, bad = self._inspect(floats_in(batch))
        if bad:
            values = tuple(v for v in self.step.inputs if not v.is_finite)
            self._suspects.append(_Suspect("batch", self.step, bad, values=values))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls of all modules inside the context, except TorchScript modules."""
        with ExitStack() as hooks:
            hooks.callback(self._end)
            self._switch.on = True
            hidden = unhooked(fused_layers(self.step.module))
            for name, module in self._modules.items():
                if isinstance(module, torch.jit.ScriptModule):
                    continue
                # What a parametrization computes belongs to the module whose weight it is.
                enter = partial(self._enter, name.partition(f".{PARAMETRIZATIONS}")[0])
                leave = partial(self._leave, hooks)
                if id(module) in hidden:
                    hooks.callback(Detour(module, enter, leave).end)
                else:
                    hooks.enter_context(module.register_forward_pre_hook(enter, with_kwargs=True))
                    hooks.enter_context(module.register_forward_hook(leave, with_kwargs=True))
            yield

    def _is_recording(self) -> bool:
        """Return True in the repeated forward pass; False in its backward pass, and for calls of other threads."""
        return is_own_call() and not in_backward() and threading.get_ident() == self._thread

    def _end(self) -> None:
        for gradients in self._gradients:
            gradients.settle()
        self._switch.on = False
        self._kept.clear()

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_recording():
            return
        inputs = list(tensors_in(named_inputs(args, kwargs)))
        floats = [tensor for _, tensor in inputs if tensor.is_floating_point() or tensor.is_complex()]
        summaries, bad = self._inspect(floats)
        call = CallNode(name, module, self._running[-1], summaries, bad_inputs=bad)
        if self._with_gradients:
            call.edges, call.since = edges_of(inputs), sequence_number()
        masks_aside = [v for v in call.inputs if not (v.is_mask and len(call.inputs) > 1)]
        call.is_clean = all(values.is_finite for values in masks_aside)
        self._running[-1].children.append(call)
        if not call.is_clean:
            self._trace_back(call)
        self._running.append(call)

    def _trace_back(self, call: CallNode) -> None:
        """Update `_suspects` when a call is given a NaN or Inf.

        A healed suspect is active again if its values are among the inputs. If no suspect is active then, the code
        before this call becomes one. Otherwise the call becomes the first user of a bad batch that has none yet, and of
        each suspect whose first user is the module that makes this call: that one only passed the values on.
        """
        for suspect in self._suspects:
            if suspect.bad & call.bad_inputs:
                suspect.is_healed = False
        active = self._active()
        for suspect in active:
            # A container passes its inputs on to a module inside it, which is then the first user.
            is_first = suspect.kind == "batch" and suspect.first_user is None
            if is_first or (suspect.first_user is not None and call.parent is suspect.first_user):
                suspect.first_user = call
        if not active:
            assert call.parent is not None
            values = tuple(values for values in call.inputs if not values.is_finite)
            self._suspects.append(_Suspect("between", call.parent, set(call.bad_inputs), call, values))

    def _leave(self, hooks: ExitStack, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        if not self._is_recording():
            return
        if not any(call.module is module for call in self._running[1:]):
            return
        while (call := self._running.pop()).module is not module:
            pass  # an error ended it, and no forward hook was called
        floats = floats_in(output)
        call.outputs, bad = self._inspect(floats)
        self._update_suspects(call, bad)
        if self._with_gradients:
            self._watch_gradients(call, [tensor for tensor in floats if tensor.requires_grad], hooks)

    def _update_suspects(self, call: CallNode, bad: set[int]) -> None:
        """After a call, mark suspects as healed, or add its bad outputs to them, or add the call as a suspect.

        Args:
            call: the call.
            bad: `id` of each output that is not finite.
        """
        if not bad:
            for suspect in self._suspects:
                is_inside = suspect.kind != "batch" and suspect.call.is_inside(call)
                suspect.is_healed |= bool(call.outputs) and (is_inside or bool(suspect.bad & call.bad_inputs))
            return
        for suspect in self._suspects:
            if suspect.bad & call.bad_inputs:
                suspect.bad |= bad
        explained = any(suspect.kind != "batch" and suspect.call.is_inside(call) for suspect in self._active())
        if call.is_clean and not explained:
            kind: FaultKind = "between" if call.children else "module"
            self._suspects.append(_Suspect(kind, call, bad, values=tuple(call.outputs)))

    def _active(self) -> list[_Suspect]:
        return [suspect for suspect in self._suspects if not suspect.is_healed]

    def _inspect(self, tensors: list[Tensor]) -> tuple[list[ValueSummary], set[int]]:
        """Return the summary of each tensor, and the `id` of those that are not finite, which are kept alive."""
        summaries = [summarized(tensor) for tensor in tensors]
        bad = [tensor for tensor, summary in zip(tensors, summaries, strict=True) if not summary.is_finite]
        self._kept.extend(bad)
        return summaries, {id(tensor) for tensor in bad}

    def _watch_gradients(self, call: CallNode, outputs: list[Tensor], hooks: ExitStack) -> None:
        def add(to: list[tuple[int, ValueSummary]], grad: Tensor) -> None:
            self._number += 1
            to.append((self._number, summarized(grad)))

        for tensor in outputs:
            handle = watch_output(tensor, partial(add, call.output_grads), self._switch)
            if handle is not None:
                hooks.callback(handle.remove)
        observers = {path: partial(add, call.input_grads) for path in call.edges}
        self._gradients.append(InputGradients(call.edges, outputs, call.since, observers, self._switch))
        call.edges = {}

    def forward_fault(self) -> Fault:
        """Return where the NaN or Inf of the loss comes from. Call it after the forward pass."""
        active = self._active()
        batch = next((s for s in active if s.kind == "batch"), None)
        others = [suspect for suspect in active if suspect is not batch]
        if batch is not None and (batch.first_user is not None or not others):
            name = "" if batch.first_user is None else batch.first_user.name
            return Fault("batch", name, is_in_step=batch.first_user is None, after=batch.values)
        first = others[0] if others else _Suspect("between", self.step, set())
        call = first.call
        in_parameter = self._fault_in_parameter(call.name)
        if in_parameter is not None:
            return in_parameter
        is_loss = call is self.step and first.first_user is None
        last = call.children[-1].outputs if is_loss and call.children else call.inputs
        before = tuple(values for values in last if not values.is_mask)
        near = "" if first.first_user is None else first.first_user.name or MODEL
        return Fault(first.kind, call.name, near, call is self.step, before, first.values)

    def _fault_in_parameter(self, within: str) -> Fault | None:
        """Return the fault of the first parameter with a NaN or Inf; None if there is none.

        Args:
            within: the name of the module whose parameters, also those of modules inside it, come first; "" for the
                whole model. Of other modules, only parameters with a gradient count.
        """
        found: list[Fault] = []
        for name, module in self._modules.items():
            is_within = not within or name == within or name.startswith(f"{within}.")
            for own, parameter in module.named_parameters(recurse=False):
                if is_within or parameter.grad is not None:
                    values = summarized(parameter)
                    if not values.is_finite and not values.is_mask:
                        owner = name.partition(f".{PARAMETRIZATIONS}")[0]
                        fault = Fault("parameter", owner, f"{name}.{own}".lstrip("."), after=(values,))
                        if is_within:
                            return fault
                        found.append(fault)
        return found[0] if found else None

    def backward_fault(self, spoiled: Collection[str]) -> Fault:
        """Return where the first bad gradient comes from. Call it after the backward pass.

        It is the innermost call that received only finite gradients at its outputs and contains a bad one. If no
        gradient of an activation is bad, it is the last called module in `spoiled`; if none of these was called, the
        code outside all modules.

        Args:
            spoiled: names of the modules whose own parameters got a bad gradient.
        """
        for gradients in self._gradients:
            gradients.show_pending()
        if self.step.first_bad_gradient is None:
            last = next((call for call in _latest_first(self.step) if call.name in spoiled), self.step)
            return _fault_in(last, "module" if last is not self.step else "between", self.step)
        call = self.step
        while True:
            inside = [(number, c) for c in call.children if (number := _first_own_bad_gradient(c)) is not None]
            if not inside:
                return _fault_in(call, "between" if call.children or call is self.step else "module", self.step)
            call = min(inside, key=lambda pair: pair[0])[1]


def _first_own_bad_gradient(call: CallNode) -> int | None:
    """Return `first_bad_gradient` of a call whose outputs received gradients, all of them finite; otherwise None."""
    if not call.output_grads or not all(values.is_finite for _, values in call.output_grads):
        return None
    return call.first_bad_gradient


def _fault_in(call: CallNode, kind: FaultKind, step: CallNode) -> Fault:
    """Return the fault of the backward pass that was traced to this call.

    Args:
        call: where the first bad gradient comes from.
        kind: what happened there, as the caller has found.
        step: the root of the call tree.
    """
    bad = [(number, child) for child in call.children if (number := child.first_bad_gradient) is not None]
    near = min(bad, key=lambda pair: pair[0])[1].name if bad else ""
    before = tuple(values for _, values in call.output_grads)
    after = tuple(values for _, values in call.input_grads if not values.is_finite)
    return Fault(kind, call.name, near, call is step, before, after)


def _latest_first(call: CallNode) -> list[CallNode]:
    """Return a call and all calls inside it, at any depth, in the reverse order of their beginning."""
    found = [call]
    for child in call.children:
        found = [*_latest_first(child), *found]
    return found
