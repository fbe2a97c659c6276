"""Computes the loss of the best constant answer: what a model must beat to have learned anything."""

import math

from torch import Tensor

from hookboard.auditing.rules import BINARY, LossCall, TracedStep
from hookboard.auditing.scaling import mean_behind

SQUARED = frozenset({"mse_loss", "square", "pow"})
ABSOLUTE = frozenset({"l1_loss", "abs"})


def constant_loss(done: TracedStep) -> float:
    """Return the least loss on this batch of a model that gives every sample the same output.

    It is known where the loss is a squared or absolute error or a binary cross entropy, averaged or summed, between an
    output and a tensor of the batch, times a positive number. Each element of the output has its own constant.

    Returns:
        The loss; NaN if it is not known.
    """
    scaled = mean_behind(done.loss)
    if scaled is None or not scaled.factor > 0:
        return math.nan
    op, call = scaled.op, scaled.op.seen
    if op.name in ("square", "abs") or (op.name == "pow" and 2 in op.arguments.values()):
        source = op.inputs[0].origin.op if op.inputs else None
        call = source.seen if source is not None and source.name in ("sub", "rsub") else None
    if not isinstance(call, LossCall) or not call.counts_all or call.target.origin.path is None:
        return math.nan
    wanted = call.wanted.detach()
    if call.values.shape != wanted.shape or wanted.dim() == 0 or not wanted.is_floating_point():
        return math.nan
    return scaled.factor * _mean_error(op.name, wanted.double().reshape(len(wanted), -1))


def _mean_error(loss: str, wanted: Tensor) -> float:
    """Return the mean loss on `wanted`, shape (samples, columns), of the best constant for each column.

    NaN unless `loss` is the name of a function in SQUARED, ABSOLUTE or BINARY, the latter with targets of 0 to 1.
    """
    if loss in SQUARED:
        return float(wanted.var(0, correction=0).mean())
    if loss in ABSOLUTE:
        return float((wanted - wanted.median(0).values).abs().mean())
    if loss in BINARY and bool(((wanted >= 0) & (wanted <= 1)).all()):
        share = wanted.mean(0)
        return float(-(share.xlogy(share) + (1 - share).xlogy(1 - share)).mean())
    return math.nan
