"""Gradients of what enters and leaves a module, by hooks that leave the graph as it is."""

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

Observer = Callable[[Tensor], object]


class Switch:
    """One boolean that many hooks look at."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


def why_no_gradient(tensor: Tensor) -> str:
    """Why no gradient can reach a tensor that requires none."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"is {str(tensor.dtype).removeprefix('torch.')}, which carries no gradient"
    if not torch.is_grad_enabled():
        return "was computed under torch.no_grad()"
    return "carries no gradient: nothing it depends on requires one (frozen parameters, or the data itself)"


def watch_output(tensor: Tensor, observe: Observer, switch: Switch) -> RemovableHandle | None:
    """Call `observe` with the gradient of `tensor`, as its value is now, in every backward while `switch` is on.

    A later in-place operation on the tensor is no matter: the gradient is that of the value before. Where the
    tensor is a view of the whole of another tensor and such an operation cuts its own gradient off, the other's
    is observed.

    Returns:
        The handle to remove, where the tensor is a leaf, which would keep the hook; elsewhere None: the hook goes
        with the graph.
    """
    hook = _OutputGradient(observe, switch)
    handle: RemovableHandle = tensor.register_hook(hook)
    if tensor.is_leaf:
        return handle
    base = tensor._base
    if base is not None and base.requires_grad and not base.is_leaf and base.numel() == tensor.numel():
        base.register_hook(_BaseGradient(hook, base))
    return None


class _OutputGradient:
    """Holds no tensor: one that its own hook holds lives on after the graph."""

    __slots__ = ("arrived", "observe", "switch")

    def __init__(self, observe: Observer, switch: Switch) -> None:
        self.observe = observe
        self.switch = switch
        self.arrived = False

    def __call__(self, grad: Tensor) -> None:
        self.arrived = True
        if self.switch.on:
            self.observe(grad)


class _BaseGradient:
    """Stands in for the hook on a view: autograd runs it after that one, if that one runs at all."""

    __slots__ = ("base", "hook", "version")

    def __init__(self, hook: _OutputGradient, base: Tensor) -> None:
        self.hook = hook
        self.base = weakref.ref(base)
        self.version = base._version

    def __call__(self, grad: Tensor) -> None:
        arrived, self.hook.arrived = self.hook.arrived, False
        if not arrived and self._was_modified():
            self.hook(grad)
            self.hook.arrived = False

    def _was_modified(self) -> bool:
        base = self.base()
        return base is not None and base._version > self.version


Edges = dict[str, GradientEdge]


def edges_of(inputs: Iterable[tuple[str, Tensor]]) -> Edges:
    """Where the gradients of a module's inputs go, to be taken before the module runs.

    An in-place module gives its input tensor another history; what is remembered here is the one before.
    """
    return {path: get_gradient_edge(tensor) for path, tensor in inputs if tensor.requires_grad}


class InputGradients:
    """The gradients that one call of a module passes back to its inputs.

    A tensor hook on an input would see the gradient from all its uses, also those outside the module (a residual
    branch). What passes through the module arrives on the edges from the nodes that it made to the inputs, and
    hooks on those nodes read it there.

    Args:
        inputs: the edges of the inputs.
        outputs: the tensors that the module returned.
        since: autograd's sequence number when the module was entered: older nodes are not the module's.
        observers: for each input, what its gradient is shown to.
        switch: nothing is observed while it is off.
    """

    def __init__(
        self,
        inputs: Edges,
        outputs: Iterable[Tensor],
        since: int,
        observers: Mapping[str, Observer],
        switch: Switch,
    ) -> None:
        self._switch = switch
        self._pending: list[_PassedBack] = []
        self._handles: list[RemovableHandle | None] = []
        outputs = [tensor for tensor in outputs if tensor.requires_grad]
        returned = {_key(get_gradient_edge(tensor)): tensor for tensor in outputs}
        crossings = _crossings(outputs, since)
        for path, edge in inputs.items():
            if _key(edge) in returned:  # the module returned its input as it was: what comes in goes back
                self._handles.append(watch_output(returned[_key(edge)], observers[path], switch))
                continue
            into = crossings.get(_key(edge), [])
            passed = _PassedBack(observers[path], len(into))
            for node, slot in into:
                node.register_hook(_NodeHook(passed, slot, switch))
            if len(into) > 1:
                self._pending.append(passed)
        self.unreached = [path for path, edge in inputs.items() if _key(edge) not in crossings.keys() | returned.keys()]

    def show_pending(self) -> None:
        """Observe what has arrived where not every edge had its gradient: the others were not part of the loss."""
        for passed in self._pending:
            passed.settle()

    def settle(self) -> None:
        """Observe what has arrived, and let go of the handles."""
        self.show_pending()
        for handle in self._handles:
            if handle is not None:
                handle.remove()


def _key(edge: GradientEdge) -> tuple[Node, int]:
    return edge.node, edge.output_nr


class _PassedBack:
    """The sum of the gradients on all edges to one input."""

    __slots__ = ("arrived", "edges", "observe", "total")

    def __init__(self, observe: Observer, edges: int) -> None:
        self.observe = observe
        self.edges = edges
        self.arrived = 0
        self.total: Tensor | None = None

    def add(self, grad: Tensor) -> None:
        self.total = grad.detach() if self.total is None else self.total + grad.detach()
        self.arrived += 1
        if self.arrived == self.edges:
            self.settle()

    def settle(self) -> None:
        total, self.total, self.arrived = self.total, None, 0
        if total is not None:
            self.observe(total)


class _NodeHook:
    __slots__ = ("passed", "slot", "switch")

    def __init__(self, passed: _PassedBack, slot: int, switch: Switch) -> None:
        self.passed = passed
        self.slot = slot
        self.switch = switch

    def __call__(self, grad_inputs: tuple[Tensor | None, ...], grad_outputs: object) -> None:
        grad = grad_inputs[self.slot]
        if self.switch.on and grad is not None:
            self.passed.add(grad)


def _crossings(outputs: Iterable[Tensor], since: int) -> dict[tuple[Node, int], list[tuple[Node, int]]]:
    """From each edge that leaves the module's part of the graph to the nodes (and their slots) that it leaves."""
    found: dict[tuple[Node, int], list[tuple[Node, int]]] = {}
    seen = {tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None}
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        if node._sequence_nr() < since:
            continue
        for slot, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            found.setdefault((following, number), []).append((node, slot))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found
