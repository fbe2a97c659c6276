"""`worst_rows_of`: which rows of the batch have made a loss large or NaN, from what its graph has saved."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from hookboard.base.torch_private import computing_plainly, number_saved_by, saved_tensors_of
from hookboard.health.look import WorstRows
from hookboard.health.robust import median
from hookboard.model.nested import tensors_in
from hookboard.tracing.bad_operation import operation_of

_NUMBERS = {"nll_loss": ("ignore_index",), "smooth_l1_loss": ("beta",), "huber_loss": ("delta",)}
_TENSORS = ("weight", "pos_weight")
"""What a call of these functions was given besides, by the names under which a node saves it."""

_SAME = "nll_loss mse_loss huber_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits pow abs"
_LOSSES = {**{name: name for name in _SAME.split()}, "nll_loss2d": "nll_loss"}
"""Operation, as autograd names it, to the function of torch that gives a value for each element before the mean."""

_BETWEEN = "mean sum div mul add neg view reshape_alias unsafe_view squeeze unsqueeze to_copy alias"
_PASSING = frozenset(_BETWEEN.split())
"""Operations that may stand between these values and the loss."""

_FACTORS = ("mul", "div")

_BEFORE = frozenset(["log_softmax", "to_copy", "view", "unsafe_view", "reshape_alias", "clone"])
"""Operations that may stand between a flattened tensor of tokens and the values."""

MAX_NODES = 64
"""How many operations before the loss are looked at, at most (a choice)."""

LEAST_FACTOR = 2.0
"""A finite row is named from this many times the median of the others (a choice)."""


def row_counts_of(batch: Any) -> frozenset[int] | None:
    """Return the numbers of rows of the tensors in a batch; None if the batch is not known."""
    return None if batch is None else frozenset(one.shape[0] for _, one in tensors_in(batch) if one.dim())


@computing_plainly
def worst_rows_of(loss: Tensor, counts: Collection[int] | None = None, excess: float = 0.0) -> WorstRows | None:
    """Return the rows of the batch with the largest loss, or whose loss is not finite; None if no few stand out.

    Known are losses of torch in which each element has a value, and means of squares or absolute values, but not sums
    of several. No code of the user runs.

    Args:
        loss: the loss.
        counts: see `row_counts_of`: with another number of rows, they are not those of the batch.
        excess: the share of the loss that is more than usual. Finite rows are named if they make half of that.
    """
    node = _values_before(loss)
    saved = {} if node is None else saved_tensors_of(node)
    if node is None or "self" not in saved or any(type(one) is not Tensor for one in saved.values()):
        return None
    with torch.no_grad():
        values, is_counted = _values_of(node, {name: one.detach() for name, one in saved.items()})
        rows = _row_count(node, values)
        if rows < 2 or (counts is not None and rows not in counts):
            return None
        is_counted = is_counted.reshape(rows, -1)
        sums = torch.where(is_counted, values.reshape(rows, -1).double(), 0).sum(1).tolist()
        numbers = is_counted.sum(1).tolist()
    by_row = {row: sums[row] / number for row, number in enumerate(numbers) if number}
    worst = [row for row, value in by_row.items() if not math.isfinite(value)]
    usual = median([value for value in by_row.values() if math.isfinite(value)])
    if not worst and by_row:
        most = max(by_row.values())
        worst = [row for row, value in by_row.items() if value > usual + (most - usual) / 2]
        without = [row for row in by_row if row not in worst]
        mean, rest = (sum(sums[row] for row in some) / sum(numbers[row] for row in some) for some in (by_row, without))
        worst = worst if most > LEAST_FACTOR * usual and mean - rest >= excess / 2 * mean else []
    if not worst or len(worst) > len(by_row) / 2:  # then it is not a matter of rows
        return None
    name = _function_of(node)
    return WorstRows(name, tuple(worst), tuple(by_row[row] for row in worst), usual, len(by_row))


def _values_before(loss: Tensor) -> Node | None:
    """Return the operation before a loss that has a value for each element; None if the loss is no multiple of them.

    It is not where there are other terms, or where elements have factors of their own, as of a mask.
    """
    node = loss.grad_fn
    for _ in range(MAX_NODES):
        if node is None or operation_of(node) in _LOSSES:
            return node
        name, before = operation_of(node), [each for each, _ in node.next_functions if each is not None]
        if name not in _PASSING or len(before) != 1 or (name in _FACTORS and not _has_one_factor(node)):
            return None
        node = before[0]
    return None


def _has_one_factor(node: Node) -> bool:
    """Return True if a product or quotient has the same known factor for all elements."""
    is_first = node.next_functions[0][0] is not None
    factor = saved_tensors_of(node).get("other" if is_first else "self")
    return factor is not None and factor.numel() == 1 and (is_first or operation_of(node) == "mul")


def _values_of(node: Node, saved: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the value of each element before the mean, and which of them count, same shape."""
    name, given = _LOSSES[operation_of(node)], saved["self"]
    if name in ("pow", "abs"):
        exponent = number_saved_by(node, "exponent", 1)
        values = given.abs() if name == "abs" else given.pow(exponent)
        return values, torch.ones_like(values, dtype=torch.bool)
    target = saved["target"]
    options: dict[str, Any] = {key: saved[key] for key in _TENSORS if key in saved}
    options |= {key: number_saved_by(node, key) for key in _NUMBERS.get(name, ())}
    values = getattr(nn.functional, name)(given, target, reduction="none", **options)
    counts = target != options["ignore_index"] if name == "nll_loss" else torch.ones_like(values, dtype=torch.bool)
    return values, counts.view_as(values)


def _row_count(node: Node, values: Tensor) -> int:
    """Return the number of rows of the batch: where tokens were flattened, from the shape before."""
    before = node.next_functions[0][0]
    while values.dim() == 1 and before is not None and operation_of(before) in _BEFORE:
        sizes = number_saved_by(before, "self_sym_sizes")
        known = sizes if sizes is not None and len(sizes) > 1 else (0,)
        if len(values) in (math.prod(known), math.prod(known[:-1]) if len(known) > 2 else 0):
            return int(known[0])
        before = before.next_functions[0][0]
    return len(values) if values.dim() else 0


def _function_of(node: Node) -> str:
    """Return the name of the function that gave the values, as users know it."""
    name, before = _LOSSES[operation_of(node)], node.next_functions[0][0]
    while name == "nll_loss" and before is not None and operation_of(before) in _BEFORE:
        name = "cross_entropy" if operation_of(before) == "log_softmax" else name
        before = before.next_functions[0][0]
    return name
