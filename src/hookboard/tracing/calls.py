"""What is known of a step: its calls (`Op`), the tensors that they take and return (`Value`), and where (`Place`)."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from hookboard.base.prompts import file_name

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


CREATING = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"}
    | {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "shape", "size", "fill", "zero"}
)
"""Functions that take nothing but shape, dtype and device from a tensor."""


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

    @property
    def short_line(self) -> str:
        """The line as in `model.py:31`; "" without a file."""
        return f"{file_name(self.file)}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        """Return the place as in `at model.py:31 (in net.4)`, or "in library code" without a file."""
        line = f"at {self.short_line}" if self.file else "in library code"
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
        results: the values of the tensors that it returned.
        number: the number that it returned in place of a tensor; None for others.
        checkpoint: where a reentrant checkpoint was called in which it ran without autograd; None for others.
    """

    name: str
    arguments: dict[str, Any]
    place: Place
    with_grad: bool
    seen: Any = None
    results: "list[Value]" = field(default_factory=list)
    number: float | None = None
    checkpoint: Place | None = None

    @functools.cached_property
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
        is_of: tells whether a tensor with the id of this one is this one.
        scalar: the tensor, if it is a single number that parameters had a part in and that needs no gradient.
        node: the sequence number of the autograd node that made it, and which of its outputs it is; None without one.
    """

    op: Op | None
    path: str | None
    parameter: str | None
    shape: tuple[int, ...]
    requires_grad: bool
    of_batch: bool
    of_parameters: bool
    is_of: Callable[[Tensor], bool]
    node: tuple[int, int] | None = None
    scalar: Tensor | None = None

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

    def ancestors(self, wanted: "Callable[[Value], bool]" = lambda value: True) -> "Iterator[Value]":
        """Yield this value and all that it was computed from, each once; stop at values that are not `wanted`."""
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            value = waiting.pop()
            if id(value) in seen or not wanted(value):
                continue
            seen.add(id(value))
            yield value
            if value.op is not None:
                waiting.extend(value.op.inputs)


Observer = Callable[[Op, Mapping[str, Tensor], Sequence[Tensor]], Any]
"""Called after a function with the call, its arguments that are tensors, and its results; returns `Op.seen`."""


def _values_in(given: Any) -> "Iterator[Value]":
    """Yield a value, or those in a list or slice, nested ones too."""
    if isinstance(given, Value):
        yield given
    elif isinstance(given, slice):
        yield from _values_in((given.start, given.stop, given.step))
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _values_in(part)


def loss_part(loss: Value) -> list[Op]:
    """Return the calls from the last layer to the loss, last one first: those after the last that takes a parameter."""
    waiting, seen = [loss], dict[Op, None]()
    while waiting:
        value = waiting.pop()
        op = value.op
        if op is None or op in seen or not value.of_parameters or any(one.parameter for one in op.inputs):
            continue
        seen[op] = None
        waiting += op.inputs
    return list(seen)


def tensors_of(returned: Any) -> "Iterator[Tensor]":
    """Yield a tensor, or those in a list or tuple, nested ones too."""
    if isinstance(returned, Tensor):
        yield returned
    elif isinstance(returned, (tuple, list)):
        for part in returned:
            yield from tensors_of(part)
