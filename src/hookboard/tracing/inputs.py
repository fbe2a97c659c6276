"""What enters the functions that weigh their input: how large the data are where no parameter had a part in them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from hookboard.base.ranks import local
from hookboard.tracing.calls import Op, Value, loss_part
from hookboard.tracing.rules import TracedStep

WEIGHING = ("linear", "matmul", "mm", "conv1d", "conv2d", "conv3d", "lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions whose first argument is weighed by parameters."""


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
