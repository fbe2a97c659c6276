"""What a step multiplies its loss by: less than nothing, or next to nothing."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from hookboard.auditing.program import RESHAPES, Op, Value
from hookboard.auditing.rules import LOSSES, Done, Finding, LossCall

NEXT_TO_NOTHING = 1e-6
"""A loss that is multiplied by less is an alarm (a choice): Adam adds 1e-8 to the root of its second moment."""

SMALL_LOSS = 1e-3
"""A loss that is multiplied by next to nothing is an alarm if it is smaller than this (a choice)."""


class Scaled(NamedTuple):
    """What a loss is, but for a factor.

    Args:
        op: the operation that gives it.
        factor: what its mean is multiplied by on the way to the loss.
        smallest: the operation with the smallest factor; None without one.
    """

    op: Op
    factor: float
    smallest: Op | None


def unbounded_loss(done: Done) -> Iterator[Finding]:
    """Find a loss that is minus an error, so that training makes the error larger."""
    scaled = _scaled(done.loss)
    if scaled is None or scaled.factor >= 0 or not _is_error(scaled.op):
        return
    yield Finding(
        "unbounded_loss",
        "alarm",
        scaled.op.place.module,
        f"the loss is {scaled.factor:.3g} times the {scaled.op.name} at {scaled.op.place}, an error that is never "
        "negative: it has no lower bound, and training makes the error larger",
        "remove the minus",
    )


def loss_scale(done: Done) -> Iterator[Finding]:
    """Find a loss that is multiplied by next to nothing, or is exactly 0."""
    if done.number == 0:
        yield Finding(
            "loss_scale", "note", "", "the loss of the first batch is exactly 0", "look at what it is made of"
        )
    scaled = _scaled(done.loss)
    if scaled is None or scaled.smallest is None or not 0 < abs(scaled.factor) < NEXT_TO_NOTHING:
        return
    if abs(done.number) < SMALL_LOSS:
        yield Finding(
            "loss_scale",
            "alarm",
            scaled.smallest.place.module,
            f"the loss is multiplied by {scaled.factor:.3g} at {scaled.smallest.place}, and is {done.number:.3g}",
            "remove the factor; the learning rate scales the steps",
        )


def _scaled(loss: Value) -> Scaled | None:
    """Follow a loss back through sums, means and factors, as long as it comes from a single tensor."""
    value, factor, smallest, least = loss, 1.0, None, 1.0
    while value.op is not None:
        op = value.op
        by = _factor_of(op, value)
        if by is None:
            break
        factor *= by
        if op.name in _MULTIPLYING and abs(by) < least:
            smallest, least = op, abs(by)
        value = op.inputs[0]
    if value.op is None:
        return None
    if value.op.arguments.get("reduction") == "sum" and isinstance(value.op.seen, LossCall):
        factor *= value.op.seen.wanted.numel()
    return Scaled(value.op, factor, smallest)


_MULTIPLYING = frozenset({"mul", "rmul", "div", "truediv"})


def _factor_of(op: Op, value: Value) -> float | None:
    """Return what an operation multiplies the mean of its input by; None where it does something else."""
    if len(op.inputs) != 1:
        return None
    if op.name in RESHAPES or op.name == "mean":
        return 1.0
    if op.name == "sum":
        return math.prod(op.inputs[0].shape) / max(1, math.prod(value.shape))
    if op.name in ("neg", "negative"):
        return -1.0
    numbers = [given for given in op.arguments.values() if _is_number(given)]
    if op.name not in _MULTIPLYING or len(numbers) != 1 or numbers[0] == 0:
        return None
    return float(numbers[0]) if op.name in ("mul", "rmul") else 1 / float(numbers[0])


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_error(op: Op) -> bool:
    """Return whether an operation gives an error of the model that is at least 0, with a target from the batch."""
    if op.name in ("square", "abs") or (op.name == "pow" and 2 in op.arguments.values()):
        source = op.inputs[0].origin.op if op.inputs else None
        return source is not None and source.name in ("sub", "rsub") and _has_target(source)
    return op.name in LOSSES - {"kl_div"} and _has_target(op)


def _has_target(op: Op) -> bool:
    call = op.seen
    return isinstance(call, LossCall) and call.output.requires_grad and call.target.origin.path is not None
