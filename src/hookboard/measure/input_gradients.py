"""The gradients that a module passes back to its inputs, by hooks on the autograd nodes that the module made."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from hookboard.base.torch_private import backward_number, base_of, sequence_number_of, unseen
from hookboard.measure.gradients import (
    Explain,
    Memory,
    MemoryLayout,
    Observer,
    Switch,
    ViewGradient,
    layout_of,
    memory_of,
    views_between,
    watch_output,
)


class InputEdge(NamedTuple):
    """The autograd edges that lead to one input of a module.

    Args:
        edge: the edge to the input's own node.
        layout: the layout of its elements in memory; None for subclasses, sparse and nested tensors.
        base_edge: if the input is a view, the edge to its base's node. An in-place module passes the gradient there.
            None if there is no `memory`.
        memory: the memory of such a view; None where `memory_of` returns None.
    """

    edge: GradientEdge
    layout: MemoryLayout | None
    base_edge: GradientEdge | None
    memory: Memory | None


Edges = dict[str, InputEdge]
"""The edges to the inputs of a module, by path."""


def edges_of(inputs: Iterable[tuple[str, Tensor]]) -> Edges:
    """Return the edges to the inputs of a module that require a gradient, by path.

    It must be called before the module runs: an in-place module changes the history of its input tensor.
    """
    return {path: _edge_of(tensor) for path, tensor in inputs if tensor.requires_grad}


def _edge_of(tensor: Tensor) -> InputEdge:
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested
    layout = layout_of(tensor) if is_plain else None
    memory, base = memory_of(tensor), base_of(tensor)
    base_edge = get_gradient_edge(base) if memory is not None and base is not None else None
    return InputEdge(get_gradient_edge(tensor), layout, base_edge, memory)


class InputGradients:
    """The gradients that one call of a module passes back to its inputs.

    A tensor hook on an input would see the gradient from all its uses, also those outside the module (a residual
    branch). What passes through the module arrives on the edges from the nodes that it made to the inputs, and
    hooks on those nodes read it there.

    Args:
        inputs: the edges of the inputs.
        outputs: the tensors that the module returned.
        since: autograd's sequence number when the call began; nodes with smaller numbers are not the module's.
        observers: path of the input to the observer of its gradient.
        switch: nothing is observed while it is off.
        on_unclear: is called with the cause if there is a gradient that is not observed.

    Attributes:
        unreached: the paths of the inputs on which no output depends.
    """

    def __init__(
        self,
        inputs: Edges,
        outputs: Iterable[Tensor],
        since: int,
        observers: Mapping[str, Observer],
        switch: Switch,
        on_unclear: Explain = lambda cause: None,
    ) -> None:
        self._switch = switch
        self._on_unclear = on_unclear
        self._pending: list[_PassedBack] = []
        self._handles: list[RemovableHandle | None] = []
        self.unreached: list[str] = []
        outputs = [tensor for tensor in outputs if tensor.requires_grad]
        returned = {_key(get_gradient_edge(tensor)): tensor for tensor in outputs}
        before = {edge.node for given in inputs.values() for edge in (given.edge, given.base_edge) if edge is not None}
        crossings = _crossings(outputs, before, since)
        views = _views_by_node(outputs)
        for path, given in inputs.items():
            key = _key(given.edge)
            if key in returned:  # the module returned its input: the gradient of the output is that of the input
                self._handles.append(watch_output(returned[key], observers[path], switch, on_unclear))
                continue
            into = crossings.get(key, [])
            behind = [] if given.base_edge is None else crossings.get(_key(given.base_edge), [])
            if not into and not behind:
                self.unreached.append(path)
                continue
            passed = _PassedBack(observers[path], len(into) + len(behind))
            for node, slot in into:
                self._watch_node(node, slot, passed, given, views.get(node, []))
            for node, slot in behind:
                assert given.memory is not None
                node.register_hook(_NodeHook(_of_view(given.memory, passed), slot, switch))
            if passed.edges > 1:
                self._pending.append(passed)

    def _watch_node(
        self, node: Node, slot: int, passed: "_PassedBack", given: InputEdge, views: Sequence[Tensor]
    ) -> None:
        layout = given.layout
        memory = memory_of(views[0]) if len(views) == 1 else None
        base = base_of(views[0]) if memory is not None else None
        if memory is None or base is None or layout is None or layout.has_overlap():
            node.register_hook(_NodeHook(passed.add, slot, self._switch))
            return
        # The module returned a view of its input: an in-place operation on it would remove this node from the graph.
        part = functools.partial(memory.of_input, layout=layout)

        def give_up(cause: str) -> None:
            passed.give_up()
            self._on_unclear(cause)

        hooks = ViewGradient(memory, passed.add, part, self._switch, give_up)
        node.register_hook(_NodeHook(hooks.at_view, slot, self._switch))
        base.register_hook(hooks.at_base)

    def show_pending(self) -> None:
        """Observe the gradients that have arrived on some edges only: the loss does not depend on the other edges."""
        for passed in self._pending:
            passed.settle()

    def settle(self) -> None:
        """Call `show_pending`, then remove the hooks on inputs that the module returned.

        Hooks on autograd nodes are freed with the graph.
        """
        self.show_pending()
        for handle in self._handles:
            if handle is not None:
                handle.remove()


def _key(edge: GradientEdge) -> tuple[Node, int]:
    return edge.node, edge.output_nr


class _PassedBack:
    """Sums the gradients on all edges to one input, and observes the sum when all have arrived.

    Args:
        observe: is called with the sum.
        edges: the number of edges.
    """

    __slots__ = ("arrived", "backward", "edges", "is_unclear", "observe", "total")

    def __init__(self, observe: Observer, edges: int) -> None:
        self.observe = observe
        self.edges = edges
        self.backward = -1
        self.arrived = 0
        self.is_unclear = False
        self.total: Tensor | None = None

    def give_up(self) -> None:
        """Observe nothing in the running backward pass: a part of the sum is unknown."""
        self._enter()
        self.is_unclear = True
        self._count()

    def add(self, grad: Tensor) -> None:
        """Add the gradient of one edge; observe the sum if it is the last one."""
        self._enter()
        self.total = grad.detach() if self.total is None else self.total + grad.detach()
        self._count()

    def _enter(self) -> None:
        backward = backward_number()
        if backward != self.backward:
            self.settle()  # gradients of an earlier backward pass are not part of this one
            self.backward = backward

    def _count(self) -> None:
        self.arrived += 1
        if self.arrived == self.edges:
            self.settle()

    def settle(self) -> None:
        """Observe the sum of the gradients that have arrived, if there are any, and start again from nothing."""
        total, self.total, self.arrived = self.total, None, 0
        is_unclear, self.is_unclear = self.is_unclear, False
        if total is not None and not is_unclear:
            self.observe(total)


class _NodeHook:
    """Hook on an autograd node: shows the gradient with respect to one of the node's inputs (slots)."""

    __slots__ = ("show", "slot", "switch")

    def __init__(self, show: Callable[[Tensor], object], slot: int, switch: Switch) -> None:
        self.show = show
        self.slot = slot
        self.switch = switch

    @unseen
    def __call__(self, grad_inputs: tuple[Tensor | None, ...], grad_outputs: object) -> None:
        grad = grad_inputs[self.slot]
        if self.switch.on and grad is not None:
            self.show(grad)


def _crossings(
    outputs: Iterable[Tensor], before: Collection[Node], since: int
) -> dict[tuple[Node, int], list[tuple[Node, int]]]:
    """Return the edges of the module's part of the graph, by where they lead, including those that leave it.

    Args:
        outputs: the tensors that the module returned.
        before: nodes that existed when the call began, of any thread.
        since: autograd's sequence number when the call began: nodes of this thread with a smaller one existed too.

    Returns:
        (node, number of its output) that edges lead to, as in `next_functions` -> the (node, slot in its
        `next_functions`) pairs that they come from.
    """
    found: dict[tuple[Node, int], list[tuple[Node, int]]] = {}
    seen = {tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None}
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        if node in before or sequence_number_of(node) < since:
            continue
        for slot, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            found.setdefault((following, number), []).append((node, slot))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _of_view(memory: Memory, passed: _PassedBack) -> Callable[[Tensor], None]:
    """Return a function that is given the gradient of a view's base, and adds the view's part of it to `passed`."""
    return lambda grad: passed.add(memory.of_view(grad))


def _views_by_node(outputs: Iterable[Tensor]) -> dict[Node, list[Tensor]]:
    """Group the outputs that are views by autograd node; a view of a view stands under each node up to its base."""
    found: dict[Node, list[Tensor]] = {}
    for tensor in outputs:
        base = base_of(tensor)
        for node in [] if base is None or tensor.is_leaf else views_between(tensor, base):
            found.setdefault(node, []).append(tensor)
    return found
