"""What the loss is a multiple of: signs and factors that harm, Dice losses, the loss of the best constant answer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import RESHAPES, Op, Value
from hookboard.tracing.loss_rules import BINARY, LOSSES, ROUNDING, LossCall, TracedStep


class Scaled(NamedTuple):
    """A loss as `factor` times the mean of the tensor that a call returned."""

    op: Op
    factor: float


def unbounded_loss(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if the loss is an error times a negative number: training then makes the error larger."""
    scaled = mean_behind(done.loss)
    if scaled is None or done.step.is_maximized is None:
        return
    factor = -scaled.factor if done.step.is_maximized else scaled.factor
    if factor >= 0 or not _is_error(scaled.op):
        return
    yield Finding(
        scaled.op.place.module,
        f"the loss is {scaled.factor:.3g} times the {scaled.op.name} {scaled.op.place}; that error is never "
        + ("negative, so a lower" if factor == scaled.factor else "negative, and the optimizer maximizes: a higher")
        + " loss means a larger error",
        "remove the minus sign" if factor == scaled.factor else "remove maximize=True",
        "alarm",
    )


UNBOUNDED_LOSS = Rule("unbounded_loss", unbounded_loss, of="step", gives="alarm")


def picks_log_probabilities(op: Op) -> bool:
    """Return True if a call picks from log-probabilities by an index that is in the batch."""
    picked, *index = op.inputs
    return picked.made_by == "log_softmax" and any(value.origin.path is not None for value in index)


def mean_behind(loss: Value) -> Scaled | None:
    """Follow a loss through means, sums, reshapes and factors to the call whose mean it is a multiple of; else None."""
    value, factor = loss, 1.0
    while value.op is not None:
        op = value.op
        by = _factor_of(op, value)
        if by is None:
            break
        factor *= by
        value = op.inputs[0]
    if value.op is None:
        return None
    if value.op.arguments.get("reduction") == "sum" and isinstance(value.op.seen, LossCall):
        factor *= value.op.seen.wanted.numel()
    return Scaled(value.op, factor)


def _factor_of(op: Op, value: Value) -> float | None:
    """Return by what a call multiplies the mean of its input to give `value`; None if it does anything else."""
    if len(op.inputs) != 1:
        return None
    if op.name == "mean" or (op.name in RESHAPES and math.prod(op.inputs[0].shape) == math.prod(value.shape)):
        return 1.0
    if op.name == "sum":
        return math.prod(op.inputs[0].shape) / max(1, math.prod(value.shape))
    if op.name in ("neg", "negative"):
        return -1.0
    numbers = [
        number for number in op.arguments.values() if isinstance(number, int | float) and not isinstance(number, bool)
    ]
    if op.name not in ("mul", "rmul", "div", "truediv") or len(numbers) != 1 or numbers[0] == 0:
        return None
    return float(numbers[0]) if op.name in ("mul", "rmul") else 1 / float(numbers[0])


def _is_error(op: Op) -> bool:
    """Return True if a call computes an error that is never negative, between an output and a target of the batch."""
    if op.name in ("square", "abs") or (op.name == "pow" and 2 in op.arguments.values()):
        source = op.inputs[0].origin.op if op.inputs else None
        return source is not None and source.name in ("sub", "rsub") and _has_target(source)
    return op.name in LOSSES - {"kl_div"} and _has_target(op)


def _has_target(op: Op) -> bool:
    """Return True if a call compares an output that needs a gradient with a tensor of the batch."""
    call = op.seen
    return isinstance(call, LossCall) and call.output.requires_grad and call.target.origin.path is not None


SQUARED = frozenset({"mse_loss", "square", "pow"})
ABSOLUTE = frozenset({"l1_loss", "abs"})


def constant_loss(done: TracedStep) -> float:
    """Return the least loss on this batch of a model with the same output for every sample; NaN if it is not known."""
    scaled = mean_behind(done.loss)
    if scaled is None or not scaled.factor > 0:
        return math.nan
    op, call = scaled.op, scaled.op.seen
    if op.name in ("square", "abs") or (op.name == "pow" and 2 in op.arguments.values()):
        source = op.inputs[0].origin.op if op.inputs else None
        call = source.seen if source is not None and source.name in ("sub", "rsub") else None
    if not isinstance(call, LossCall) or not call.counts_all or call.weight is not None:
        return math.nan
    wanted = call.wanted.detach()
    if call.target.origin.path is None or math.prod(op.inputs[0].shape) != wanted.numel():  # a part of the errors
        return math.nan
    if call.values.shape != wanted.shape or wanted.dim() == 0 or not wanted.is_floating_point():
        return math.nan
    return scaled.factor * _mean_error(op.name, wanted.double().reshape(len(wanted), -1))


def _mean_error(loss: str, wanted: Tensor) -> float:
    """Return the mean loss on `wanted`, shape (samples, columns), of the best constant for each column, or NaN."""
    if loss in SQUARED:
        return float(wanted.var(0, correction=0).mean())
    if loss in ABSOLUTE:
        return float((wanted - wanted.median(0).values).abs().mean())
    if loss in BINARY and bool(((wanted >= 0) & (wanted <= 1)).all()):
        share = wanted.mean(0)
        return float(-(share.xlogy(share) + (1 - share).xlogy(1 - share)).mean())
    return math.nan


_SUMS = frozenset({"add", "radd", "iadd", "sub", "rsub", "mul", "rmul", "neg", "sum", "mean", "clamp"}) | RESHAPES


class Product(NamedTuple):
    """A product of an output, which needs a gradient, and a target, which depends on the batch alone."""

    output: Value
    target: Value
    values: Tensor  # the output, detached


def _of_product(op: Op, tensors: Mapping[str, Tensor], results: Sequence[Tensor]) -> Product | None:
    pairs = list(zip(op.inputs, tensors.values(), strict=False))
    for (output, values), (target, _) in (pairs, pairs[::-1]) if len(pairs) == 2 else ():
        is_dense = values.layout is torch.strided and values.is_floating_point() and not values.is_nested
        if output.requires_grad and target.of_batch and not target.of_parameters and is_dense and values.numel():
            return Product(output, target, values.detach())
    return None


DICE_OBSERVERS = dict.fromkeys(("mul", "rmul"), _of_product)
"""Function name to what is called with its tensors; see `StepTrace`."""


def dice_input(done: TracedStep) -> Iterator[Finding]:
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


DICE = Rule("loss_input", dice_input, of="step", gives="alarm")


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
