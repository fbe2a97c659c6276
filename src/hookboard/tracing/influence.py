"""Finds calls whose result is the same whatever they take."""

import math
from collections.abc import Iterator

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import Value
from hookboard.tracing.rules import REGRESSION, TracedStep, in_numbers, last_softmaxes, losses_of


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
"""What is added to a divisor, or is its least, so that it is not 0, is no larger (a choice); 1 + x is another function.
"""


def _is_own_sum(divisor: Value, value: Value) -> bool:
    """Return True if a divisor is a sum over a single number of a value, perhaps with something small added."""
    while (op := divisor.op) is not None and op.name in ("add", "radd", "clamp", "clamp_min", "to"):
        numbers = [one for one in op.arguments.values() if isinstance(one, int | float)]
        if len(op.inputs) != 1 or any(abs(one) > SMALL for one in numbers):
            return False
        divisor = op.inputs[0]
    is_sum = divisor.op is not None and divisor.op.name == "sum" and divisor.op.inputs[:1] == [value]
    return is_sum and math.prod(divisor.shape) == math.prod(value.shape)
