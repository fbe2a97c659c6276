"""`Memory`: which part of the gradient of its base belongs to a view, and whether their memory was modified."""

from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.torch_private import base_of, version_of


class MemoryLayout(NamedTuple):
    """The size, stride and offset of a tensor in memory: the arguments of `torch.as_strided`."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_complex: bool
    """Whether stride and offset count complex numbers, not real ones."""

    def has_overlap(self) -> bool:
        """Return whether two elements may lie at one address, as after `expand` or `unfold`."""
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
        counter.data = torch.empty(0, dtype=base.dtype, device=base.device)
    except RuntimeError:  # inside a torch.func transform
        return None
    return Memory(base, view, counter)
