"""The gradient with respect to the output of a module, by tensor hooks that do not change the graph; also of views."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from hookboard.base.torch_private import base_of, unseen, version_of

Observer = Callable[[Tensor], object]
Explain = Callable[[str], object]
"""A function that is called with the reason why a gradient is not observed."""

UNCLEAR = "its memory was used before and after an in-place change, so its part of the gradient cannot be separated"
UNSEEN = (
    "no gradient arrived, because the loss does not depend on the tensor, or because the tensor is a view that was "
    "modified in place"
)


class Switch:
    """A mutable boolean that many hooks share: they observe only while `on` is True."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


def why_no_gradient(tensor: Tensor) -> str:
    """Return why a tensor that does not require a gradient gets none, as a predicate.

    >>> why_no_gradient(torch.zeros(2, dtype=torch.long))
    'is int64, a dtype that cannot have a gradient'
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"is {str(tensor.dtype).removeprefix('torch.')}, a dtype that cannot have a gradient"
    if not torch.is_grad_enabled():
        return "was computed under torch.no_grad()"
    return (
        "does not require a gradient, because nothing that it depends on does (only frozen parameters, or the input "
        "data)"
    )


def _say_nothing(cause: str) -> None:
    pass


def watch_output(
    tensor: Tensor, observe: Observer, switch: Switch, on_unclear: Explain = _say_nothing
) -> RemovableHandle | None:
    """Hook `tensor`, so that each backward pass that runs while `switch` is on calls `observe` with its gradient.

    It is the gradient with respect to the value that the tensor has now, also if an in-place operation changes the
    tensor later. If the tensor is a view, such an operation sends the gradient to the view's base; then the view's part
    of the base's gradient is observed, which includes the gradient from other tensors in the same memory. If gradients
    come both through the view and past it, nothing is observed, and `on_unclear` is called with the cause. If
    `memory_of` returns None for a view, `on_unclear` is called at once, with what is the cause if no gradient arrives.

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


@unseen
def _show(observe: Observer, switch: Switch, grad: Tensor | None) -> None:
    """Tensor hook: observes the gradient while the switch is on. It holds no tensor, which would keep a graph alive."""
    # None: of several outputs of one operation, such as an LSTM of cuDNN, the loss does not depend on this one.
    if switch.on and grad is not None:
        observe(grad)  # not returned: autograd would take it for the gradient


class MemoryLayout(NamedTuple):
    """The size, stride and offset of a tensor in memory: the arguments of `torch.as_strided`."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_complex: bool
    """Whether stride and offset count complex numbers, not real ones."""

    def has_overlap(self) -> bool:
        """Return True if two elements may lie at one address, as after `expand` or `unfold`."""
        reach = 0
        for stride, size in sorted(zip(self.stride, self.size, strict=True)):
            if size > 1:
                if stride <= reach:
                    return True
                reach += stride * (size - 1)
        return False


def layout_of(tensor: Tensor) -> MemoryLayout:
    """Return the size, stride and offset of a strided tensor."""
    return MemoryLayout(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.is_complex())


class Memory:
    """The memory that a view shares with its base. It keeps neither the tensors nor their memory alive.

    An in-place operation on a view removes the view's old node from the graph. The gradient then goes only to the node
    of its base.

    Args:
        base: the tensor that owns the memory; not a leaf.
        view: the view.
        counter: a tensor without elements that shares the version counter of the base.
    """

    __slots__ = ("_base", "_counter", "_is_whole", "_version", "_view")

    def __init__(self, base: Tensor, view: Tensor, counter: Tensor) -> None:
        self._base = layout_of(base)
        self._view = layout_of(view)
        self._counter = counter
        self._version = version_of(base)
        self._is_whole = view.numel() * view.element_size() == base.numel() * base.element_size()

    @property
    def is_modified(self) -> bool:
        """Whether an in-place operation has changed the memory since this object was made."""
        return version_of(self._counter) != self._version

    def of_view(self, grad: Tensor) -> Tensor:
        """Return the part of the base's gradient that belongs to the view, in the view's shape."""
        return self._read(self._laid_out(grad), self._view)

    def of_input(self, grad: Tensor, layout: MemoryLayout) -> Tensor:
        """Return the gradient that only the view passes back to another tensor in this memory, in that tensor's shape.

        Args:
            grad: the gradient of the base.
            layout: the layout of that tensor; its elements outside of the view get 0.
        """
        laid_out = self._laid_out(grad)
        if not self._is_whole:
            passed = torch.zeros_like(laid_out)
            self._at(passed, self._view).copy_(self._at(laid_out, self._view))
            laid_out = passed
        return self._read(laid_out, layout)

    def _laid_out(self, grad: Tensor) -> Tensor:
        """Return a copy of the gradient with the strides of the base; autograd gives gradients of any strides."""
        grad = grad.detach()
        return grad.new_empty_strided(self._base.size, self._base.stride).copy_(grad)

    def _read(self, laid_out: Tensor, layout: MemoryLayout) -> Tensor:
        found = self._at(laid_out, layout)
        is_pairs = layout.is_complex and not self._base.is_complex
        return torch.complex(*found.unbind(-1)) if is_pairs else found

    def _at(self, laid_out: Tensor, layout: MemoryLayout) -> Tensor:
        """Return a view of the elements at a layout. Complex elements of a real base get a last dimension of size 2."""
        size, stride, offset = layout.size, layout.stride, layout.offset
        if layout.is_complex and not self._base.is_complex:
            size, stride, offset = (*size, 2), (*(2 * step for step in stride), 1), 2 * offset
        start = self._base.offset
        if self._base.is_complex and not layout.is_complex:
            laid_out, start = torch.view_as_real(laid_out), 2 * start
        return laid_out.as_strided(size, stride, offset - start)


def memory_of(view: Tensor) -> Memory | None:
    """Return the memory of a view, if an in-place operation on it would send its gradient to the view's base.

    Returns:
        None if no such operation is possible (the tensor is no view, its base is a leaf, elements share an address), or
        if it would go unnoticed (subclasses of Tensor, sparse and nested tensors, complex conjugates, inside
        `torch.func` transforms).
    """
    base = base_of(view)
    if base is None or base.is_leaf or not (type(base) is type(view) is Tensor):
        return None
    if base.layout is not torch.strided or base.is_nested or view.is_conj() or view.is_neg() or base.is_conj():
        return None
    if view.dtype.to_real() is not base.dtype.to_real() or layout_of(view).has_overlap():
        return None
    counter = base.detach()
    try:
        # What `detach` returns shares the base's version counter, and keeps it when its memory is exchanged.
        counter.data = torch.empty(0, dtype=base.dtype, device=base.device)
    except RuntimeError:  # inside a torch.func transform
        return None
    return Memory(base, view, counter)


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

    @unseen
    def at_view(self, grad: Tensor | None) -> None:
        """Tensor hook of the view: observes the gradient, or keeps it for `at_base` if the memory was modified."""
        if grad is None or not self.switch.on:
            return
        if self.memory.is_modified:
            self.arrived.append(grad.detach())
        else:
            self.observe(grad)

    @unseen
    def at_base(self, grad: Tensor | None) -> None:
        """Tensor hook of the base: if the memory was modified, observes the view's part of the gradient."""
        arrived, self.arrived = self.arrived, []
        if grad is None or not self.switch.on or not self.memory.is_modified:
            return
        whole = self.part(grad)
        if not arrived:
            self.observe(whole)
        elif whole.is_cpu and _is_sum(whole, arrived):  # to compare them, the host would wait for another device
            for each in arrived:
                self.observe(each)
        else:
            self.on_unclear(UNCLEAR)


def _is_sum(whole: Tensor, parts: list[Tensor]) -> bool:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    # Equal but for rounding, however small the gradients are.
    return torch.allclose(whole, total, atol=0, equal_nan=True)


def views_between(view: Tensor, base: Tensor) -> list[Node]:
    """Return the autograd nodes that made `view` from `base`, from the last to the first.

    The list ends early with a node that has several inputs, or none.
    """
    nodes = []
    node = view.grad_fn
    while node is not None and node != base.grad_fn:
        nodes.append(node)
        node = node.next_functions[0][0] if len(node.next_functions) == 1 else None
    return nodes
