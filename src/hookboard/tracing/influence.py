"""Finds calls whose result is the same whatever they take, or is not used."""

import ast
import functools
import linecache
import math
from collections.abc import Iterator
from contextlib import suppress

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import Value
from hookboard.tracing.handwritten import ARITHMETIC, calls_from
from hookboard.tracing.rules import REGRESSION, TracedStep, in_numbers, last_softmaxes, losses_of


def no_influence(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for a softmax or norm over one number, a cross entropy of one class, and an unused result."""
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
    if not any(shape[dim] == 1 for _, _, shape, dim in last_softmaxes(done)):
        yield from _over_one_number(done)
    yield from _results_dropped(done)


NO_INFLUENCE = Rule("no_influence", no_influence, of="step")


PURE = frozenset({"masked_fill", "masked_scatter", "relu", "gelu", "dropout", "softmax", "log_softmax", "sigmoid"})
PURE |= frozenset({"view", "reshape", "flatten", "permute", "transpose", "squeeze", "unsqueeze", "clamp", "detach"})
"""Functions that leave their input as it is: a call as a statement has no effect."""


def _over_one_number(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for a softmax over the one output of a linear layer, and for a layer norm of one feature."""
    of_loss = {id(op) for op in calls_from(done.loss, ARITHMETIC)}
    for value in done.loss.ancestors():
        op = value.op
        if op is None or not op.inputs or not op.inputs[0].of_parameters:
            continue
        before, dim = op.inputs[0], op.arguments.get("dim", op.arguments.get("1"))
        is_linear = before.op is not None and before.op.name == "linear" and before.shape[-1:] == (1,)
        if op.name in ("div", "truediv", "divide") and len(op.inputs) > 1 and _is_own_sum(op.inputs[1], before):
            yield Finding(
                op.place.module,
                f"{op.place}, each number of a tensor of shape {list(before.shape)} is divided by itself, because the "
                "sum in the divisor runs over a dimension of size 1: the result is 1 regardless of the input",
                "divide only where the sum has several terms, as with several selected experts",
                "alarm",
            )
        is_norm = op.name == "layer_norm" and math.prod(op.arguments.get("normalized_shape", (0,))) == 1
        is_softmax = op.name in ("softmax", "log_softmax") and is_linear and dim in (-1, len(before.shape) - 1)
        if is_softmax or is_norm:
            yield Finding(
                op.place.module,
                f"{op.name} {op.place} runs over a dimension of size 1 (input shape {list(before.shape)}): its output "
                "is the same regardless of the input",
                f"remove the {op.name}, or let it run over a longer dimension",
                "alarm" if is_norm or id(op) in of_loss else "note",  # one expert may be meant
            )


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


def _results_dropped(done: TracedStep) -> Iterator[Finding]:
    """Yield a note for a line such as `scores.masked_fill(mask, -1e9)`, whose result is not assigned."""
    calls = {(op.name, op.place): op for op in done.step.ops if op.name in PURE and op.place.file}
    for (name, place), op in calls.items():
        source = "".join(linecache.getlines(place.file))
        if not op.arguments.get("inplace") and place.line in _statements(source).get(name, ()):
            yield Finding(
                place.module,
                f"the result of {name} {place} is not used: {name} returns a new tensor and does not change its input",
                "assign the result, as in x = ...",
            )


@functools.lru_cache(16)
def _statements(source: str) -> dict[str, set[int]]:
    """Return the lines of the statements that are nothing but a call, by the name of what is called.

    The whole file is parsed: a line alone may be an element of a comprehension, whose result is used.
    """
    found = dict[str, set[int]]()
    with suppress(SyntaxError, ValueError):
        for statement in ast.walk(ast.parse(source)):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                function = statement.value.func
                lines = found.setdefault(getattr(function, "attr", getattr(function, "id", "")), set())
                lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found
