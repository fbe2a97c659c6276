"""Finds layers that run over the samples of the batch, and reshapes that mix samples, positions or classes."""

import math
from collections.abc import Iterator
from typing import Any

from hookboard.auditing.calls import Op, Value
from hookboard.auditing.handwritten import ARITHMETIC, calls_from
from hookboard.auditing.rules import Finding, TracedStep, are_probabilities, last_softmaxes, losses_of

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

_ELEMENTWISE = """
add radd iadd sub rsub isub mul rmul imul div truediv rtruediv itruediv pow rpow neg abs exp log sqrt rsqrt square sin
cos tanh sigmoid relu relu6 leaky_relu elu selu gelu silu mish softplus hardtanh hardswish hardsigmoid clamp
masked_fill where dropout layer_norm rms_norm batch_norm group_norm linear embedding conv1d conv2d conv3d max_pool1d
max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d
interpolate normalize
"""
_KEEPING_ROWS = frozenset(_ELEMENTWISE.split()) | {"bmm", "matmul", "baddbmm"}
_VIEWS = frozenset({"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone"})
_CASTS = frozenset({"float", "double", "half", "bfloat16", "to", "type", "cpu", "cuda", "mT"})


class Samples:
    """Tells for the values of a step whether each row along dimension 0 belongs to one sample of the batch.

    Args:
        count: how many samples the batch has.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._known: dict[int, bool] = {}

    def are_rows_of(self, value: Value) -> bool:
        """Return True if row `i` of the value depends on sample `i` of the batch alone; False if uncertain."""
        waiting = [value]
        while waiting:  # not by recursion: a step may have thousands of calls in a row
            last = waiting[-1]
            unknown = [] if last.op is None else [one for one in last.op.inputs if id(one) not in self._known]
            if id(last) in self._known or not unknown or last.shape[:1] != (self.count,):
                self._known.setdefault(id(waiting.pop()), self._are_rows(last))
            else:
                waiting += unknown
        return self._known[id(value)]

    def _are_rows(self, value: Value) -> bool:
        """Return what `are_rows_of` does; the answers for the inputs of the call that gave the value must be known."""
        if value.shape[:1] != (self.count,) or value.op is None:
            return value.path is not None and value.shape[:1] == (self.count,)
        op = value.op
        given = [one for one in op.inputs if one.of_batch]
        if not given or not all(self._known.get(id(one), False) for one in given):
            return False
        if op.name in ("bmm", "matmul", "baddbmm"):
            return all(len(one.shape) > 2 for one in op.inputs)
        if op.name in ("transpose", "permute", "getitem", "softmax", "log_softmax"):
            return _keeps_first_dimension(op, len(given[0].shape))
        return op.name in _KEEPING_ROWS | _VIEWS | _CASTS


def _keeps_first_dimension(op: Op, dimensions: int) -> bool:
    """Return True if a transpose, permutation, index or softmax does not touch dimension 0.

    Args:
        op: the call.
        dimensions: number of dimensions of its input.
    """
    rest = [argument for name, argument in op.arguments.items() if name not in ("0", "input", "_stacklevel", "dtype")]
    first: Any = rest[0] if rest else None
    if op.name == "getitem":
        index = first[0] if isinstance(first, list) and first else first
        return isinstance(index, slice) and index == slice(None)
    if op.name == "permute":
        order = first if isinstance(first, list | tuple) else rest
        return bool(order) and order[0] == 0
    axes = rest if op.name == "transpose" else [first]
    return all(isinstance(axis, int) and axis % dimensions != 0 for axis in axes)


def batch_mixing(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for calls that mix the samples of a batch with one target for each sample.

    These are recurrent layers, attention and softmax over the dimension of the samples, and a reshape that exchanges it
    with another dimension.
    """
    found, samples = list(_last_softmax(done)), _samples_of(done)
    yield from found
    if samples is None or found:
        return
    of_loss = {id(op) for op in calls_from(done.loss, ARITHMETIC)}
    ancestors = {id(value.op): value for value in done.loss.ancestors() if value.op is not None}
    for op in done.step.ops:
        first = op.inputs[0] if id(op) in ancestors and op.inputs else None
        if first is None or len(first.shape) < 2:
            continue
        finding = _swapped(op, first, ancestors[id(op)], done)
        # Where the second dimension is as long as the first, the layout of the batch is open.
        if finding is None and first.shape[0] != first.shape[1]:
            finding = _mixing(op, first, is_of_loss=id(op) in of_loss)
        if finding is not None and samples.are_rows_of(first):
            yield finding


def _last_softmax(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a softmax over the samples whose output a loss compares with a target for each sample."""
    for call, op, shape, dim in last_softmaxes(done):
        is_first = dim % len(shape) == 0 and len(shape) == 2 and shape[dim] > 1
        is_one_hot = call.target.shape == shape and are_probabilities(call.wanted) and bool((call.wanted <= 1).all())
        if is_first and (is_one_hot or call.target.shape == shape[:1] != shape[1:]):
            yield Finding(
                "batch_mixing",
                "alarm",
                op.place.module,
                f"{op.name} at {op.place} runs over dimension 0 of {list(shape)}, the samples of the batch",
                "use dim=1, the classes",
            )


def _samples_of(done: TracedStep) -> Samples | None:
    """Return a `Samples` for the batch; None if the number of samples is not clear.

    It is clear if the loss depends on a tensor of the batch with one number per sample, shape (n,) or (n, 1).
    """
    given = [value.shape for value in done.loss.ancestors() if value.path is not None]
    counts = {shape[0] for shape in given if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)}
    return Samples(counts.pop()) if len(counts) == 1 and max(counts) > 1 else None


def _mixing(op: Op, first: Value, *, is_of_loss: bool) -> Finding | None:
    """Return a finding if a layer mixes the rows of its first input, each of which is a sample; None for others.

    Args:
        op: the call.
        first: its first input.
        is_of_loss: whether only arithmetic lies between the call and the loss, so that no layer follows it.
    """
    shape = list(first.shape)
    is_meant = False
    if _is_sequence_first(op, first):
        advice = "set batch_first=True"
    elif op.name == _ATTENTION and len(shape) == 2:
        is_meant, advice = True, "if samples are not to attend to each other, add a dimension with unsqueeze(1)"
    elif op.name in ("softmax", "log_softmax") and shape[-1] > 1 and not _keeps_first_dimension(op, len(shape)):
        is_meant = not is_of_loss if len(shape) == 2 else shape[-1] != shape[-2]
        advice = f"use dim={1 if len(shape) == 2 else -1}"
    else:
        return None
    over = f"{op.name} at {op.place} runs over dimension 0 of {shape}, with one target for each of its {shape[0]} rows"
    return Finding("batch_mixing", "note" if is_meant else "alarm", op.place.module, over, advice)


_ATTENTION = "multi_head_attention_forward"


def _is_sequence_first(op: Op, first: Value) -> bool:
    """Return True if a layer takes dimension 0 of its first input as the positions, and dimension 1 as the samples."""
    is_sequence_first = op.name == _ATTENTION or (op.name in RECURRENT and op.arguments.get("8") is False)
    # With one column, dimension 0 is rather the positions of a single sequence.
    return is_sequence_first and len(first.shape) == 3 and first.shape[1] > 1


def _swapped(op: Op, first: Value, result: Value, done: TracedStep) -> Finding | None:
    """Return an alarm for a view or reshape that moves the samples to another dimension; None for others.

    If its rows are whole parts of a sample, or whole samples, it may be a regrouping, such as windows that are as long
    as the batch: then it is an alarm only if a layer takes dimension 1 as the samples.
    """
    count = first.shape[0]
    before, after = ([size for size in shape if size > 1] for shape in (first.shape, result.shape))
    if op.name not in ("view", "reshape") or sorted(before) != sorted(after) or before[:1] == after[:1]:
        return None
    is_regrouping = after[0] % count == 0 or count % after[0] == 0
    if is_regrouping and not (result.shape[1] == count and _is_taken_as_sequence_first(result, done)):
        return None
    at = result.shape.index(count)
    is_clear = len(result.shape) == len(first.shape) == len(set(first.shape))
    order = ", ".join(str(first.shape.index(size)) for size in result.shape) if is_clear else "..."
    is_exchange = result.shape == (first.shape[1], count, *first.shape[2:])
    remedy = "transpose(0, 1)" if is_exchange else f"permute({order})"
    return Finding(
        "batch_mixing",
        "alarm",
        op.place.module,
        f"{op.name} at {op.place} makes {list(result.shape)} of {list(first.shape)} without moving an element: "
        f"dimension {at} is then as long as the batch, but what lies at one index of it comes from several samples",
        f"use {remedy} in place of the {op.name}",
    )


def _is_taken_as_sequence_first(result: Value, done: TracedStep) -> bool:
    """Return True if a layer takes a value, or what was computed from each of its rows, with its positions first."""
    taken = (op.inputs[0] for op in done.step.ops if op.inputs and _is_sequence_first(op, op.inputs[0]))
    return any(_comes_from(value, result) for value in taken if value.shape[:2] == result.shape[:2])


def _comes_from(value: Value, source: Value) -> bool:
    """Return True if a value was computed from the source by calls that keep the first two dimensions."""
    while value.op is not None and value.op is not source.op:
        if value.op.name not in _KEEPING_ROWS | _CASTS or not value.op.inputs:
            return False
        value = value.op.inputs[0]
        if value.shape[:2] != source.shape[:2]:
            return False
    return value.op is source.op


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
