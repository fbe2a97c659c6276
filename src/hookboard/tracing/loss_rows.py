"""`worst_rows_of`: which rows of the batch have made a loss large or NaN, from what its graph has saved."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from hookboard.base.torch_private import computing_plainly, number_saved_by, saved_tensors_of
from hookboard.health import WorstRows, median
from hookboard.tracing.bad_operation import operation_of

_NUMBERS = {"nll_loss": ("ignore_index",), "smooth_l1_loss": ("beta",), "huber_loss": ("delta",)}
_TENSORS = ("weight", "pos_weight")
"""What a call of these functions was given besides, by the names under which a node saves it."""

_LOSSES = {
    **{name: name for name in ("nll_loss", "mse_loss", "huber_loss", "binary_cross_entropy", "pow", "abs")},
    "nll_loss2d": "nll_loss",
    "smooth_l1loss": "smooth_l1_loss",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
}
"""Operation, as autograd names it, to the function of torch that gives a value for each element before the mean."""

_BETWEEN = "mean sum div mul add neg view reshape_alias unsafe_view squeeze unsqueeze to_copy alias"
_PASSING = frozenset(_BETWEEN.split())
"""Operations that may stand between these values and the loss."""

_BEFORE = frozenset(["log_softmax", "to_copy", "view", "unsafe_view", "reshape_alias", "clone"])
"""Operations that may stand between a flattened tensor of tokens and the values."""

MAX_NODES = 64
"""How many operations before the loss are looked at, at most (a choice)."""

LEAST_FACTOR = 2.0
"""A finite row is named from this many times the median of the others (a choice)."""


def worst_rows_of(loss: Tensor) -> WorstRows | None:
    """Return the rows of the batch with the largest loss, or whose loss is not finite; None if no few stand out.

    Known are losses of torch in which each element has a value, and means of squares or absolute values, but not sums
    of several. No code of the user runs.
    """
    node = _values_before(loss)
    saved = {} if node is None else saved_tensors_of(node)
    if node is None or "self" not in saved or any(type(one) is not Tensor for one in saved.values()):
        return None
    with computing_plainly(), torch.no_grad():
        values, counts = _values_of(node, {name: one.detach() for name, one in saved.items()})
        rows = _row_count(node, values)
        if rows < 2:
            return None
        counts = counts.reshape(rows, -1)
        sums = torch.where(counts, values.reshape(rows, -1).double(), 0).sum(1)
        means = (sums / counts.sum(1)).tolist()
        known = counts.any(1).tolist()
    by_row = {row: value for row, value in enumerate(means) if known[row]}
    worst = [row for row, value in by_row.items() if not math.isfinite(value)]
    usual = median([value for value in by_row.values() if math.isfinite(value)])
    if not worst and by_row:
        most = max(by_row.values())
        worst = [row for row, value in by_row.items() if value > usual + (most - usual) / 2]
        worst = worst if most > LEAST_FACTOR * usual else []
    if not worst or len(worst) > len(by_row) / 2:  # then it is not a matter of rows
        return None
    name = _function_of(node)
    return WorstRows(name, tuple(worst), tuple(by_row[row] for row in worst), usual, len(by_row))


def _values_before(loss: Tensor) -> Node | None:
    """Return the only operation before a loss that has a value for each element; None if there are several or none."""
    waiting, found, seen = [loss.grad_fn], set[Node](), set[Node]()
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = operation_of(node)
        if name in _LOSSES:
            found.add(node)
        elif name in _PASSING:
            waiting += [before for before, _ in node.next_functions]
    return found.pop() if len(found) == 1 else None


def _values_of(node: Node, saved: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the value of each element before the mean, and which of them count, same shape."""
    name, given = _LOSSES[operation_of(node)], saved["self"]
    if name in ("pow", "abs"):
        exponent = number_saved_by(node, "exponent", 1)
        values = given.abs() if name == "abs" else given.pow(exponent)
        return values, torch.ones_like(values, dtype=torch.bool)
    target = saved["target"]
    options: dict[str, Any] = {key: saved[key] for key in _TENSORS if key in saved}
    numbers = ((key, number_saved_by(node, key)) for key in _NUMBERS.get(name, ()))
    options |= {key: number - 2**64 if number >= 2**63 else number for key, number in numbers}  # it has no sign there
    values = getattr(nn.functional, name)(given, target, reduction="none", **options)
    counts = target != options["ignore_index"] if name == "nll_loss" else torch.ones_like(values, dtype=torch.bool)
    return values, counts.view_as(values)


def _row_count(node: Node, values: Tensor) -> int:
    """Return the number of rows of the batch: where tokens were flattened, from the shape before."""
    before = node.next_functions[0][0]
    while values.dim() == 1 and before is not None and operation_of(before) in _BEFORE:
        sizes = number_saved_by(before, "self_sym_sizes")
        if sizes is not None and len(sizes) > 2 and math.prod(sizes[:-1]) == len(values):
            return int(sizes[0])
        before = before.next_functions[0][0]
    return len(values) if values.dim() else 0


def _function_of(node: Node) -> str:
    """Return the name of the function that gave the values, as users know it."""
    name, before = _LOSSES[operation_of(node)], node.next_functions[0][0]
    while name == "nll_loss" and before is not None and operation_of(before) in _BEFORE:
        name = "cross_entropy" if operation_of(before) == "log_softmax" else name
        before = before.next_functions[0][0]
    return name
