"""Finds the module that gives the first NaN or Inf in a call of a model, forward or backward."""

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.first_nan.call_tree import (
    MODEL,
    Call,
    Fault,
    Kind,
    Values,
    backward_fault,
    floats_in,
    values_of,
)
from hookboard.hooks import InputGradients, Switch, edges_of, fused_layers, is_own_call, unhooked, watch_output
from hookboard.nested import named_inputs, tensors_in
from hookboard.selection import PARAMETRIZATIONS, named_submodules
from hookboard.torch_private import Detour, in_backward, sequence_number


@dataclass(eq=False)
class _Suspect:
    """Something that gave non-finite values while it took none.

    Args:
        kind: as in `Fault`.
        call: the call that gave them.
        gives: identifies the tensors.
        taker: of the batch, and of what code between modules gave: the first call that takes it.
        came_out: the values.
        is_healed: whether a module has turned them into finite ones since, as softmax does with -Inf.
    """

    kind: Kind
    call: Call
    gives: set[int]
    taker: Call | None = None
    came_out: tuple[Values, ...] = ()
    is_healed: bool = False


class Search:
    """Watches all modules of a model during a call of our own, and says where non-finite values began.

    Args:
        model: the model.
        batch: what it is given, with all tensors in it.
        with_gradients: whether the backward pass is watched too.
    """

    def __init__(self, model: nn.Module, batch: object, *, with_gradients: bool = False) -> None:
        self._with_gradients = with_gradients
        self._modules = {"": model, **dict(named_submodules(model))}
        self.step = Call("", model)
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
        """Hook all modules inside the context."""
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
        """Whether the model is run again; modules that it calls in other threads are not looked at."""
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
        call = Call(name, module, self._running[-1], self._look_at(floats))
        if self._with_gradients:
            call.edges, call.since = edges_of(inputs), sequence_number()
        call.taken = self._bad(floats, call.inputs)
        masks_aside = [v for v in call.inputs if not (v.is_mask and len(call.inputs) > 1)]
        call.is_clean = all(values.is_finite for values in masks_aside)
        self._running[-1].children.append(call)
        if not call.is_clean:
            self._trace_back(call)
        self._running.append(call)

    def _trace_back(self, call: Call) -> None:
        """A call takes non-finite values: whose are they?"""
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

    def _judge(self, call: Call, bad: set[int]) -> None:
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
            kind: Kind = "between" if call.children else "module"
            self._suspects.append(_Suspect(kind, call, bad, came_out=tuple(call.outputs)))

    def _alive(self) -> list[_Suspect]:
        return [suspect for suspect in self._suspects if not suspect.is_healed]

    def _look_at(self, tensors: list[Tensor]) -> list[Values]:
        return [values_of(tensor) for tensor in tensors]

    def _bad(self, tensors: list[Tensor], values: list[Values]) -> set[int]:
        bad = [tensor for tensor, value in zip(tensors, values, strict=True) if not value.is_finite]
        self._kept.extend(bad)
        return {id(tensor) for tensor in bad}

    def _watch_gradients(self, call: Call, outputs: list[Tensor], hooks: ExitStack) -> None:
        def arrives(at: list[tuple[int, Values]], grad: Tensor) -> None:
            self._number += 1
            at.append((self._number, values_of(grad)))

        for tensor in outputs:
            handle = watch_output(tensor, partial(arrives, call.arrived), self._switch)
            if handle is not None:
                hooks.callback(handle.remove)
        observers = {path: partial(arrives, call.passed) for path in call.edges}
        self._gradients.append(InputGradients(call.edges, outputs, call.since, observers, self._switch))
        call.edges = {}

    def forward_fault(self) -> Fault:
        """Where non-finite values of the loss come from, once the call is over."""
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
        """The first parameter that is not finite: of a module and those inside it, then of the others in use."""
        found: list[Fault] = []
        for name, module in self._modules.items():
            is_within = not within or name == within or name.startswith(f"{within}.")
            for own, parameter in module.named_parameters(recurse=False):
                if is_within or parameter.grad is not None:
                    values = values_of(parameter)
                    if not values.is_finite and not values.is_mask:
                        owner = name.partition(f".{PARAMETRIZATIONS}")[0]
                        fault = Fault("parameter", owner, f"{name}.{own}".lstrip("."), came_out=(values,))
                        if is_within:
                            return fault
                        found.append(fault)
        return found[0] if found else None

    def backward_fault(self, spoiled: Collection[str]) -> Fault:
        """Where non-finite gradients come from, once the backward pass is over.

        Args:
            spoiled: the names of the modules whose own parameters got a non-finite gradient.
        """
        for gradients in self._gradients:
            gradients.show_pending()
        return backward_fault(self.step, spoiled)
