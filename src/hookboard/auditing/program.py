"""`StepTrace`: records each function of torch that a training step calls, with its file and line."""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookboard.layers import Flow
from hookboard.nested import tensors_in
from hookboard.replay import call_training_step
from hookboard.user_code import is_of_library

_CALLERS = (inspect.getfile(call_training_step), str(Path(__file__).with_name("audit.py")))
"""The files that call the step: the search for the user's line in the stack ends there."""

_RESHAPES = """
view view_as reshape reshape_as squeeze unsqueeze flatten unflatten ravel transpose t permute movedim moveaxis swapaxes
swapdims contiguous clone
expand expand_as getitem select narrow index_select masked_select gather T mT float double half bfloat16 to type type_as
cpu cuda requires_grad
"""
RESHAPES = frozenset(_RESHAPES.split())
"""Operations that move, repeat, select or cast numbers, and leave them otherwise unchanged."""

CUTS = frozenset({"detach", "data", "item", "tolist", "numpy", "argmax"})
"""Operations whose result has no gradient with respect to their input."""


class Place(NamedTuple):
    """A line of the user's code, and the layer that was running.

    Args:
        module: the dotted name of the innermost running layer; "" outside of all layers.
        file: the path of the file; "" if no code of the user made the call.
        line: the line number, from 1.
    """

    module: str
    file: str
    line: int

    def __str__(self) -> str:
        """Return the place as in `model.py:31 (in net.4)`, or "training_step" without a file."""
        line = f"{Path(self.file).name}:{self.line}" if self.file else "training_step"
        return f"{line} (in {self.module})" if self.module else line


@dataclass(eq=False)
class Op:
    """A call of a function of torch.

    Args:
        name: the name of the function without leading and trailing underscores, such as `softmax`.
        arguments: the arguments that were given, by parameter name; positional ones of a function that is not written
            in Python by index ("0", "1", ...). In place of a tensor stands its `Value`.
        place: where it was called.
        with_grad: whether autograd was recording.
        seen: what the observer of this function returned; None if it has none.
    """

    name: str
    arguments: dict[str, Any]
    place: Place
    with_grad: bool
    seen: Any = None

    @property
    def inputs(self) -> "list[Value]":
        """The values of all tensors among the arguments, also of those in lists."""
        return [value for given in self.arguments.values() for value in _values_in(given)]


@dataclass(eq=False)
class Value:
    """What is known of a tensor in the step, without its numbers.

    Args:
        op: the call that returned it; None if no call of the step did.
        path: its path in the batch; None if it is not part of it.
        parameter: its name, if it is a parameter of the model, else None.
        shape: its shape.
        requires_grad: its `requires_grad`.
        of_batch: whether it is part of the batch, or computed from such a tensor.
        of_parameters: whether it is a parameter, or computed from one.
    """

    op: Op | None
    path: str | None
    parameter: str | None
    shape: tuple[int, ...]
    requires_grad: bool
    of_batch: bool
    of_parameters: bool

    @property
    def origin(self) -> "Value":
        """The value from which this one was made by views, reshapes and casts alone (`RESHAPES`); itself if by none."""
        value = self
        while value.op is not None and value.op.name in RESHAPES and value.op.inputs:
            value = value.op.inputs[0]
        return value

    @property
    def made_by(self) -> str:
        """The name of the function that computed its numbers; "" if no call of the step did."""
        op = self.origin.op
        return "" if op is None else op.name

    def ancestors(self) -> "Iterator[Value]":
        """Yield this value and every value that it was computed from, each once."""
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            if value.op is not None:
                waiting.extend(value.op.inputs)


Observer = Callable[[Op, Mapping[str, Tensor], Sequence[Tensor]], Any]
"""Called after a function with the call, its arguments that are tensors, and its results; returns `Op.seen`."""


class StepTrace(TorchFunctionMode):
    """Records each call of a function of torch that runs inside its context.

    Args:
        model: the model whose step runs.
        batch: the batch that the step takes.
        observers: function name to what is called with the tensors of each call of that function.
        at_backward: called with the loss in place of `loss.backward()`.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: object,
        observers: Mapping[str, Observer],
        at_backward: Callable[[Tensor], None],
    ) -> None:
        super().__init__()
        self.model = model
        self.ops: list[Op] = []
        """Every call, in order."""
        self._at_backward = at_backward
        self._observers = observers
        self._values: dict[int, tuple[weakref.ref[Tensor], Value]] = {}
        self._modules = {id(module): name for name, module in model.named_modules()}
        self.float_paths: set[str] = set()
        """The paths of the tensors of the batch that hold floating point numbers."""
        for path, tensor in tensors_in(batch):
            self._note(tensor, None, path=path)
            if tensor.is_floating_point():
                self.float_paths.add(path)
        for name, parameter in model.named_parameters():
            self._note(parameter, None, parameter=name)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record the call if it returns a tensor or is one of `CUTS`."""
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return self._at_backward(args[0])
        arguments = _bound(func, args, kwargs)
        values = {name: self._seen(argument) for name, argument in arguments.items()}
        given = {name: argument for name, argument in arguments.items() if isinstance(argument, Tensor)}
        returned = func(*args, **kwargs)
        name = _name_of(func)
        # Item assignment returns nothing: its result is the tensor that it has changed in place.
        results = [args[0]] if name == "setitem" else list(_tensors_in(returned))
        if results or name in CUTS:
            op = Op(name, values, self._place(), torch.is_grad_enabled())
            observer = self._observers.get(name)
            if observer is not None:
                op.seen = observer(op, given, results)
            self.ops.append(op)
            for tensor in results:
                self._note(tensor, op)
        return returned

    def flow(self) -> Flow:
        """Return which layer's output flows into which other one.

        A tensor that comes from neither the batch, a parameter nor a recorded call, such as the result of a compiled
        block, may come from any earlier layer.
        """
        above: dict[str, int] = {}
        bits: dict[str, int] = {}
        behind: dict[int, int] = {}
        for op in self.ops:
            given = 0
            for value in op.inputs:
                if value.op is not None:
                    given |= behind.get(id(value.op), 0)
                elif value.path is None and value.parameter is None:
                    given |= (1 << len(above)) - 1
            name = op.place.module
            if name:
                bits.setdefault(name, 1 << len(above))
                above[name] = above.get(name, 0) | given
            behind[id(op)] = given | bits.get(name, 0)
        return Flow(above)

    def forget(self) -> None:
        """Clear the record, which frees the tensors that observers kept, with their graphs."""
        for op in self.ops:
            op.seen = None  # which may hold the operation in turn
        self.ops.clear()
        self._values.clear()

    def value_of(self, tensor: Tensor) -> Value:
        """Return the `Value` of a tensor; a tensor that was not seen before gets one without a call."""
        known = self._values.get(id(tensor))
        if known is None or known[0]() is not tensor:
            return self._note(tensor, None)
        return known[1]

    def _note(self, tensor: Tensor, op: Op | None, path: str | None = None, parameter: str | None = None) -> Value:
        """Record a tensor, and return its value."""
        inputs = [] if op is None else op.inputs
        of_batch = path is not None or any(value.of_batch for value in inputs)
        of_parameters = parameter is not None or any(value.of_parameters for value in inputs)
        shape = () if tensor.is_nested else tuple(tensor.shape)
        value = Value(op, path, parameter, shape, tensor.requires_grad, of_batch, of_parameters)
        self._values[id(tensor)] = weakref.ref(tensor), value
        return value

    def _seen(self, argument: Any) -> Any:
        """Return an argument with the value in place of each tensor, also in lists and tuples, which become lists."""
        if isinstance(argument, Tensor):
            return self.value_of(argument)
        if isinstance(argument, (tuple, list)):
            return [self._seen(part) for part in argument]
        return argument

    def _place(self) -> Place:
        """Return the innermost line of the user's code in the stack, and the innermost layer of the model."""
        file, line, module = "", 0, ""
        own = inspect.currentframe()
        assert own is not None
        # Never the locals of this frame: they would hold the frame, and with it every tensor of the call.
        frame = own.f_back
        del own
        while frame is not None and not (file and module) and frame.f_code.co_filename not in _CALLERS:
            if not module:
                owner = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
                module = self._modules.get(id(owner), "")
            if not file and not is_of_library(frame.f_code.co_filename):
                file, line = frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return Place(module, file, line)


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
    """Return the signature of a function written in Python; None for others."""
    try:
        return inspect.signature(func) if inspect.isfunction(func) else None
    except ValueError:  # it wraps a function in C
        return None


def _tensors_in(value: Any) -> "Iterator[Tensor]":
    """Yield a tensor, or those in a list or tuple, nested ones too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors_in(part)


def _values_in(given: Any) -> "Iterator[Value]":
    """Yield a value, or those in a list, nested ones too."""
    if isinstance(given, Value):
        yield given
    elif isinstance(given, list):
        for part in given:
            yield from _values_in(part)
