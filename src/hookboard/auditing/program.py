"""`Step`: what one training step calls, from the batch to the loss, with the file and line of each call."""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookboard.flow import Flow
from hookboard.nested import tensors_in
from hookboard.replay import call_training_step
from hookboard.user_code import is_of_library

_CALLERS = (inspect.getfile(call_training_step), str(Path(__file__).with_name("audit.py")))
"""What calls the step; the code that called this is of no interest."""

_RESHAPES = """
view view_as reshape reshape_as squeeze unsqueeze flatten unflatten ravel transpose permute movedim contiguous clone
expand expand_as getitem select narrow index_select masked_select gather T mT float double half bfloat16 to type type_as
cpu cuda requires_grad
"""
RESHAPES = frozenset(_RESHAPES.split())
"""Operations that change where a value stands, or its type, and not the value."""

CUTS = frozenset({"detach", "data", "item", "tolist", "numpy", "argmax"})
"""Operations that no gradient passes."""


class Place(NamedTuple):
    """A line of the user's code, and the layer whose forward was running.

    Args:
        module: the dotted name of the innermost layer; "" outside of all.
        file: its path; "" where the call did not come from the user's code.
        line: its number, from 1.
    """

    module: str
    file: str
    line: int

    def __str__(self) -> str:
        """Return it as a user finds it: `model.py:31 (in net.4)`."""
        line = f"{Path(self.file).name}:{self.line}" if self.file else "training_step"
        return f"{line} (in {self.module})" if self.module else line


@dataclass(eq=False)
class Op:
    """A call of a function of torch.

    Args:
        name: of the function, such as `softmax`, without underscores.
        arguments: what it was given, by the name of the parameter where the function has a signature, else by index.
            A tensor stands there as its `Value`.
        place: where it was called.
        with_grad: whether autograd was recording.
        seen: what its observer made of its tensors; None without one.
    """

    name: str
    arguments: dict[str, Any]
    place: Place
    with_grad: bool
    seen: Any = None

    @property
    def inputs(self) -> "list[Value]":
        """The values of the tensors it was given."""
        return [value for given in self.arguments.values() for value in _values_in(given)]


@dataclass(eq=False)
class Value:
    """A tensor in the step.

    Args:
        op: the operation that gave it; None if it came from outside.
        path: the path in the batch, where it came in with the batch.
        parameter: the name of the parameter, where it is one.
        shape: its shape.
        requires_grad: whether autograd followed it.
        of_batch: whether it was computed from the batch, among others.
        of_parameters: whether it was computed from a parameter, among others.
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
        """The value that it has the numbers of, before views, reshapes and casts."""
        value = self
        while value.op is not None and value.op.name in RESHAPES and value.op.inputs:
            value = value.op.inputs[0]
        return value

    @property
    def made_by(self) -> str:
        """The name of the operation that gave its numbers; "" where they came from outside."""
        op = self.origin.op
        return "" if op is None else op.name

    def ancestors(self) -> "Iterator[Value]":
        """Yield it and every value it was computed from, each once."""
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
"""From a call, the arguments that are tensors, and its results to what is kept of them."""


class Step(TorchFunctionMode):
    """Follows the code that runs inside its context.

    Args:
        model: whose step it is.
        batch: what the step takes.
        observers: for the names of functions, what looks at their tensors when they are called.
        at_backward: is called with a loss in place of its `backward()`.
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
        for path, tensor in tensors_in(batch):
            self._note(tensor, None, path=path)
        for name, parameter in model.named_parameters():
            self._note(parameter, None, parameter=name)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and note the call if it takes a tensor or gives one."""
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return self._at_backward(args[0])
        arguments = _bound(func, args, kwargs)
        values = {name: self._seen(argument) for name, argument in arguments.items()}
        given = {name: argument for name, argument in arguments.items() if isinstance(argument, Tensor)}
        returned = func(*args, **kwargs)
        name = _name_of(func)
        # What is changed in place, and not returned, has other numbers from here on.
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

        What comes from neither the batch nor an operation, such as the result of a compiled block, may come from any
        layer before.
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
        """Drop all that was noted, and with it the tensors and their graphs."""
        for op in self.ops:
            op.seen = None  # which may hold the operation in turn
        self.ops.clear()
        self._values.clear()

    def of(self, tensor: Tensor) -> Value:
        """Return what is known of a tensor."""
        known = self._values.get(id(tensor))
        if known is None or known[0]() is not tensor:
            return self._note(tensor, None)
        return known[1]

    def _note(self, tensor: Tensor, op: Op | None, path: str | None = None, parameter: str | None = None) -> Value:
        inputs = [] if op is None else op.inputs
        of_batch = path is not None or any(value.of_batch for value in inputs)
        of_parameters = parameter is not None or any(value.of_parameters for value in inputs)
        shape = () if tensor.is_nested else tuple(tensor.shape)
        value = Value(op, path, parameter, shape, tensor.requires_grad, of_batch, of_parameters)
        self._values[id(tensor)] = weakref.ref(tensor), value
        return value

    def _seen(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self.of(argument)
        if isinstance(argument, (tuple, list)):
            return [self._seen(part) for part in argument]
        return argument

    def _place(self) -> Place:
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
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return name.strip("_")


def _bound(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name where the function is written in Python, otherwise by index."""
    signature = _signature_of(func)
    if signature is None:
        return {**{str(index): argument for index, argument in enumerate(args)}, **kwargs}
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError:  # it is called in a way that its signature does not tell
        return {**{str(index): argument for index, argument in enumerate(args)}, **kwargs}


@functools.cache
def _signature_of(func: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(func) if inspect.isfunction(func) else None
    except ValueError:  # it wraps a function in C
        return None


def _tensors_in(value: Any) -> "Iterator[Tensor]":
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors_in(part)


def _values_in(given: Any) -> "Iterator[Value]":
    if isinstance(given, Value):
        yield given
    elif isinstance(given, list):
        for part in given:
            yield from _values_in(part)
