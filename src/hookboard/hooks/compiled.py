"""What hooks do where torch.compile traces them: the rows of their sites are updated inside the graph.

Equal modules share a graph, and it is compiled anew when anything changes that its trace has read. So what is read
here is the same for all modules, but for the rows, which are reached as tensors.
"""

import zlib
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from hookboard.measure import BINS, EMPTY, WIDTH, Statistic, elements_in
from hookboard.measure.device import row_of_block
from hookboard.measure.statistics import IDENTITY, measure_own
from hookboard.measure.traced import count_without_waiting, merge_own_pair, merge_pair
from hookboard.nested import map_tensors, tensors_in
from hookboard.sites import Role, Site

MOST_TENSORS = 8
"""Tensors of one role that a compiled module may have: their rows are there before it is traced."""

_LIBRARY = torch.library.Library("hookboard", "DEF")
_LIBRARY.define("is_recomputed(Tensor row) -> Tensor")


@torch.library.impl(_LIBRARY, "is_recomputed", "CompositeExplicitAutograd")
def _is_recomputed(row: Tensor) -> Tensor:
    return torch.tensor(in_backward())


@torch.library.register_fake("hookboard::is_recomputed", lib=_LIBRARY)  # type: ignore[untyped-decorator]  # torch has no types for it
def _(row: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.bool, device="cpu")


def in_backward() -> bool:
    """Whether a forward that runs now is the recomputation of a checkpointed one: it was seen before.

    It cannot be traced: inside a graph `torch.ops.hookboard.is_recomputed` asks it whenever the graph runs.
    """
    return torch._C._current_graph_task_id() != -1


def forget_graphs(model: nn.Module) -> None:
    """Have compiled modules of `model` compiled anew: a graph does not see hooks that come after it."""
    if any(isinstance(m, OptimizedModule) or m._compiled_call_impl is not None for m in model.modules()):
        torch.compiler.reset()


def run_eagerly() -> AbstractContextManager[Any]:
    """Until the context is left, compiled code runs as it was written, so that hooks which came later fire.

    Contexts may be left in the order in which they were entered: only the first changes anything.
    """
    if torch._dynamo.eval_frame._stance.stance == "force_eager":
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@dataclass
class Measuring:
    """What is measured of every tensor of a recorder.

    Args:
        wanted: the columns of the row that are needed, as for `moments.measure`.
        own: the user's statistics.
        scale: what a GradScaler has multiplied the gradients of modules with, shape (); None without one.
    """

    wanted: frozenset[str]
    own: tuple[Statistic, ...]
    scale: Tensor | None = None


def unscaled(gradient: Tensor, scale: Tensor) -> Tensor:
    """A gradient without the scale, in float32 at least: half precision, which needs the scale, would lose it."""
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / scale


class Slots:
    """The rows of one module and role, one for each tensor.

    Args:
        measuring: what is measured.
        rows: shape (MOST_TENSORS, width), on the device.
        layout: shape (), float64: tells which paths the tensors have.
        counts: shape (BINS,): bins of the first tensor's histogram, where histograms are on.
        is_gradient: whether it is backward that shows the tensors.
    """

    def __init__(
        self, measuring: Measuring, rows: Tensor, layout: Tensor, counts: Tensor | None, is_gradient: bool
    ) -> None:
        self.measuring = measuring
        self.rows = list(rows.unbind())
        self.layout = layout
        self.counts = counts
        self.is_gradient = is_gradient

    def add(self, k: int, tensor: Tensor) -> None:
        """Merge the k-th tensor into its row."""
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = tensor.abs()
        if not tensor.numel():
            return
        if self.is_gradient and self.measuring.scale is not None:
            tensor = unscaled(tensor, self.measuring.scale)
        row, own = self.rows[k], self.measuring.own
        fresh = row_of_block(tensor, self.measuring.wanted)
        merged = merge_pair(row[:WIDTH], fresh)
        if own:
            elements = (elements_in(row), elements_in(fresh))
            merged = torch.cat([merged, merge_own_pair(own, row[WIDTH:], measure_own(own, tensor), elements)])
        if self.is_gradient:
            row.copy_(merged)
            weight: Tensor | int = 1
        else:
            # A checkpointed module runs again in backward: its activations have been counted before.
            again = torch.ops.hookboard.is_recomputed(row)
            row.copy_(torch.where(again, row, merged))
            weight = 1 - again.to(tensor.device, torch.long)
        if self.counts is not None and k == 0:
            count_without_waiting(self.counts, tensor, weight)


class TracedTap:
    """The hooks of one module inside a graph.

    Args:
        switch: has `on`; a graph is compiled for each of its two states.
        slots: the rows for each role that is watched.
    """

    def __init__(self, switch: Any, slots: dict[Role, Slots]) -> None:
        self.switch = switch
        self.input = slots.get("input")
        self.output = slots.get("output")
        self.grad_input = slots.get("grad_input")
        self.grad_output = slots.get("grad_output")

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward pre-hook: returns inputs to take instead, where their gradients are watched."""
        if not self.switch.on:
            return None
        named: Any = args[0] if len(args) == 1 and not kwargs else dict(enumerate(args)) | kwargs
        if self.input is not None:
            _add_all(self.input, named)
        # An in-place module is to change its input, not a copy.
        if self.grad_input is None or getattr(module, "inplace", False):
            return None
        return _show_gradients(self.grad_input, (args, kwargs), named)

    def after(self, output: Any) -> Any:
        """The forward hook: returns an output to take instead, where its gradient is watched."""
        if not self.switch.on:
            return None
        if self.output is not None:
            _add_all(self.output, output)
        return None if self.grad_output is None else _show_gradients(self.grad_output, output, output)


def _add_all(slots: Slots, value: object) -> None:
    tensors = list(tensors_in(value))[:MOST_TENSORS]
    _note_layout(slots, tensors)
    for k, (_, tensor) in enumerate(tensors):
        slots.add(k, tensor)


def _show_gradients(slots: Slots, value: Any, named: object) -> Any:
    tensors = list(tensors_in(named))
    if not any(tensor.requires_grad for _, tensor in tensors):
        return None
    _note_layout(slots, tensors[:MOST_TENSORS])
    position = -1

    def tap(tensor: Tensor) -> Tensor:
        nonlocal position
        position += 1
        if not tensor.requires_grad or position >= MOST_TENSORS:
            return tensor
        return _GradientTap.apply(tensor, slots, position)  # type: ignore[no-any-return]  # apply is untyped

    return map_tensors(tap, value)


class _GradientTap(torch.autograd.Function):
    """Shows the gradient on its way back: a tensor hook with a side effect cannot be traced.

    It returns a copy, which the compiler folds away: a view would break where an in-place operation follows.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, slots: Slots, k: int) -> Tensor:
        ctx.slots, ctx.k = slots, k
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ctx.slots.add(ctx.k, grad)
        return grad, None, None


# What the tensors of a module are called is known while it is traced. A number stands for it in the graph, made from
# the names alone, so that equal modules, ranks and runs agree on it.
_LAYOUTS: dict[int, tuple[str, ...]] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types for it
def _number_of(paths: tuple[str, ...]) -> int:
    number = 0 if paths == ("",) else zlib.crc32("\n".join(paths).encode()) + 1
    _LAYOUTS[number] = paths
    return number


def _note_layout(slots: Slots, tensors: Sequence[tuple[str, Tensor]]) -> None:
    number = _number_of(tuple([path for path, _ in tensors]))
    if number:
        slots.layout.fill_(number)


class Traced:
    """All rows that compiled graphs write to, of one recorder.

    Args:
        sites: the modules and roles that may be traced, the same in the same order on every rank.
        measuring: what is measured.
        device: where the rows are kept.
        histogram: whether bins are counted.
    """

    def __init__(
        self, sites: Collection[tuple[str, Role]], measuring: Measuring, device: torch.device, *, histogram: bool
    ) -> None:
        empty = [*EMPTY, *(IDENTITY[statistic.merge] for statistic in measuring.own)]
        self._empty = torch.tensor(empty, dtype=torch.float64, device=device)
        self._rows = self._empty.repeat(len(sites), MOST_TENSORS, 1)
        self._layouts = torch.zeros(len(sites), dtype=torch.float64, device=device)
        self._counts = torch.zeros(len(sites) if histogram else 0, BINS, dtype=torch.long, device=device)
        counts = self._counts.unbind() if histogram else [None] * len(sites)
        self.slots = {
            (name, role): Slots(measuring, rows, layout, bins, is_gradient=role.startswith("grad"))
            for (name, role), rows, layout, bins in zip(sites, self._rows, self._layouts.unbind(), counts, strict=True)
        }

    @staticmethod
    def most_tensors() -> int:
        """How many tensors a module has had in any graph of this process; 0 if none was traced."""
        return min(MOST_TENSORS, max(map(len, _LAYOUTS.values()), default=0))

    def rows(self, most: int) -> Tensor:
        """The rows of the first `most` tensors of every site, shape (len(sites) * most, width)."""
        return self._rows[:, :most].flatten(0, 1)

    def layouts(self, most: int) -> Tensor:
        """Tells `named` the paths; shape (len(sites),), or (0,) where `most` is 0."""
        return self._layouts if most else self._layouts[:0]

    def counts(self, most: int) -> Tensor:
        """The bins of each site's first tensor, shape (len(sites), BINS), or (0, BINS) where there are none."""
        return self._counts if most else self._counts[:0]

    def named(self, layouts: np.ndarray, most: int) -> list[Site]:
        """Which site each of the rows belongs to."""
        sites: list[Site] = []
        for (name, role), number in zip(self.slots, layouts, strict=False):  # no layouts where nothing was traced
            # A module that ran on other ranks alone has names that only those know.
            paths = _LAYOUTS.get(int(number), tuple(map(str, range(most)))) if number else ("",)
            sites += [Site(name, role, path) for path in [*paths, *map(str, range(len(paths), most))][:most]]
        return sites

    def counted(self, layouts: np.ndarray, most: int) -> list[Site]:
        """Which site each of the bins belongs to."""
        return self.named(layouts, most)[::most] if len(self._counts) and most else []

    def clear(self) -> None:
        """Forget what was measured."""
        self._rows.copy_(self._empty)
        self._layouts.zero_()
        self._counts.zero_()
