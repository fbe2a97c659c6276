"""The gradient with respect to a module's output, by tensor hooks that do not change the graph."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from hookboard.hooks.views import Memory, memory_of
from hookboard.torch_private import base_of

Observer = Callable[[Tensor], object]
Explain = Callable[[str], object]
"""A function that is called with the reason why a gradient is not observed."""

UNCLEAR = "its memory was changed in place and used before and after, so its part of the gradient cannot be told apart"
UNSEEN = "no gradient arrived: the loss does not depend on it, or it is a view that was modified in place"


class Switch:
    """A mutable boolean that many hooks share: they observe only while `on` is True."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


def why_no_gradient(tensor: Tensor) -> str:
    """Return why a tensor that does not require a gradient gets none, as a predicate.

    >>> why_no_gradient(torch.zeros(2, dtype=torch.long))
    'is int64, which carries no gradient'
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"is {str(tensor.dtype).removeprefix('torch.')}, which carries no gradient"
    if not torch.is_grad_enabled():
        return "was computed under torch.no_grad()"
    return "carries no gradient: nothing it depends on requires one (frozen parameters, or the data itself)"


def _say_nothing(cause: str) -> None:
    pass


def watch_output(
    tensor: Tensor, observe: Observer, switch: Switch, on_unclear: Explain = _say_nothing
) -> RemovableHandle | None:
    """Call `observe` with the gradient of `tensor` in every backward pass that runs while `switch` is on.

    It is the gradient with respect to the value that the tensor has now, also if an in-place operation changes the
    tensor later. If the tensor is a view, such an operation sends the gradient to the view's base; then the view's part
    of the base's gradient is observed, which includes the gradient from other tensors in the same memory. If gradients
    come both through the view and past it, nothing is observed, and `on_unclear` is called with the cause.

    Returns:
        A handle that the caller must remove if the tensor is a leaf, because leaves keep their hooks. Otherwise None:
        the hook ends with the graph.
    """
    is_leaf, base = tensor.is_leaf, base_of(tensor)
    memory = None if is_leaf or base is None else memory_of(tensor)
    if base is None or memory is None:
        if not is_leaf and base is not None:
            on_unclear(UNSEEN)
        handle: RemovableHandle = tensor.register_hook(functools.partial(_show, observe, switch))
        return handle if is_leaf else None
    hooks = ViewGradient(memory, observe, memory.of_view, switch, on_unclear)
    tensor.register_hook(hooks.at_view)
    base.register_hook(hooks.at_base)
    return None


def _show(observe: Observer, switch: Switch, grad: Tensor) -> None:
    """Tensor hook: observes the gradient while the switch is on. It holds no tensor, which would keep a graph alive."""
    if switch.on:
        observe(grad)


class ViewGradient:
    """Observes the gradient of a view by two hooks, on the view and on its base. Autograd runs them in this order.

    While the memory is unmodified, the gradient arrives at the view. After an in-place operation the view's node may no
    longer be in the graph; then the gradient arrives at the base. If both get a gradient, and that of the base is
    larger, the graph does not tell whether the operation changed the view or another part of the memory.

    Args:
        memory: the memory of the view.
        observe: is called with the gradient.
        part: returns the part of the base's gradient that is observed.
        switch: nothing is observed while it is off.
        on_unclear: is called with the cause if there is a gradient that is not observed.
    """

    __slots__ = ("arrived", "memory", "observe", "on_unclear", "part", "switch")

    def __init__(
        self,
        memory: Memory,
        observe: Observer,
        part: Callable[[Tensor], Tensor],
        switch: Switch,
        on_unclear: Explain = _say_nothing,
    ) -> None:
        self.memory = memory
        self.observe = observe
        self.part = part
        self.switch = switch
        self.on_unclear = on_unclear
        self.arrived: list[Tensor] = []
        """The gradients that arrived at the view in the running backward pass, after its memory was modified."""

    def at_view(self, grad: Tensor) -> None:
        """Tensor hook of the view: observes the gradient, or keeps it for `at_base` if the memory was modified."""
        if not self.switch.on:
            return
        if self.memory.is_modified:
            self.arrived.append(grad.detach())
        else:
            self.observe(grad)

    def at_base(self, grad: Tensor) -> None:
        """Tensor hook of the base: if the memory was modified, observes the view's part of the gradient."""
        arrived, self.arrived = self.arrived, []
        if not self.switch.on or not self.memory.is_modified:
            return
        whole = self.part(grad)
        if not arrived:
            self.observe(whole)
        elif _is_sum(whole, arrived):
            for each in arrived:
                self.observe(each)
        else:
            self.on_unclear(UNCLEAR)


def _is_sum(whole: Tensor, parts: list[Tensor]) -> bool:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    # Equal but for rounding, however small the gradients are. On the meta device there is nothing to compare.
    return not whole.is_meta and torch.allclose(whole, total, atol=0, equal_nan=True)


def views_between(view: Tensor, base: Tensor) -> list[Node]:
    """Return the autograd nodes that made `view` from `base`, from the last to the first."""
    nodes = []
    node = view.grad_fn
    while node is not None and node != base.grad_fn:
        nodes.append(node)
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return nodes
