"""Gradients with respect to what a module returns and takes, by hooks that do not change the autograd graph."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from hookboard.base.torch_private import at_end_of_backward, base_of, sequence_number_of, unseen, version_of

Observer = Callable[[Tensor], object]
Changed = Callable[[], bool]  # tells whether an in-place operation has changed a view's memory

NO_GRADIENT = (
    "no gradient arrived (or an empty one), because the loss does not depend on the tensor, or because it is a view "
    "that was changed in place, or comes from other threads"
)


class Switch:
    """A mutable boolean that many hooks share: they observe only while `on` is True."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


def why_no_gradient(tensor: Tensor) -> str:
    """Return why no gradient of a tensor is observed that is a leaf, or requires none, as a predicate.

    >>> why_no_gradient(torch.zeros(2, dtype=torch.long))
    'is int64, a dtype that cannot have a gradient'
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"is {str(tensor.dtype).removeprefix('torch.')}, a dtype that cannot have a gradient"
    if tensor.requires_grad:
        return "is a parameter, or another leaf of the graph, which would keep the hook"
    if not torch.is_grad_enabled():
        return "was computed under torch.no_grad()"
    return (
        "does not require a gradient, because nothing that it depends on does (only frozen parameters, or the input "
        "data)"
    )


def watch_output(tensor: Tensor, observe: Observer, switch: Switch) -> RemovableHandle:
    """Hook a tensor to observe its gradient in each backward pass while `switch` is on, until the graph ends."""
    # Of the value that it has now, even if an in-place operation changes it later; but of a view torch then tells a
    # part of the gradient, or nothing. The caller must remove the hook from a leaf.
    handle: RemovableHandle = tensor.register_hook(functools.partial(_show, observe, switch, changes_of(tensor)))
    return handle


@unseen
def _show(observe: Observer, switch: Switch, is_changed: Changed, grad: Tensor | None) -> None:
    """Tensor hook: observes the gradient while the switch is on. It holds no tensor, which would keep a graph alive."""
    # None: of several outputs of one operation, such as an LSTM of cuDNN, the loss does not depend on this one.
    if switch.on and grad is not None and not is_changed():
        observe(grad)  # not returned: autograd would take it for the gradient


def changes_of(tensor: Tensor) -> Changed:
    """Return what tells whether an in-place operation has changed a view's memory since, without keeping it alive."""
    base = None if tensor.is_leaf else base_of(tensor)
    if base is None:
        return lambda: False
    counter = base.detach()  # it shares the base's version counter, and keeps it when its memory is exchanged
    if type(base) is Tensor:
        with suppress(RuntimeError):  # of sparse and nested tensors and subclasses it is kept
            counter.data = torch.empty(0, dtype=base.dtype, device=base.device)
    version = version_of(counter)
    return lambda: version_of(counter) != version


Edges = dict[str, tuple[GradientEdge, Changed]]
"""By path, the edges to the inputs of a module, each with what `changes_of` returns."""


def edges_of(inputs: Iterable[tuple[str, Tensor]]) -> Edges:
    """Return the edges to those inputs of a module that require a gradient, by path; call it before the module runs."""
    # An in-place module changes the history of its input tensor.
    return {path: (get_gradient_edge(x), changes_of(x)) for path, x in inputs if x.requires_grad}


def watch_inputs(
    edges: Edges,
    outputs: Iterable[Tensor],
    since: int,
    observers: Mapping[str, Observer],
    switch: Switch,
) -> None:
    """Observe the gradients that a call of a module, begun at sequence number `since`, passes to its inputs."""
    outputs = [tensor for tensor in outputs if tensor.requires_grad and not tensor.is_leaf]
    returned = {(edge.node, edge.output_nr): tensor for tensor in outputs for edge in [get_gradient_edge(tensor)]}
    # A tensor hook on an input would see the gradient from all its uses, also those outside the module (a residual
    # branch), and a copy of the input for the module alone would change the order in which autograd adds gradients.
    # What passes through the module arrives on the edges from its nodes to the inputs; hooks on those nodes read it
    # there.
    crossings = _crossings(outputs, {edge.node for edge, _ in edges.values()}, since)
    are_changed = [changes_of(tensor) for tensor in outputs]

    def observed(path: str, total: Tensor) -> None:
        if not any(is_changed() for is_changed in are_changed):  # otherwise a part of the sum may be missing
            observers[path](total)

    for path, ((node, number, *_), is_changed) in edges.items():
        if is_changed():  # the module has worked in place on a view
            continue
        if (node, number) in returned:  # the module returned its input, whose gradient is that of the output
            watch_output(returned[node, number], observers[path], switch)
            continue
        crossing = crossings.get((node, number), [])
        add = _summed(functools.partial(observed, path), len(crossing))
        for each, slot in crossing:
            each.register_hook(functools.partial(_pass_on, add, slot, switch))


@unseen
def _pass_on(
    add: Observer, slot: int, switch: Switch, grad_inputs: tuple[Tensor | None, ...], grad_outputs: object
) -> None:
    """Hook on an autograd node: passes on the gradient with respect to one of the node's inputs (slots)."""
    grad = grad_inputs[slot]
    if switch.on and grad is not None:
        add(grad)


def _summed(observe: Observer, edges: int) -> Observer:
    """Return what takes the gradients of all edges to one input; their sum is observed when all are there."""
    gradients: list[Tensor] = []

    @unseen
    def show() -> None:
        if gradients:
            total = functools.reduce(torch.add, gradients)
            gradients.clear()
            observe(total)

    def add(grad: Tensor) -> None:
        if not gradients and edges > 1:
            at_end_of_backward(show)  # the loss may not depend on some edges
        gradients.append(grad.detach())
        if len(gradients) == edges:
            show()

    return add


def _crossings(
    outputs: Iterable[Tensor], before: Collection[Node], since: int
) -> dict[tuple[Node, int], list[tuple[Node, int]]]:
    """Return the edges from a module's nodes: the (node, output) they lead to, and the (node, slot) they come from."""
    found: dict[tuple[Node, int], list[tuple[Node, int]]] = {}
    seen = {tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None}
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        # Older than the call: any node in `before`, and one of this thread with a smaller number.
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
