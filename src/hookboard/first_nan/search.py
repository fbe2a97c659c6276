"""Finds the module that produces the first NaN or Inf in a call of a model, in the forward or the backward pass."""

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
    """Counts of the NaN and infinite values in one tensor, and its largest finite value.

    Args:
        count: number of elements.
        nan: number of NaN.
        inf: number of infinite elements, of both signs.
        largest: largest absolute finite value; 0 if there is none.
        is_mask: True if the tensor looks like an attention mask: -Inf only, and no gradient.
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
    """Summarize a tensor's values; wait for the device. A tensor that cannot be read counts as empty."""
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
        arrived: gradients that arrived at its outputs, as (order of arrival, summary).
        passed: gradients that it passed back to its inputs, likewise.
        children: the calls that it made itself.
        taken: ids of the inputs that are not finite.
        is_clean: True if all inputs are finite, apart from masks.
        edges: the autograd edges of its inputs; empty without gradients.
        since: autograd's sequence number when the call began.
    """

    name: str
    module: nn.Module
    parent: "CallNode | None" = None
    inputs: list[ValueSummary] = field(default_factory=list)
    outputs: list[ValueSummary] = field(default_factory=list)
    arrived: list[tuple[int, ValueSummary]] = field(default_factory=list)
    passed: list[tuple[int, ValueSummary]] = field(default_factory=list)
    children: list["CallNode"] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    is_clean: bool = True
    edges: Edges = field(default_factory=dict)
    since: int = 0

    def is_inside(self, other: "CallNode") -> bool:
        """Return True if this call runs within `other`, or is `other`."""
        return self is other or (self.parent is not None and self.parent.is_inside(other))

    @property
    def first_bad_gradient(self) -> int | None:
        """Order of arrival of the first gradient in this call that is not finite; None if all are finite."""
        own = [number for number, values in [*self.arrived, *self.passed] if not values.is_finite]
        inside = [number for child in self.children if (number := child.first_bad_gradient) is not None]
        return min([*own, *inside], default=None)


MODEL = "the model itself"
"""Stands for the model's own name, which is empty."""


@dataclass(frozen=True)
class Fault:
    """Where the first non-finite values come from.

    Args:
        kind: `module`: the module produces them. `between`: code in the module's forward does, outside the modules that
            it calls. `batch`: they are in the batch, and this module takes them first. `parameter`: a parameter of the
            module holds them.
        name: the module's dotted name.
        near: for `between`: the module that takes them first (MODEL: the model itself), or, in the backward pass, the
            one whose gradient is bad first. For `parameter`: the parameter's dotted name.
        is_in_step: True if the code is in `training_step`, outside all modules.
        went_in: summaries of the inputs (for the loss: of the last module's outputs); backward: of the gradients that
            arrived at the outputs.
        came_out: summaries of the outputs; backward: of the gradients passed on. For `batch` and `parameter`: of the
            bad tensors.
    """

    kind: FaultKind
    name: str
    near: str = ""
    is_in_step: bool = False
    went_in: tuple[ValueSummary, ...] = ()
    came_out: tuple[ValueSummary, ...] = ()


def backward_fault(step: CallNode, spoiled: Collection[str]) -> Fault:
    """Find where the first non-finite gradient of a backward pass comes from.

    It is the innermost call that received only finite gradients at its outputs and contains a bad one. If no gradient
    of an activation is bad, it is the last called module whose own parameters got a bad gradient.

    Args:
        step: the root of the call tree.
        spoiled: names of the modules whose own parameters got a non-finite gradient.
    """
    if step.first_bad_gradient is None:
        last = next((call for call in _latest_first(step) if call.name in spoiled), step)
        return _fault_in(last, "module" if last is not step else "between", step)
    call = step
    while True:
        inside = [(number, c) for c in call.children if (number := _first_of_its_own(c)) is not None]
        if not inside:
            return _fault_in(call, "between" if call.children or call is step else "module", step)
        call = min(inside, key=lambda pair: pair[0])[1]


def _first_of_its_own(call: CallNode) -> int | None:
    """Return the order of the first bad gradient in a call that received only finite ones; otherwise None."""
    if not call.arrived or not all(values.is_finite for _, values in call.arrived):
        return None
    return call.first_bad_gradient


def _fault_in(call: CallNode, kind: FaultKind, step: CallNode) -> Fault:
    bad = [(number, child) for child in call.children if (number := child.first_bad_gradient) is not None]
    near = min(bad, key=lambda pair: pair[0])[1].name if bad else ""
    arrived, passed = (tuple(values for _, values in group) for group in (call.arrived, call.passed))
    return Fault(kind, call.name, near, call is step, arrived, tuple(v for v in passed if not v.is_finite))


def _latest_first(call: CallNode) -> list[CallNode]:
    found = [call]
    for child in call.children:
        found = [*_latest_first(child), *found]
    return found


@dataclass(eq=False)
class _Suspect:
    """A possible source: something that produced non-finite values from finite ones.

    Args:
        kind: as in `Fault`.
        call: the call that produced them.
        gives: ids of the bad tensors.
        taker: the first call that takes them, if they come from the batch or from code between modules.
        came_out: summaries of the bad tensors.
        is_healed: True once a later module has turned them into finite values, as softmax does with -Inf.
    """

    kind: FaultKind
    call: CallNode
    gives: set[int]
    taker: CallNode | None = None
    came_out: tuple[ValueSummary, ...] = ()
    is_healed: bool = False


class Search:
    """Records all module calls of a run inside `watching`, and tells where non-finite values began.

    Args:
        model: the model.
        batch: the batch that it is run on again.
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
        self.step.inputs = self._look_at(floats := floats_in(batch))
        bad = self._bad(floats, self.step.inputs)
        if bad:
            values = tuple(v for v in self.step.inputs if not v.is_finite)
            self._suspects.append(_Suspect("batch", self.step, bad, came_out=values))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the calls of all modules inside the context."""
        with ExitStack() as hooks:
            hooks.callback(self._settle)
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

    def _is_searching(self) -> bool:
        """Return True during the repeated forward pass. Modules called in other threads are ignored."""
        return is_own_call() and not in_backward() and threading.get_ident() == self._thread

    def _settle(self) -> None:
        for gradients in self._gradients:
            gradients.settle()
        self._switch.on = False
        self._kept.clear()

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_searching():
            return
        inputs = list(tensors_in(named_inputs(args, kwargs)))
        floats = [tensor for _, tensor in inputs if tensor.is_floating_point() or tensor.is_complex()]
        call = CallNode(name, module, self._running[-1], self._look_at(floats))
        if self._with_gradients:
            call.edges, call.since = edges_of(inputs), sequence_number()
        call.taken = self._bad(floats, call.inputs)
        masks_aside = [v for v in call.inputs if not (v.is_mask and len(call.inputs) > 1)]
        call.is_clean = all(values.is_finite for values in masks_aside)
        self._running[-1].children.append(call)
        if not call.is_clean:
            self._trace_back(call)
        self._running.append(call)

    def _trace_back(self, call: CallNode) -> None:
        """Find the suspect whose bad values this call takes, or add one."""
        for suspect in self._suspects:
            if suspect.gives & call.taken:
                suspect.is_healed = False
        alive = self._alive()
        for suspect in alive:
            # A container hands what it takes on to a module inside it: that one is meant.
            is_first = suspect.kind == "batch" and suspect.taker is None
            if is_first or (suspect.taker is not None and call.parent is suspect.taker):
                suspect.taker = call
        if not alive:
            assert call.parent is not None
            bad = tuple(values for values in call.inputs if not values.is_finite)
            self._suspects.append(_Suspect("between", call.parent, set(call.taken), taker=call, came_out=bad))

    def _leave(self, hooks: ExitStack, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        if not self._is_searching():
            return
        if not any(call.module is module for call in self._running[1:]):
            return
        while (call := self._running.pop()).module is not module:
            pass  # it was left by an error
        floats = floats_in(output)
        call.outputs = self._look_at(floats)
        self._judge(call, self._bad(floats, call.outputs))
        if self._with_gradients:
            self._watch_gradients(call, [tensor for tensor in floats if tensor.requires_grad], hooks)

    def _judge(self, call: CallNode, bad: set[int]) -> None:
        if not bad:
            for suspect in self._suspects:
                is_inside = suspect.kind != "batch" and suspect.call.is_inside(call)
                suspect.is_healed |= bool(call.outputs) and (is_inside or bool(suspect.gives & call.taken))
            return
        for suspect in self._suspects:
            if suspect.gives & call.taken:
                suspect.gives |= bad
        explained = any(suspect.kind != "batch" and suspect.call.is_inside(call) for suspect in self._alive())
        if call.is_clean and not explained:
            kind: FaultKind = "between" if call.children else "module"
            self._suspects.append(_Suspect(kind, call, bad, came_out=tuple(call.outputs)))

    def _alive(self) -> list[_Suspect]:
        return [suspect for suspect in self._suspects if not suspect.is_healed]

    def _look_at(self, tensors: list[Tensor]) -> list[ValueSummary]:
        return [summarized(tensor) for tensor in tensors]

    def _bad(self, tensors: list[Tensor], values: list[ValueSummary]) -> set[int]:
        bad = [tensor for tensor, value in zip(tensors, values, strict=True) if not value.is_finite]
        self._kept.extend(bad)
        return {id(tensor) for tensor in bad}

    def _watch_gradients(self, call: CallNode, outputs: list[Tensor], hooks: ExitStack) -> None:
        def arrives(at: list[tuple[int, ValueSummary]], grad: Tensor) -> None:
            self._number += 1
            at.append((self._number, summarized(grad)))

        for tensor in outputs:
            handle = watch_output(tensor, partial(arrives, call.arrived), self._switch)
            if handle is not None:
                hooks.callback(handle.remove)
        observers = {path: partial(arrives, call.passed) for path in call.edges}
        self._gradients.append(InputGradients(call.edges, outputs, call.since, observers, self._switch))
        call.edges = {}

    def forward_fault(self) -> Fault:
        """Return where the non-finite values of the loss come from. Call it after the forward pass."""
        alive = self._alive()
        batch = next((s for s in alive if s.kind == "batch"), None)
        others = [suspect for suspect in alive if suspect is not batch]
        if batch is not None and (batch.taker is not None or not others):
            name = "" if batch.taker is None else batch.taker.name
            return Fault("batch", name, is_in_step=batch.taker is None, came_out=batch.came_out)
        first = others[0] if others else _Suspect("between", self.step, set())
        call, came_out = first.call, first.came_out
        spoiled = self._spoiled(call.name)
        if spoiled is not None:
            return spoiled
        is_loss = call is self.step and first.taker is None
        last = call.children[-1].outputs if is_loss and call.children else call.inputs
        went_in = tuple(values for values in last if not values.is_mask)
        near = "" if first.taker is None else first.taker.name or MODEL
        return Fault(first.kind, call.name, near, call is self.step, went_in, came_out)

    def _spoiled(self, within: str) -> Fault | None:
        """Return the first parameter that is not finite: in the module `within`, else in any that has gradients."""
        found: list[Fault] = []
        for name, module in self._modules.items():
            is_within = not within or name == within or name.startswith(f"{within}.")
            for own, parameter in module.named_parameters(recurse=False):
                if is_within or parameter.grad is not None:
                    values = summarized(parameter)
                    if not values.is_finite and not values.is_mask:
                        owner = name.partition(f".{PARAMETRIZATIONS}")[0]
                        fault = Fault("parameter", owner, f"{name}.{own}".lstrip("."), came_out=(values,))
                        if is_within:
                            return fault
                        found.append(fault)
        return found[0] if found else None

    def backward_fault(self, spoiled: Collection[str]) -> Fault:
        """Return where non-finite gradients come from. Call it after the backward pass.

        Args:
            spoiled: names of the modules whose own parameters got a non-finite gradient.
        """
        for gradients in self._gradients:
            gradients.show_pending()
        return backward_fault(self.step, spoiled)
