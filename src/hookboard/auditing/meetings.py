"""Where the outputs of a model meet their targets in the loss."""

from typing import NamedTuple

from torch import Tensor

from hookboard.auditing.calls import Op, Value, loss_part
from hookboard.auditing.rules import TracedStep
from hookboard.auditing.tape import CannotReplayError

ROUNDING = 1e-5
"""What moves by less than this share of the largest move does not move (a choice): kernels round, and finite masks such
as -10000 leave a little."""


class Meeting(NamedTuple):
    """A call of the loss that takes an output and a target.

    Args:
        op: the call.
        output: what it takes that needs a gradient.
        target: what it takes that was computed from the batch alone.
    """

    op: Op
    output: Value
    target: Value


def meetings_of(done: TracedStep) -> list[Meeting]:
    """Return where outputs meet targets in the loss, the last call first."""
    found = []
    for op in loss_part(done.loss):
        outputs = [one for one in op.inputs if one.requires_grad and one.of_batch]
        targets = [one for one in op.inputs if one.of_batch and not one.of_parameters]
        if outputs and targets:
            found.append(Meeting(op, outputs[0], targets[0]))
    return found


def tensor_of(done: TracedStep, value: Value) -> Tensor:
    """Return a tensor of the batch; CannotReplayError if it is gone."""
    tensor = done.step.given.get(value, value.tensor())
    if tensor is None:
        raise CannotReplayError("a tensor is gone")
    return tensor.detach()
