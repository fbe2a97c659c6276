"""Finds reshapes that mix positions and classes in front of a loss."""

import math
from collections.abc import Iterator

from hookboard.auditing.calls import Value
from hookboard.auditing.rules import Finding, TracedStep, losses_of


def loss_shape(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a view that exchanges classes and positions in front of a loss, in place of a transpose."""
    for call in losses_of(done):
        op = call.output.op
        if call.op.name not in ("cross_entropy", "nll_loss") or op is None or op.name not in ("view", "reshape"):
            continue
        before, after = op.inputs[0].shape, call.output.shape
        if len(before) > 2 and after == (before[0], before[-1], *before[1:-1]) != before:
            remedy = "transpose(1, 2)" if len(before) == 3 else "movedim(-1, 1)"
        elif _has_classes_second(op.inputs[0]) and after == (math.prod(before) // before[1], before[1]):
            remedy = f"movedim(1, -1).reshape(-1, {before[1]})"
        else:
            continue
        yield Finding(
            "loss_shape",
            "alarm",
            op.place.module,
            f"{op.name} at {op.place} makes {list(after)} of {list(before)} without moving an element: classes and "
            f"positions are mixed in what {call.op.name} at {call.op.place} takes",
            f"use {remedy} in place of the {op.name}",
        )


def _has_classes_second(value: Value) -> bool:
    """Return True for shape (N, C, ...), unless a view made it or its last dimension may be the classes as well."""
    shape = value.shape
    is_made_by_view = value.op is not None and value.op.name in ("view", "reshape", "unflatten")
    return len(shape) > 2 and math.prod(shape[2:]) > 1 and shape[-1] != shape[1] and not is_made_by_view
