"""On what results depend: other samples of the batch, what the call takes at all, the size of the data."""

import functools
import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.base.ranks import local
from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import RESHAPES, Op, PartialGraph, Value, asked, loss_part
from hookboard.tracing.loss_rules import REGRESSION, TracedStep, in_numbers, last_softmaxes, losses_of

ROUNDING = 1e-5
"""A gradient below this share of the largest is none (a choice): kernels round, and masks of -10000 leave a little."""

MAX_ENDS = 4
"""At most so many of the tensors that enter the loss are asked about, the last ones first (a choice)."""

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def _count_of(done: TracedStep) -> int:
    """Return how many samples the batch has; 0 if its tensors do not tell."""
    leaves = [value for value in done.loss.ancestors() if value.path is not None and value.op is None]
    shapes = [value.shape for value in leaves]
    # One number for each sample tells, or nothing but matrices of real numbers.
    counts = {shape[0] for shape in shapes if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)}
    if all(len(value.shape) == 2 and value.path in done.step.float_paths for value in leaves):
        counts |= {shape[0] for shape in shapes}
    first = counts or {shape[0] for shape in shapes if shape}
    # Pictures have their samples first; sequences may have them second, but then all tensors have.
    is_clear = not any(len(shape) == 3 and shape[0] == shape[1] for shape in shapes) and (
        len(counts) == 1
        or len({shape[1] for shape in shapes if len(shape) > 1}) > 1
        or max(map(len, shapes), default=0) > 3
    )
    return first.pop() if len(first) == 1 and is_clear and min(first) > 1 else 0


@asked
def batch_mixing(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for the first call that takes samples and mixes them, if an output is mixed in the end."""
    count, of_loss, graph = _count_of(done), set(loss_part(done.loss)), done.graph
    ends = dict.fromkeys(one for op in of_loss for one in op.inputs if one.of_parameters and one.op not in of_loss)
    # What is compared with a target of its own is of one sample too.
    ends |= dict.fromkeys(one.output for one in losses_of(done) if one.target.origin in done.step.given)
    for end in [one for one in ends if count and one.of_batch and graph.has(one)][:MAX_ENDS]:
        firsts = [one for one in firsts_behind(end, graph) if _has_samples(one, count)]
        on_data = _mixing_on_data(firsts, count)
        if on_data is None and not _mixes(graph, end, firsts, count):
            continue
        behind = _calls_between(firsts, end)
        guilty = on_data or next((op for op in done.step.ops if op in behind and _is_guilty(graph, op, count)), None)
        if guilty is None or guilty.name in RESHAPES - {"view", "reshape"} or _is_meant(guilty, count):
            continue
        # Rows of numbers may be the positions of one sequence, or the objects of one scene.
        first = _taken_by(guilty)[0]
        may_be_meant = len(first.shape) == 2 and first.shape[0] == count and guilty not in of_loss
        yield _finding(guilty, first, guilty.results[0], may_be_meant=may_be_meant)
        return


BATCH_MIXING = Rule("batch_mixing", batch_mixing, of="step")


def firsts_behind(end: Value, graph: PartialGraph) -> list[Value]:
    """Return where the batch enters the graph behind a tensor; batch norms count too, which mix samples on purpose."""
    found: dict[Value, None] = {}

    def lies_between(value: Value) -> bool:
        op = value.op
        if op is None or not value.of_batch:
            return False
        is_norm = op.name == "batch_norm" and bool(op.arguments.get("training", op.arguments.get("5")))
        if graph.has(value) and (is_norm or not any(graph.has(given) and given.of_batch for given in op.inputs)):
            found[value] = None
            return False
        return True

    deque(end.ancestors(lies_between), maxlen=0)
    return [*found]


def _calls_between(firsts: Sequence[Value], end: Value) -> set[Op]:
    """Return the calls on the way from some tensors to another, without those that made the former."""
    return {one.op for one in end.ancestors(lambda one: one not in firsts) if one.op is not None and one.op.with_grad}


Layout = Callable[[Tensor], Tensor]
"""Returns a view of a tensor with its samples in the first dimension."""


def layouts_of(value: Value, count: int) -> list[Layout]:
    """Return each way in which a tensor may hold samples: in one dimension, or together with positions in the first."""
    op, shape = value.op, value.shape
    if shape and shape[0] != count and shape[0] % count == 0:
        order = _order_in(value, count)
        if order:
            return [functools.partial(_cut, count, order)]
    axes = [axis for axis, size in enumerate(shape) if size == count]
    data = [] if op is None else [part for part in op.inputs if part.of_batch and not part.of_parameters]
    # What a layer makes of the batch has the samples where the batch has them.
    if op is not None and (op.name == "batch_norm" or (data and data[0].shape[:1] == (count,))):
        axes = axes if 0 not in axes else [0]
    return [functools.partial(torch.movedim, source=axis, destination=0) for axis in axes]


def _cut(count: int, order: str, one: Tensor) -> Tensor:
    cut = one.reshape(count, -1, *one.shape[1:]) if order == "samples" else one.reshape(-1, count, *one.shape[1:])
    return cut if order == "samples" else cut.transpose(0, 1)


def _order_in(value: Value, count: int) -> str:
    """Return what comes first where samples and positions share the first dimension: "" if no reshape tells."""
    number = value.shape[0]
    while value.op is not None:
        sizes = value.op.inputs[0].shape[:2] if value.op.inputs else ()
        if value.op.name in ("flatten", "view", "reshape") and number not in sizes and math.prod(sizes) == number:
            is_first, is_second = (size == count for size in sizes)
            if is_first is is_second:
                return ""
            return "samples" if is_first else "positions"
        before = [source for source in value.op.inputs if source.of_batch and source.shape[:1] == (number,)]
        if not before:
            break
        value = before[0]
    return ""


def _is_cut_anew(value: Value, count: int) -> bool:
    """Return True if a view has put the batch into another dimension without moving elements."""
    shape = value.op.inputs[0].shape if value.op is not None and len(value.op.inputs) == 1 else ()
    if value.op is None or value.op.name not in ("view", "reshape") or shape[:1] != (count,):
        return False
    return count in value.shape[1:] and value.shape[0] not in itertools.accumulate(shape, operator.mul)


def _mixes(graph: PartialGraph, end: Value, starts: Sequence[Value], count: int) -> bool:
    """Return True if a sample of a tensor depends on several samples of one of those that it was computed from."""
    layouts = layouts_of(end, count)
    for layout in layouts:
        weights = torch.zeros(end.shape)
        one = layout(weights)[count // 2]  # what runs over samples sees some before it, or some behind it
        one.copy_(torch.arange(1.0, 1 + one.numel()).sin().reshape(one.shape))
        gradients = zip(starts, graph.gradients(end, weights, starts), strict=True)
        if not any(one is not None and _is_of_several(one, layouts_of(start, count)) for start, one in gradients):
            return False
    return bool(layouts)


def _is_of_several(gradient: Tensor, layouts: Sequence[Layout]) -> bool:
    """Return True if a gradient is of several samples in each layout that the tensor may have."""
    sizes = [layout(gradient).flatten(1).abs().amax(1).float().nan_to_num(0.0) for layout in layouts]
    return bool(sizes) and all(int((shares > ROUNDING * shares.amax()).sum()) > 1 for shares in sizes)


def _mixing_on_data(firsts: Sequence[Value], count: int) -> Op | None:
    """Return the call that mixes samples of the batch where no gradient is: a view, or a recurrent layer over them."""
    for first in firsts:
        op = first.op
        value = op.inputs[0] if op is not None and op.inputs else first
        if op is None or value.of_parameters:
            continue
        # The last argument of these is `batch_first`.
        runs_over_first = op.name in RECURRENT and len(value.shape) == 3 and not [*op.arguments.values()][-1]
        if runs_over_first and value.shape[0] == count != value.shape[1]:
            return op
        while value.op is not None and value.op.inputs:
            if count in value.shape and _is_cut_anew(value, count):
                return value.op
            value = value.op.inputs[0]
    return None


def _has_samples(first: Value, count: int) -> bool:
    """Return False if what a call takes of the batch cannot have so many samples."""
    data = [] if first.op is None else [one for one in first.op.inputs if one.of_batch and not one.of_parameters]
    return not data or any(count in one.shape[:2] or bool(_order_in(one, count)) for one in data)


def _is_guilty(graph: PartialGraph, op: Op, count: int) -> bool:
    of_batch = [value for value in op.inputs if value.of_batch and graph.has(value)]
    return bool(of_batch) and any(graph.has(value) and _mixes(graph, value, of_batch, count) for value in op.results)


def _taken_by(op: Op) -> list[Value]:
    return [value for value in op.inputs if value.of_batch and value.requires_grad] or op.inputs[:1]


def _is_meant(op: Op, count: int) -> bool:
    """Return True if a call shows that it mixes samples on purpose."""
    result, from_batch = op.results[0], _taken_by(op)
    number, first = result.shape.count(count), from_batch[0].shape
    others = [one for one in op.inputs if one not in from_batch and one.parameter is None and not one.requires_grad]
    is_adjacency = any(len(one.shape) > 1 and one.shape[-1] == one.shape[-2] for one in others)
    is_adjacency |= any(len(one.origin.shape) == 2 == one.origin.shape[0] for one in others)  # pairs of nodes
    is_one = math.prod(result.shape) == count or (len(first) == 3 and 1 in first[:2])  # one list, or one sequence
    # Of the whole batch.
    is_whole = any(not layouts_of(one, count) for one in from_batch) or number < first.count(count)
    is_pairs = number > max(1, first.count(count)) or result.shape == (count,) * 2
    is_target = any(one.path is not None for one in others)
    return len(set(from_batch)) > 1 or is_pairs or is_target or is_whole or is_adjacency or is_one


def _finding(op: Op, first: Value, result: Value, *, may_be_meant: bool) -> Finding:
    shape, count = list(first.shape), first.shape[0]
    if op.name in ("view", "reshape") and count in result.shape:
        is_clear = len(result.shape) == len(shape) == len(set(shape))
        order = ", ".join(str(shape.index(size)) for size in result.shape) if is_clear else "..."
        is_exchange = list(result.shape) == [shape[1], count, *shape[2:]]
        moved = (
            f"reshapes {shape} to {list(result.shape)} without moving elements: dimension {result.shape.index(count)} "
            "is then as long as the batch, but each index along it mixes several samples"
        )
        advice = f"use {'transpose(0, 1)' if is_exchange else f'permute({order})'} in place of the {op.name}"
    else:
        moved = f"mixes samples of its input of shape {shape}: the output of one sample depends on other samples"
        advice = f"pass the dimensions in the order {op.name} expects, so that samples do not mix"
        if op.name in ("softmax", "log_softmax"):
            advice = f"use dim={1 if len(shape) == 2 else -1}"
        elif op.name in RECURRENT | {"multi_head_attention_forward"}:
            advice = "set batch_first=True"
    return Finding(
        op.place.module,
        f"{op.name} {op.place} {moved}",
        advice,
        "note" if may_be_meant else "alarm",
        rule="batch_mixing",
    )


def no_influence(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a cross entropy of one class, a softmax over one number, and numbers divided by themselves."""
    for call in losses_of(done):
        if call.op.name == "cross_entropy" and call.values.dim() > 1 and call.values.shape[1] == 1:
            yield Finding(
                call.op.place.module,
                f"cross_entropy {call.op.place} gets a single class: its loss is 0 regardless of the model's output",
                "give the model one output per class, or use binary_cross_entropy_with_logits",
                "alarm",
            )
    for call, op, shape, dim in last_softmaxes(done):
        if shape[dim] == 1:
            is_share = bool(((call.wanted >= 0) & (call.wanted <= 1)).all())
            yield Finding(
                op.place.module,
                f"{op.name} {op.place} runs over a dimension of size 1 (input shape {list(shape)}): its output is "
                f"{'1' if op.name == 'softmax' else '0'} regardless of the input",
                "use sigmoid for one output, or give the model one output per class"
                if is_share or call.op.name not in REGRESSION | {"sub", "rsub"}
                else f"remove the {op.name}: the targets are {in_numbers(call.wanted)}",
                "alarm",
            )
    for division in (value.op for value in done.loss.ancestors()):
        if division is None or division.name not in ("div", "truediv", "divide") or len(division.inputs) < 2:
            continue
        divided, divisor = division.inputs[:2]
        if divided.of_parameters and _is_own_sum(divisor, divided):
            yield Finding(
                division.place.module,
                f"{division.place}, each number of a tensor of shape {list(divided.shape)} is divided by itself, as "
                "the sum in the divisor runs over a dimension of size 1: the result is 1 regardless of the input",
                "divide only where the sum has several terms, as with several selected experts",
                "alarm",
            )


NO_INFLUENCE = Rule("no_influence", no_influence, of="step", gives="alarm")


SMALL = 1e-5
"""What is added to a divisor, or is its least, to keep it from 0 is no larger (a choice); 1 + x is another function."""


def _is_own_sum(divisor: Value, value: Value) -> bool:
    """Return True if a divisor is a sum over a single number of a value, perhaps with something small added."""
    while (op := divisor.op) is not None and op.name in ("add", "radd", "clamp", "clamp_min", "to"):
        numbers = [argument for argument in op.arguments.values() if isinstance(argument, int | float)]
        if len(op.inputs) != 1 or any(abs(argument) > SMALL for argument in numbers):
            return False
        divisor = op.inputs[0]
    is_sum = divisor.op is not None and divisor.op.name == "sum" and divisor.op.inputs[:1] == [value]
    return is_sum and math.prod(divisor.shape) == math.prod(value.shape)


WEIGHING = ("linear", "matmul", "mm", "conv1d", "conv2d", "conv3d", "lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions whose first argument is weighed by parameters."""


class DataInput(NamedTuple):
    """The first argument of a function with parameters, if it comes from data alone."""

    op: Op
    value: Value
    tensor: Tensor  # the argument, detached; of a DTensor what this rank has


def note_input(op: Op, tensors: Mapping[str, Tensor], results: Sequence[Tensor]) -> DataInput | None:
    """Return the first argument of the call if it is floating-point and no parameter had a part in it; else None."""
    name = next(iter(tensors), "")
    value = op.arguments.get(name)
    if not isinstance(value, Value) or value.of_parameters or not tensors[name].is_floating_point():
        return None
    return DataInput(op, value, local(tensors[name].detach()))


_NORMS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"})


def taken_by_weights(done: TracedStep) -> dict[str, float]:
    """Map each tensor of the batch, by path, to the RMS with which weights take it, unless they take it as it is."""
    sizes, unknown, codes = dict[str, list[float]](), set[str](), set[str]()
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
                unknown |= paths
            else:
                if paths and value not in rms:  # a mask meets each layer
                    is_it = isinstance(op.seen, DataInput) and op.seen.value is value
                    rms[value] = _rms_of(op.seen if is_it else None)
                for path in paths:
                    sizes.setdefault(path, []).append(rms[value])
    # Of several the one farthest from 1; 1 if no weights take it, or an embedding does, as codes.
    taken = {path: max(each, key=lambda size: abs(math.log(size))) for path, each in sizes.items() if min(each) > 0}
    known = dict.fromkeys(done.step.float_paths - sizes.keys(), 1.0) if sizes or unknown else {}
    known = {path: size for path, size in (known | taken).items() if path not in unknown}
    return known | dict.fromkeys(codes, 1.0)


def _rms_of(data: object) -> float:
    """Return the RMS of what a call takes of the batch; 1 if it is not known, 0 if it is not finite."""
    if not isinstance(data, DataInput) or not data.tensor.numel():
        return 1.0
    numbers = data.tensor.double()
    return float(numbers.square().mean().sqrt()) if bool(numbers.isfinite().all()) else 0.0
