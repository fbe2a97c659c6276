"""Finds Dice and IoU losses, which are written with arithmetic, of outputs that are no probabilities."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import RESHAPES, Op, Value
from hookboard.tracing.rules import ROUNDING, TracedStep

_SUMS = frozenset({"add", "radd", "iadd", "sub", "rsub", "mul", "rmul", "neg", "sum", "mean", "clamp"}) | RESHAPES


class Product(NamedTuple):
    """A product of an output, which needs a gradient, and a target, which depends on the batch alone.

    Args:
        output: the value of the output.
        target: the value of the target.
        values: the output, detached.
    """

    output: Value
    target: Value
    values: Tensor


def _of_product(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> Product | None:
    """Return the product of an output and a target; None for others."""
    pairs = list(zip(op.inputs, given.values(), strict=False))
    for (output, values), (target, _) in (pairs, pairs[::-1]) if len(pairs) == 2 else ():
        is_dense = values.layout is torch.strided and values.is_floating_point() and not values.is_nested
        if output.requires_grad and target.of_batch and not target.of_parameters and is_dense and values.numel():
            return Product(output, target, values.detach())
    return None


OBSERVERS = dict.fromkeys(("mul", "rmul"), _of_product)
"""Function name to what is called with its tensors; see `StepTrace`."""


def loss_input(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for `(output * target).sum() / (output.sum() + target.sum())` of outputs outside of 0 to 1."""
    for division in (value.op for value in done.loss.ancestors()):
        if division is None or division.name not in ("div", "truediv") or len(division.inputs) != 2:
            continue
        above, below = (list(_summands(value)) for value in division.inputs)
        summed = {id(op.inputs[0].origin) for op in below if op.name == "sum" and op.inputs}
        for op in above:
            product = op.seen
            if not isinstance(product, Product):
                continue
            low, high = float(product.values.min()), float(product.values.max())
            is_overlap = {id(product.output.origin), id(product.target.origin)} <= summed
            if is_overlap and (low < -ROUNDING or high > 1 + ROUNDING):
                yield Finding(
                    op.place.module,
                    f"the Dice or IoU loss {op.place} expects probabilities and masks, but the outputs range from "
                    f"{low:.3g} to {high:.3g}",
                    "apply sigmoid or softmax to the outputs first",
                    "alarm",
                )


DICE = Rule("loss_input", loss_input, of="step", gives="alarm")


def _summands(value: Value) -> Iterator[Op]:
    """Yield the calls whose results a value is a sum of, each once, and the calls that add them up."""
    waiting, seen = [value], set[Op]()
    while waiting:
        op = waiting.pop().op
        if op is not None and op not in seen:
            seen.add(op)
            yield op
            if op.name in _SUMS:
                waiting += op.inputs
