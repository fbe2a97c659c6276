"""`StepTrace`: records each function of torch that a training step calls, with its file and line."""

import functools
import inspect
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from hookboard.base.torch_private import (
    calls_of_modules,
    can_be_read,
    computing_plainly,
    known_again,
    modules_in,
    packs_saved_tensors,
    parameters_in,
    put_on_stack,
    sequence_number,
    sequence_number_of,
    take_off_stack,
    unheard,
)
from hookboard.health.run import Flow
from hookboard.model.nested import tensors_in
from hookboard.tracing.bad_operation import MAX_NODES, CallPlace, Program, ProgramStep, nodes_behind, step_of
from hookboard.tracing.calls import CUTS, Observer, Op, Place, Value, is_of_library, tensors_of

MAX_OPS = 10_000
"""A step with more calls is not read (a choice), nor is one with more than MAX_NODES nodes, as of a long LSTM."""

_CALLERS = (
    "/hookboard/tracing/step.py",
    "/lightning/pytorch/trainer/call.py",
    "/lightning/pytorch/loops/",
    "/pytorch_lightning/trainer/call.py",
    "/pytorch_lightning/loops/",
    "/lightning/fabric/",
    "/lightning_fabric/",
    "/transformers/trainer.py",
    "/accelerate/accelerator.py",
    "/torch/amp/grad_scaler.py",
)
"""Parts of the paths of files that call the step, or scale its loss: the search for the user's line ends there."""

_ROOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_OWN, _TRACING = _ROOT, os.path.abspath(__file__)
_PASSING_ON = {os.path.join(_ROOT, "capturing", "edits.py"), os.path.join(_ROOT, "measure", "attention.py")}
_OPTIM = os.path.join(os.path.dirname(inspect.getfile(torch.optim)), "")
_OVERRIDES = inspect.getfile(torch.overrides)

_CHECKPOINTED = CheckpointFunction.forward.__code__
"""The code that runs what a reentrant checkpoint was given."""

# Locals of no other code are read: Python would change what its `locals()` returned, and hold them to its end.
_MODULE_CALLS = calls_of_modules()
"""The code that calls a module, with its arguments as `args` and `kwargs`."""

_RISKY = {
    **{
        name: name for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "exp", "reciprocal", "softmax")
    },
    **dict.fromkeys(("div", "truediv", "rtruediv", "divide"), "div"),
}
"""Name of a function that can make a NaN or Inf to what it is called in messages."""

_HOOKING = frozenset({"register_hook", "register_post_accumulate_grad_hook", "retain_grad", "grad_fn"})
"""Functions after which a backward pass may do something besides; nodes get hooks by way of `grad_fn`."""

_NOWHERE = Place("", "", 0)


class NotReadError(RuntimeError):
    """A step is not read; the message says why."""


class StepTrace(TorchFunctionMode):
    """Records each call of torch by its thread, from `begin` to `leave`; an error of ours ends the record alone."""

    def __init__(
        self,
        model: nn.Module,
        batch: object,
        observers: Mapping[str, Observer],
        at_backward: Callable[[Tensor], bool],
    ) -> None:
        super().__init__()
        self.model = model
        self.ops: list[Op] = []  # every call, in order
        self.thread = threading.get_ident()
        self.is_over = False
        self.fault: Exception | None = None  # why the record is not complete; None if it is
        self.is_maximized: bool | None = False  # whether the optimizers prefer a higher loss; None if only some do
        self.compiled_calls = 0  # how many calls of compiled code were not looked into
        self.not_asked = ""  # why nothing is asked of the graph; "" if it may be
        self.loss_calls: dict[Value, list[Any]] = {}  # by loss, what `losses_of` has found, until `let_go`
        self._at_backward = at_backward  # called with the loss before `loss.backward()`, which runs if it returns True
        self._observers = observers  # by name of the function whose calls they see
        self._values: dict[int, Value] = {}
        self.given: dict[Value, Tensor] = {}  # the tensors of the batch
        self.numbers: list[range] = []  # the sequence numbers of the nodes that each call has made
        self._first_number = 0  # the sequence number of the first node that the step makes
        self._modules = {id(module): name for name, module in modules_in(model).items()}
        self._buffers = {id(buffer) for _, buffer in nn.Module.named_buffers(model)}
        self.float_paths: set[str] = set()  # of tensors of the batch with floats, or that enter the model as such
        self._entered: set[Value] = set()  # the tensors of the batch; if it is not known, what the model is called with
        self.note_batch(batch)
        self.is_batch_known = bool(self._entered)
        for name, parameter in parameters_in(model).items():
            self._note(parameter, None, parameter=name)
        self._is_sharded = any(isinstance(parameter, DTensor) for parameter in parameters_in(model).values())

    def note_batch(self, batch: object) -> None:
        """Record the tensors of a batch; those that were computed from parameters, or are noted already, are left."""
        for path, tensor in tensors_in(batch):
            value = self._known(tensor)
            if value is None or not (value.of_parameters or value.of_batch):
                value = self._note(tensor, None, path=path)
            if value not in self._entered and not value.of_parameters:
                self._entered.add(value)
                if tensor.is_floating_point():
                    self.float_paths.update(part.path for part in value.ancestors() if part.path is not None)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function; record the call if it returns a tensor, or is one of `CUTS` or `retain_grad`."""
        kwargs = kwargs or {}
        caller, noted, runs = None, None, True
        try:
            caller = None if self.is_over else self._caller_in(inspect.currentframe())
            if caller is not None and func is Tensor.backward:
                runs = self._at_backward(args[0])
            elif caller is not None:
                with unheard():
                    noted = self._before(func, args, kwargs, caller)
        # The user's call must run, recorded or not. It may be so deep in Python that nothing more can be called here.
        except Exception as error:
            self.fault, self.is_over, error.__traceback__, caller = error, True, None, None
        if not runs:
            return None
        if caller is None or sys.gettrace() is not None or sys.getprofile() is not None:  # they see each call
            returned = func(*args, **kwargs)
        else:
            if "_stacklevel" in kwargs:  # for a warning of the caller's caller
                kwargs = {**kwargs, "_stacklevel": kwargs["_stacklevel"] + _FRAMES}
            returned = _called_from(caller, func, args, kwargs)
        try:
            if noted is not None and not self.is_over:
                with unheard():
                    self._after(args, returned, *noted)
        except Exception as error:  # it has run, and what it returned is what counts
            self.fault, self.is_over, error.__traceback__ = error, True, None
        return returned

    def _caller_in(self, handler: FrameType | None) -> FrameType | None:
        """Return the frame whose call of torch comes to the frame of `__torch_function__`; None if not of the step."""
        if threading.get_ident() != self.thread or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return None
        frame = handler and handler.f_back
        # A function that is written in Python calls a function of `torch.overrides`.
        if frame and frame.f_code.co_filename == _OVERRIDES and frame.f_back and frame.f_back.f_back:
            frame = frame.f_back.f_back
        return frame if frame and _kind_of(frame.f_code.co_filename) != "own" else None

    def _before(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], caller: FrameType
    ) -> Any:
        """Return the call that comes, its arguments that are tensors, and the sequence number before it."""
        if not self.is_batch_known:
            self._note_inputs()
        arguments = _bound(func, args, kwargs)
        op = Op(
            _name_of(func),
            {key: self._seen(argument) for key, argument in arguments.items()},
            _NOWHERE,
            torch.is_grad_enabled(),
        )
        # Fabric hooks what the model returns, and does nothing in it but ask who calls.
        if op.name in _HOOKING and _kind_of(caller.f_code.co_filename) != "caller":
            self.not_asked = "the step registers hooks on tensors"
        elif _are_saved_tensors_packed():
            self.not_asked = "what autograd saves is packed by hooks, as under activation checkpointing"
        tensors = {key: argument for key, argument in arguments.items() if isinstance(argument, Tensor)}
        return op, tensors, sequence_number()

    def _note_inputs(self) -> None:
        """Record the arguments of the running call of the model from the stack: some loops do not tell the batch."""
        frame = inspect.currentframe()  # a hook on the model would become part of compiled code
        while frame is not None:
            if frame.f_code in _MODULE_CALLS and frame.f_locals["self"] is self.model:
                self.note_batch([frame.f_locals["args"], frame.f_locals["kwargs"]])
                return
            frame = frame.f_back

    def _after(self, args: Sequence[Any], returned: Any, op: Op, tensors: Mapping[str, Tensor], number: int) -> None:
        # Item assignment returns nothing: its result is the tensor that it has changed in place.
        name, results = op.name, [args[0]] if op.name == "setitem" else list(tensors_of(returned))
        place = self._place() if results or name in CUTS or name == "retain_grad" else None
        if place is None:
            return
        if len(self.ops) >= MAX_OPS or sequence_number() - self._first_number > MAX_NODES:
            raise NotReadError(f"it makes more than {MAX_OPS:,} calls, or {MAX_NODES:,} autograd nodes")
        op.place, op.number = place, returned if isinstance(returned, float) else None
        observer = self._observers.get(name)
        if observer is not None and all(map(can_be_read, [*tensors.values(), *results])):
            op.seen = computing_plainly(observer)(op, tensors, results)
        if not op.with_grad and any(value.requires_grad for value in op.inputs):
            op.checkpoint = self._checkpoint()
        self.ops.append(op)
        for tensor in results:
            known = self._known(tensor)  # of a call that returns what it takes, as `to` may
            value = self._note(tensor, op, parameter=None if known is None else known.parameter)
            op.results.append(value)
            # Without grad a call makes no node; of a view that it has changed in place, torch raises if asked for one.
            if op.with_grad and tensor.grad_fn is not None:
                value.node = sequence_number_of(tensor.grad_fn), tensor.output_nr
            if value.of_parameters and tensor.numel() == 1 and not tensor.requires_grad:
                value.scalar = tensor  # not detached: dispatch modes of the user's would see it
        self.numbers.append(range(number, sequence_number()))  # a view changed in place gets its node when it is asked

    def begin(self) -> None:
        """Put this trace on this thread's stack of modes."""
        self._first_number = sequence_number()
        put_on_stack(self)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is called inside the context; raise an error of ours at its end."""
        self.begin()
        try:
            yield
        finally:
            self.leave()
        if self.fault is not None:
            raise self.fault

    def leave(self) -> None:
        """End the record, and take this trace off the stack, wherever it stands."""
        self.is_over = True
        if threading.get_ident() == self.thread:
            take_off_stack(self)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take this trace off the stack inside the context; it stays away if it is over by the end."""
        was_there = threading.get_ident() == self.thread and take_off_stack(self)
        try:
            yield
        finally:
            if was_there and not self.is_over:
                put_on_stack(self)

    def give_up(self, error: Exception) -> None:
        """End the record because of an error of ours."""
        self.fault, self.is_over = error.with_traceback(None), True  # the traceback holds the tensors of the step
        self.forget()

    def program_of(self, loss: Tensor) -> Program:
        """Return the autograd nodes behind a loss, in the order in which they were made, with layer and line."""
        nodes, found = nodes_behind(loss), list[ProgramStep]()
        counts = Counter(map(sequence_number_of, nodes))  # each thread counts for itself
        calls = [*zip(self.numbers, self.ops, strict=True)]
        places = {number: op.place for made, op in calls for number in made if counts[number] == 1}
        without = deque((made.start, op) for made, op in calls if not made and op.name in _RISKY)
        for node in nodes:
            before, number = list[str](), sequence_number_of(node)
            while without and without[0][0] <= number:
                _, op = without.popleft()
                before.append(f"{_RISKY[op.name]}()" + (f" at {op.place.short_line}" if op.place.file else ""))
            place = places.get(number, _NOWHERE)
            found.append(step_of(node, CallPlace(place.module, place.short_line, tuple(before))))
        return found

    def flow(self) -> Flow:
        """Return which layer's output flows into which other one."""
        above: dict[str, int] = {}
        bits: dict[str, int] = {}
        behind: dict[int, int] = {}
        for op in self.ops:
            before = 0
            for value in op.inputs:
                if value.op is not None:
                    before |= behind.get(id(value.op), 0)
                elif value.path is None and value.parameter is None:
                    before |= (1 << len(above)) - 1  # as of a compiled block: from any earlier layer
            name = op.place.module
            if name:
                bits.setdefault(name, 1 << len(above))
                above[name] = above.get(name, 0) | before
            behind[id(op)] = before | bits.get(name, 0)
        return Flow(above)

    def forget(self) -> None:
        """Clear the record, which frees the tensors that observers kept, with their graphs."""
        self.let_go()
        for op in self.ops:  # values and calls lead to each other
            op.results.clear()
        self.given.clear()
        self.ops.clear()
        self._entered.clear()
        self._values.clear()
        self.numbers.clear()

    def let_go(self) -> None:
        """Drop the tensors that observers kept, and their graphs."""
        self.loss_calls.clear()
        for op in self.ops:
            op.seen = None  # which may hold the operation in turn
            for value in op.results:
                value.scalar = None

    def value_of(self, tensor: Tensor) -> Value:
        """Return the `Value` of a tensor; a tensor that was not seen before gets one without a call."""
        value, is_new = self._known(tensor), False
        if value is None:
            path = f"given {len(self._values)}" if self._is_data(tensor) else None
            value, is_new = self._note(tensor, None, path), True
        if isinstance(tensor, nn.Parameter) and value.parameter is None and (is_new or self._is_sharded):
            # FSDP2 puts other parameters into the modules while they run, which it has used before.
            value.parameter = next((name for name, one in parameters_in(self.model).items() if one is tensor), None)
            value.of_parameters |= value.parameter is not None
        return value

    def _is_data(self, tensor: Tensor) -> bool:
        """Return True if an unknown tensor seems to be part of a batch that the loop did not pass."""
        if self.is_batch_known or tensor.requires_grad or tensor.is_nested or id(tensor) in self._buffers:
            return False
        if isinstance(tensor, nn.Parameter) or not tensor.dim():
            return False
        return not self._entered or any(tensor.shape[:1] == value.shape[:1] for value in self._entered)

    def _known(self, tensor: Tensor) -> Value | None:
        """Return the `Value` of a tensor that was seen before; None for others."""
        value = self._values.get(id(tensor))
        # An id is given again to another tensor once the first one has died.
        return value if value is not None and value.is_of(tensor) else None

    def _note(self, tensor: Tensor, op: Op | None, path: str | None = None, parameter: str | None = None) -> Value:
        inputs = [] if op is None else op.inputs
        of_batch = path is not None or any(value.of_batch for value in inputs)
        of_parameters = parameter is not None or any(value.of_parameters for value in inputs)
        shape = () if tensor.is_nested else tuple(tensor.shape)
        value = Value(op, path, parameter, shape, tensor.requires_grad, of_batch, of_parameters, known_again(tensor))
        self._values[id(tensor)] = value
        if path is not None and tensor.grad_fn is None:
            self.given[value] = tensor
        return value

    def _seen(self, argument: Any) -> Any:
        """Return an argument with the value in place of each tensor, also in lists, tuples and slices."""
        if isinstance(argument, Tensor):
            return self.value_of(argument)
        if isinstance(argument, slice):
            return slice(*map(self._seen, (argument.start, argument.stop, argument.step)))
        if isinstance(argument, (tuple, list)):
            parts = [self._seen(part) for part in argument]
            return parts if isinstance(argument, list) else tuple(parts)
        return argument

    def _checkpoint(self) -> Place | None:
        """Return where the innermost reentrant checkpoint in the stack was called; None without one."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_code is not _CHECKPOINTED:
            frame = frame.f_back
        return None if frame is None else self._place(frame)

    def _place(self, frame: FrameType | None = None) -> Place | None:
        """Return the user's innermost line, and the model's innermost layer, in the stack of a frame or of the call."""
        file, line, module = "", 0, ""
        # Never the locals of this frame: they would hold the frame, and with it every tensor of the call.
        frame = frame or inspect.currentframe()
        while frame is not None and frame.f_code.co_filename == _TRACING:
            frame = frame.f_back
        while frame is not None and not (file and module):
            kind = _kind_of(frame.f_code.co_filename)
            if kind == "own" and not file and not module:
                return None  # hookboard itself or an optimizer makes the call
            if kind == "caller":
                break
            if not module and frame.f_code in _MODULE_CALLS:
                module = self._modules.get(id(frame.f_locals["self"]), "")
            if not file and kind == "user":
                file, line = frame.f_code.co_filename, frame.f_lineno
            if frame.f_code.co_name == "__torch_function__":  # the user's line has called it
                file, line = "", 0
            frame = frame.f_back
        return Place(module, file, line)


@functools.cache
def _kind_of(path: str) -> Literal["caller", "own", "library", "user"]:
    """Return whose a file is; "own": torch's optimizers, and hookboard but for calls that belong to the step."""
    if any(caller in path for caller in _CALLERS):
        return "caller"
    if path.startswith((_OWN, _OPTIM)) and path not in _PASSING_ON:
        return "own"
    return "library" if is_of_library(path) else "user"


def _are_saved_tensors_packed() -> bool:
    """Return True if hooks pack what autograd saves; torch 2.6 tells only of those of activation checkpointing."""
    packs = packs_saved_tensors()
    if packs is not None:
        return packs
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != _CHECKPOINTED.co_filename:
        frame = frame.f_back
    return frame is not None


_FRAMES = 5
"""How many frames lie between a function that is written in Python, when it is called again, and its first call."""

_CALL = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


def _called_from(frame: FrameType, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function so that a warning that it gives names the line of the frame, and comes once for that line."""
    code = _CALL.replace(co_filename=frame.f_code.co_filename, co_firstlineno=frame.f_lineno)
    return FunctionType(code, frame.f_globals)(func, args, kwargs)


def _name_of(func: Callable[..., Any]) -> str:
    """Return a function's name without underscores at its ends; for an attribute's getter, the attribute's name."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return name.strip("_")


def _bound(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name; positional ones of a function that is not written in Python by index ("0", ...)."""
    signature = _signature_of(func)
    with suppress(TypeError):  # the call does not match the signature
        if signature is not None:
            return signature.bind(*args, **kwargs).arguments
    return {**{str(index): argument for index, argument in enumerate(args)}, **kwargs}


@functools.cache
def _signature_of(func: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(func) if inspect.isfunction(func) else None
    except ValueError:  # it wraps a function in C
        return None
