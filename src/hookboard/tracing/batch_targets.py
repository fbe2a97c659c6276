"""Tells which tensors of a batch are targets: the loss depends on them, and no layer takes them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from hookboard.tracing.calls import Value
from hookboard.tracing.program import StepTrace

OF_CLASSES = frozenset({"cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"})
"""Functions of `torch.nn.functional` whose targets are classes."""


class Targets(NamedTuple):
    """The targets in a batch, by their paths, see `tensors_in`.

    Args:
        paths: the paths of all targets; empty if none are known.
        classes: the paths of those targets that a loss function of classes takes, see `OF_CLASSES`.
    """

    paths: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


def targets_in(model: nn.Module, batch: Any, step: Callable[[Any], Tensor]) -> Targets:
    """Run a step and return the targets of its batch.

    These are the tensors that reach the loss, but no function that takes a parameter of the model. If no tensor of the
    batch reaches such a function, none counts as a target.
    """
    trace = StepTrace(model, batch, {}, at_backward=lambda loss: False)
    try:
        with trace.recording():
            loss = step(batch)
        return _targets(trace, trace.value_of(loss))
    finally:
        trace.forget()


def _targets(trace: StepTrace, loss: Value) -> Targets:
    taken, behind = set[str](), dict[int, set[str]]()

    def paths_to(value: Value) -> set[str]:
        if value.op is not None:
            return behind.get(id(value.op), set())
        return set() if value.path is None else {value.path}

    for op in trace.ops:
        behind[id(op)] = set[str]().union(*map(paths_to, op.inputs))
        if any(value.parameter is not None for value in op.inputs):
            taken |= behind[id(op)]
    paths = paths_to(loss) - taken
    compared = [op.arguments.get("target") for op in trace.ops if op.name in OF_CLASSES]
    classes = {value.origin.path for value in compared if isinstance(value, Value)}
    return Targets(tuple(sorted(paths)), tuple(sorted(paths & classes))) if taken else Targets()
