"""`PartialGraph`: the graph of a loss, of which parts of a gradient are asked before the step's own backward pass."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from hookboard.base.torch_private import saved_tensors_of, sequence_number_of
from hookboard.health.rule import Finding
from hookboard.tracing.calls import Value


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
    """The nodes behind a loss.

    A question is one backward pass from a part of a tensor to other tensors. It accumulates nothing, and keeps what the
    step's own backward pass needs. Code of the user would run in it only by hooks and in custom functions: where the
    step has one, nothing is asked.

    Args:
        nodes: the nodes behind the loss.
        calls: for each recorded call, the sequence numbers of the nodes that it has made.
        device: the device of the loss.
        why_not: why nothing may be asked, as a clause; "" if nothing is known against it.
    """

    def __init__(self, nodes: Sequence[Node], calls: Sequence[range], device: torch.device, why_not: str = "") -> None:
        self._device = device
        numbers = list(map(sequence_number_of, nodes))
        counts = Counter(numbers)  # each thread counts for itself
        self._nodes = {number: node for number, node in zip(numbers, nodes, strict=True) if counts[number] == 1}
        known = {number for call in calls for number in call}
        if not self._nodes.keys() <= known or len(self._nodes) < len(nodes):  # as of compiled code, or of other threads
            why_not = "the step has parts that cannot be inspected"
        # Also those of DDP and FSDP: they tell others that a backward pass runs.
        if any(isinstance(node, BackwardCFunction) for node in nodes):
            why_not = "the step uses a custom autograd function"
        self.why_not = why_not

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
        """Return the gradient of the weighted sum of a tensor's numbers in each of these tensors; None for 0.

        Args:
            end: the tensor.
            weights: the weight of each of its numbers, same shape.
            values: the tensors, which `has` knows.

        Raises:
            NotAskedError: code of the user might run; the message says which.
        """
        if self.why_not:
            raise NotAskedError(self.why_not)
        start, edges = self._edge(end), [*map(self._edge, values)]
        return [*torch.autograd.grad([start], edges, [weights.to(self._device)], retain_graph=True, allow_unused=True)]

    def _edge(self, value: Value) -> GradientEdge:
        assert value.node is not None  # `has` knows it
        number, output = value.node
        return GradientEdge(self._nodes[number], output)
