"""`adapters`: two factors whose product is added to a frozen weight, as in LoRA; which of them can learn nothing."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookboard.base.messages import listed
from hookboard.base.torch_private import parameters_in
from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import RESHAPES, Value
from hookboard.tracing.loss_rules import TracedStep
from hookboard.tracing.program import StepTrace


class Factor(NamedTuple):
    """A parameter that a call multiplies its input by."""

    name: str
    is_flipped: bool  # whether its first dimension is that of the inputs: the call computes `x @ weight`

    def of(self, whole: Tensor) -> Tensor:
        """Return a tensor of the parameter's shape as a matrix of shape (outputs, inputs)."""
        return whole.T if self.is_flipped else whole


class Adapter(NamedTuple):
    """Two factors through which a layer's input goes beside a frozen weight, as if `up @ down` were added to it."""

    weight: Factor
    down: Factor  # takes the input
    up: Factor  # takes the result of `down`
    biases: tuple[str, ...] = ()  # those that the calls with the factors add


def adapters_of(step: StepTrace) -> list[Adapter]:
    """Return each adapter that the calls of a step show, once."""
    found: dict[tuple[str, str, str], Adapter] = {}
    for op in step.ops:
        values = op.inputs if op.name in ("add", "radd", "iadd") else []
        for beside, adding in (values, values[::-1]) if len(values) == 2 else ():
            adapter = _between(beside, adding)
            if adapter is not None:
                found[adapter.weight.name, adapter.down.name, adapter.up.name] = adapter
    return list(found.values())


def _between(beside: Value, adding: Value) -> Adapter | None:
    """Return the adapter whose output is added to that of a frozen weight; None if the two are anything else."""
    multiplied = _scaled(adding)
    up, value = product_of(multiplied)
    passed = _scaled(value, drops=True)
    down, source = product_of(passed) if up else (None, value)
    if up is None or down is None:
        return None
    weight, reduced = product_of(beside)
    while weight is None and beside.op is not None and beside.op.name in ("add", "radd", "iadd"):  # other adapters
        beside = beside.op.inputs[0]
        weight, reduced = product_of(beside)
    start = _scaled(source, drops=True, until=reduced.origin)
    if weight is None or weight[1].requires_grad or start is not reduced.origin:
        return None
    shapes = [one[0].of(torch.empty(one[1].shape, device="meta")).shape for one in (weight, down, up)]
    if shapes[0] != (shapes[2][0], shapes[1][1]) or shapes[1][0] != shapes[2][1]:
        return None
    added = (one.parameter for made in (multiplied, passed) if made.op is not None for one in made.op.inputs)
    biases = tuple(name for name in added if name is not None and name not in (down[0].name, up[0].name))
    return Adapter(weight[0], down[0], up[0], biases)


def _scaled(value: Value, *, drops: bool = False, until: Value | None = None) -> Value:
    """Follow a value back through views, casts and factors, with `drops` also dropout."""
    value = value.origin
    while value is not until and (op := value.op) is not None and len(op.inputs) == 1:
        numbers = [argument for argument in op.arguments.values() if isinstance(argument, int | float)]
        is_scaling = op.name in ("mul", "rmul", "imul", "div", "truediv") and len(numbers) == 1 and numbers[0]
        if not is_scaling and not (drops and "dropout" in op.name):
            break
        value = op.inputs[0].origin
    return value


def product_of(value: Value) -> tuple[tuple[Factor, Value] | None, Value]:
    """Return the parameter of the matrix product that made a value, and the product's input; None if none made it."""
    op = value.origin.op
    if op is None or op.name not in ("linear", "matmul", "mm", "addmm"):
        return None, value
    if any(op.arguments.get(name, 1) != 1 for name in ("alpha", "beta")):
        return None, value
    source, factor = op.inputs[-2:] if op.name == "addmm" else op.inputs[:2]
    is_flipped = op.name != "linear"
    while factor.parameter is None and factor.op is not None and factor.op.name in RESHAPES and factor.op.inputs:
        is_flipped ^= factor.op.name in ("t", "T", "mT", "transpose")
        factor = factor.op.inputs[0]
    if factor.parameter is None or len(factor.shape) != 2:
        return None, value
    return (Factor(factor.parameter, is_flipped), factor), source


def adapters(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for adapters that cannot learn: each factor is frozen, or stands beside one that is 0."""
    found, frozen, zero = adapters_of(done.step), list[str](), list[str]()
    parameters, has_product = parameters_in(done.step.model), False
    for adapter in found:
        down, up = parameters[adapter.down.name], parameters[adapter.up.name]
        # The gradient of a factor is a multiple of the other factor; a bias may give another.
        pairs = (down, _is_zero(up)), (up, _is_zero(down))
        if not (down.requires_grad or up.requires_grad):
            frozen.append(adapter.down.name)
            has_product |= not any(is_zero for _, is_zero in pairs)
        elif all(is_zero or not factor.requires_grad for factor, is_zero in pairs) and not any(
            parameters[name].requires_grad or not _is_zero(parameters[name]) for name in adapter.biases
        ):
            zero.append(adapter.down.name)
    is_meant = has_product or len(frozen) < len(found)  # frozen after a training, or beside trained ones
    for names, why, advice, is_note in (
        (
            zero,
            "every trained factor is multiplied by an all-zero factor, so none gets a gradient",
            _START,
            False,
        ),
        (frozen, f"both factors are frozen{'' if has_product else ', and their product is 0'}", _TRAIN, is_meant),
    ):
        if names:
            yield Finding(
                names[0].rpartition(".")[0],
                f"{len(names)} of {len(found)} adapters (two factors next to a frozen weight) learn nothing: {why} "
                f"({listed(names, 3)})",
                f"{advice}; ignore this if it is intended" if is_note else advice,
                "note" if is_note else "alarm",
            )


def _is_zero(factor: nn.Parameter) -> bool:
    """Return True if all its numbers are 0; False if other ranks hold some of them."""
    return type(factor) is nn.Parameter and not bool(factor.any())


_START = "initialize one factor with random numbers and the other with zeros, and train both"
_TRAIN = "set requires_grad=True on both factors, as is_trainable=True does when peft loads a saved adapter"

ADAPTERS = Rule("adapters", adapters, of="step")
