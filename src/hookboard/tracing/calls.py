"""What is known of a step: calls (`Op`), tensors (`Value`), lines (`Place`), and the `PartialGraph` of a loss."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from hookboard.base.messages import cell_of, file_name
from hookboard.base.torch_private import saved_tensors_of, sequence_number_of
from hookboard.health.rule import Finding

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
    """A line of the user's code, and the layer that was running."""

    module: str  # the dotted name of the innermost running layer; "" outside of all layers
    file: str  # the path; "" if no code of the user made the call
    line: int  # from 1

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
    """A call of a function of torch."""

    name: str  # without leading and trailing underscores, such as `softmax`
    arguments: dict[str, Any]  # by name, or by index ("0", ...) if not written in Python; a `Value` for each tensor
    place: Place
    with_grad: bool  # whether autograd was recording
    seen: Any = None  # what the observer of this function returned
    results: "list[Value]" = field(default_factory=list)
    number: float | None = None  # the float that it returned in place of a tensor
    checkpoint: Place | None = None  # where the reentrant one was called in which it ran without autograd

    @functools.cached_property
    def inputs(self) -> "list[Value]":
        """The values of all tensors among the arguments, also of those in lists."""
        return [value for argument in self.arguments.values() for value in _values_in(argument)]


@dataclass(eq=False)
class Value:
    """What is known of a tensor in the step, without its numbers."""

    op: Op | None  # the call that returned it; None if no call of the step did
    path: str | None  # in the batch; None if it is not part of it
    parameter: str | None  # its name, if it is a parameter of the model
    shape: tuple[int, ...]
    requires_grad: bool
    of_batch: bool  # whether it is part of the batch, or computed from such a tensor
    of_parameters: bool  # whether it is a parameter, or computed from one
    is_of: Callable[[Tensor], bool]  # tells whether a tensor with the id of this one is this one
    node: tuple[int, int] | None = None  # the sequence number of its autograd node, and which output of that it is
    scalar: Tensor | None = None  # the tensor, if it is a number that parameters had a part in, without a gradient

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


def _values_in(argument: Any) -> "Iterator[Value]":
    if isinstance(argument, Value):
        yield argument
    elif isinstance(argument, slice):
        yield from _values_in((argument.start, argument.stop, argument.step))
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _values_in(part)


def loss_part(loss: Value) -> list[Op]:
    """Return the calls from the last layer to the loss, last one first: those after the last that takes a parameter."""
    waiting, seen = [loss], dict[Op, None]()
    while waiting:
        value = waiting.pop()
        op = value.op
        if op is None or op in seen or not value.of_parameters or any(part.parameter for part in op.inputs):
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


_LIBRARY = re.compile(
    rf"<|{re.escape(str(Path(__file__).parents[1]))}/"
    r"|.*-packages/(torch|lightning|lightning_fabric|pytorch_lightning|transformers|accelerate)/"
)
"""Paths of files whose lines tell a user nothing."""


@functools.cache
def is_of_library(path: str) -> bool:
    """Return True if a file belongs to torch, Lightning, Hugging Face or hookboard, or is none at all (`<stdin>`)."""
    return bool(_LIBRARY.match(path)) and not cell_of(path)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return `frame` or the nearest of its callers that runs the user's code; None if there is none."""
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


class NotAskedError(RuntimeError):
    """A question is not asked of a graph; the message says why, as a clause."""


_UNANSWERED = (RuntimeError, ValueError, TypeError, IndexError, KeyError, NotImplementedError)
"""What ends a question, and nothing else: NotAskedError, and what torch raises where a tensor is of an odd kind."""


def asked(find: Callable[[Any], Iterable[Finding]]) -> Callable[[Any], Iterator[Finding]]:
    """Make a function that asks questions of a step note why one of them has no answer, and find nothing then."""

    @functools.wraps(find)
    def found(done: Any) -> Iterator[Finding]:
        try:
            yield from find(done)
        except _UNANSWERED as error:
            done.step.not_asked = str(error).split(". ")[0].splitlines()[0] if str(error) else type(error).__name__

    return found


class PartialGraph:
    """The nodes behind a loss, for backward passes that accumulate nothing and keep what the step's own pass needs."""

    def __init__(self, nodes: Sequence[Node], calls: Sequence[range], device: torch.device, why_not: str = "") -> None:
        self._device = device
        numbers = list(map(sequence_number_of, nodes))
        counts = Counter(numbers)  # each thread counts for itself
        self._nodes = {number: node for number, node in zip(numbers, nodes, strict=True) if counts[number] == 1}
        known = {number for call in calls for number in call}  # the nodes that recorded calls made
        if not self._nodes.keys() <= known or len(self._nodes) < len(nodes):  # as of compiled code, or of other threads
            why_not = "the step has parts that cannot be inspected"
        # They may run code of the user; those of DDP and FSDP tell others that a backward pass runs.
        if any(isinstance(node, BackwardCFunction) for node in nodes):
            why_not = "the step uses a custom autograd function"
        self.why_not = why_not  # as a clause; "" if nothing is known against a question

    def let_go(self) -> None:
        """Drop the nodes, which hold what the step has saved for its backward pass."""
        self._nodes.clear()

    def has(self, value: Value) -> bool:
        """Return True if the graph has the tensor, so that its gradient can be asked."""
        return value.node is not None and value.node[0] in self._nodes

    def saved_by(self, value: Value) -> dict[str, Tensor]:
        """Return what the call that made a tensor has saved, by the names of autograd; {} if nothing may be asked."""
        return {} if self.why_not or value.node is None else saved_tensors_of(self._nodes[value.node[0]])

    def gradients(self, end: Value, weights: Tensor, values: Sequence[Value]) -> list[Tensor | None]:
        """Return the gradient of a tensor's numbers, summed with `weights`, in each of `values`; None for 0."""
        if self.why_not:
            raise NotAskedError(self.why_not)
        start, edges = self._edge(end), [*map(self._edge, values)]
        return [*torch.autograd.grad([start], edges, [weights.to(self._device)], retain_graph=True, allow_unused=True)]

    def _edge(self, value: Value) -> GradientEdge:
        assert value.node is not None  # `has` knows it
        number, output = value.node
        return GradientEdge(self._nodes[number], output)
