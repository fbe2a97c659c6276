"""Finds faults in the data that enter the model and the loss: their scale, and masks of padding."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.base.ranks import local
from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import Op, Value, loss_part
from hookboard.tracing.rules import TracedStep

WEIGHING = ("linear", "matmul", "mm", "conv1d", "conv2d", "conv3d", "lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions whose first argument is weighed by parameters."""


class Embedded(NamedTuple):
    """A call of an embedding with tokens of the batch.

    Args:
        op: the call.
        tokens: shape (samples, positions).
    """

    op: Op
    tokens: Tensor


def note_embedding(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> Embedded | None:
    """Return the call if its tokens have two dimensions and come from the batch, and its result needs a gradient.

    Otherwise None.
    """
    tokens, ids = given.get("input"), op.arguments.get("input")
    if tokens is None or ids is None or tokens.dim() != 2 or ids.origin.path is None or not results[0].requires_grad:
        return None
    return Embedded(op, tokens)


class DataInput(NamedTuple):
    """The first argument of a function with parameters, if it comes from data alone.

    Args:
        op: the call.
        value: the value of the argument.
        tensor: the argument, detached; of a DTensor what this rank has.
    """

    op: Op
    value: Value
    tensor: Tensor


def note_input(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> DataInput | None:
    """Return the first argument of the call if it is floating-point and no parameter had a part in it; else None."""
    name = next(iter(given), "")
    value = op.arguments.get(name)
    if not isinstance(value, Value) or value.of_parameters or not given[name].is_floating_point():
        return None
    return DataInput(op, value, local(given[name].detach()))


_NORMS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"})


def taken_by_weights(done: TracedStep) -> dict[str, float]:
    """Map each tensor of the batch that weights do not take as it is, by its path, to the RMS with which they take it.

    Of several the one farthest from 1; 1 if no weights take it, or embeddings as codes. Left out if it is not known.
    """
    sizes, given, codes = dict[str, list[float]](), set[str](), set[str]()
    of_loss, rms = set(loss_part(done.loss)), dict[Value, float]()
    for op in done.step.ops:
        meets_weights = op not in of_loss and op.name not in _NORMS and any(one.of_parameters for one in op.inputs)
        for value in op.inputs if meets_weights else ():
            if not value.of_batch or value.of_parameters:
                continue
            paths = {one.path for one in value.ancestors() if one.path is not None} & done.step.float_paths
            if op.name == "embedding":
                codes |= paths
            elif value.origin.path is not None:
                given |= paths
            else:
                if paths and value not in rms:  # a mask meets each layer
                    is_it = isinstance(op.seen, DataInput) and op.seen.value is value
                    rms[value] = _rms_of(op.seen if is_it else None)
                for path in paths:
                    sizes.setdefault(path, []).append(rms[value])
    taken = {path: max(each, key=lambda size: abs(math.log(size))) for path, each in sizes.items() if min(each) > 0}
    known = dict.fromkeys(done.step.float_paths - sizes.keys(), 1.0) if sizes or given else {}
    known = {path: size for path, size in (known | taken).items() if path not in given}
    return known | dict.fromkeys(codes, 1.0)


def _rms_of(data: object) -> float:
    """Return the RMS of what a call takes of the batch; 1 if it is not known, 0 if it is not finite."""
    if not isinstance(data, DataInput) or not data.tensor.numel():
        return 1.0
    numbers = data.tensor.double()
    return float(numbers.square().mean().sqrt()) if bool(numbers.isfinite().all()) else 0.0


MIN_PADDED_SHARE, MIN_PADDED_ROWS = 0.2, 0.5
"""Tokens count as padded if at least this share of the rows (the second number) ends in a run of the same number, and
these runs are at least the first share of all tokens (choices)."""

MIN_RUN = 2
"""A row is padded if it ends with at least this many equal numbers (a choice)."""


def runs_of(rows: Tensor, pad: int) -> Tensor:
    """Return which elements belong to a run of `pad` that lasts to the end of their row; shape of `rows`, bool."""
    return (rows == pad).flip(1).cumprod(1).flip(1).bool()


def padding_of(rows: Tensor) -> int | None:
    """Return the number that pads the rows; None if they are not padded."""
    pad = int(rows[:, -1].mode().values)
    lengths = runs_of(rows, pad).sum(1)
    has_ends = (lengths >= MIN_RUN).double().mean() >= MIN_PADDED_ROWS and lengths.unique().numel() > 1
    return pad if has_ends and lengths.sum() >= MIN_PADDED_SHARE * rows.numel() else None


AGREEING_SHARE = 0.99
"""A mask is the wrong way round if at least this share of it hides what is no padding, or shows what is (a choice)."""


class Masked(NamedTuple):
    """A call of attention with a mask over the positions of its keys.

    Args:
        hidden: which positions it hides, shape (samples, positions), bool.
    """

    hidden: Tensor


def note_mask(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> Masked | None:
    """Return a `Masked` if the call has a `key_padding_mask` of two dimensions; otherwise None."""
    mask = given.get("key_padding_mask")
    if mask is None or mask.dim() != 2:
        return None
    return Masked(mask.detach() if mask.dtype is torch.bool else mask.detach() == -math.inf)


def padding_mask(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for attention that hides all tokens and shows the padding."""
    embedded = [op.seen.tokens for op in done.step.ops if isinstance(op.seen, Embedded)]
    for op in done.step.ops:
        if not isinstance(op.seen, Masked):
            continue
        hidden = op.seen.hidden
        for tokens in embedded:
            pad = padding_of(tokens) if tokens.shape == hidden.shape else None
            if pad is not None and float((hidden != runs_of(tokens, pad)).double().mean()) >= AGREEING_SHARE:
                yield Finding(
                    op.place.module,
                    f"the key_padding_mask of attention {op.place} hides {float(hidden.double().mean()):.0%} of the "
                    f"positions (all that hold a token) and shows the padding (token {pad})",
                    "invert the mask: True hides a position, so pass tokens == pad",
                    "alarm",
                )
                return


PADDING_MASK = Rule("padding_mask", padding_mask, of="step", gives="alarm")
