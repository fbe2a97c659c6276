"""Finds faults in losses that are written with arithmetic, in place of a loss function."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import RESHAPES, Op, Value
from hookboard.tracing.rules import ROUNDING, TracedStep

_ARITHMETIC = """
add radd iadd sub rsub isub mul rmul imul div truediv rtruediv itruediv pow square abs sqrt neg exp log log1p log2 log10
cosh clamp clip relu softplus where maximum minimum mean sum norm nan_to_num
"""
ARITHMETIC = frozenset(_ARITHMETIC.split()) | RESHAPES
"""Functions that a loss is written with: each number of the result depends on numbers at the same place, or on all."""

_SUMS = frozenset({"add", "radd", "iadd", "sub", "rsub", "mul", "rmul", "neg", "sum", "mean", "clamp"}) | RESHAPES


class Product(NamedTuple):
    """A product of an output, which needs a gradient, and a target, which depends on the batch alone.

    Args:
        output: the value of the output.
        target: the value of the target.
        output_limits: the smallest and largest number of the output, on its device.
        target_limits: the smallest and largest number of the target, on its device.
    """

    output: Value
    target: Value
    output_limits: tuple[Tensor, Tensor]
    target_limits: tuple[Tensor, Tensor]


def _of_product(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> Product | None:
    """Return the product of an output and a target; None for others."""
    pairs = list(zip(op.inputs, given.values(), strict=False))
    for (output, values), (target, wanted) in (pairs, pairs[::-1]) if len(pairs) == 2 else ():
        is_product = output.requires_grad and target.of_batch and not target.of_parameters
        if is_product and _has_limits(values) and _has_limits(wanted):
            return Product(output, target, values.detach().aminmax(), wanted.detach().aminmax())
    return None


def _has_limits(tensor: Tensor) -> bool:
    """Return True if min and max of a tensor can be computed: it is dense, real and not empty."""
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    return is_dense and not tensor.is_complex() and tensor.numel() > 0


OBSERVERS = dict.fromkeys(("mul", "rmul"), _of_product)
"""Function name to what is called with its tensors; see `StepTrace`."""


def calls_from(value: Value, names: frozenset[str]) -> Iterator[Op]:
    """Yield the calls that a value was computed by, each once, from the last one back.

    The inputs of a call are followed only if its function is in `names`; so the last calls yielded may be of others.
    """
    waiting, seen = [value], set[int]()
    while waiting:
        op = waiting.pop().op
        if op is not None and id(op) not in seen:
            seen.add(id(op))
            yield op
            if op.name in names:
                waiting += op.inputs


def loss_input(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a Dice loss of logits."""
    for op, product in _overlaps(done):
        low, high = map(float, product.output_limits)
        if low < -ROUNDING or high > 1 + ROUNDING:
            yield Finding(
                op.place.module,
                f"the Dice or IoU loss {op.place} expects probabilities and masks, but the outputs range from "
                f"{low:.3g} to {high:.3g}",
                "apply sigmoid or softmax to the outputs first",
                "alarm",
            )


LOSS_INPUT_BY_HAND = Rule("loss_input", loss_input, of="step")


def targets(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for targets outside of 0 to 1 in a Dice loss."""
    for op, product in _overlaps(done):
        low, high = map(float, product.target_limits)
        if low < -ROUNDING or high > 1 + ROUNDING:
            yield Finding(
                op.place.module,
                f"the Dice or IoU loss {op.place} expects targets from 0 to 1, but they range from {low:g} to {high:g}",
                "encode two classes as 0 and 1; divide masks of 0 and 255 by 255; for more classes use cross_entropy",
                "alarm",
            )


TARGETS_BY_HAND = Rule("targets", targets, of="step")


def _overlaps(done: TracedStep) -> Iterator[tuple[Op, Product]]:
    """Yield call and product in each `(output * target).sum() / (output.sum() + target.sum())`, as in Dice and IoU."""
    for division in calls_from(done.loss, ARITHMETIC):
        if division.name not in ("div", "truediv") or len(division.inputs) != 2:
            continue
        above, below = (list(calls_from(value, _SUMS)) for value in division.inputs)
        summed = {id(op.inputs[0].origin) for op in below if op.name == "sum" and op.inputs}
        for op in above:
            product = op.seen
            if isinstance(product, Product) and {id(product.output.origin), id(product.target.origin)} <= summed:
                yield op, product
