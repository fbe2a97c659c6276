"""The calls of modules in one call of a model, as a tree, and what is known of the values in them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from hookboard.hooks import Edges
from hookboard.measure import Moments, measure, plan
from hookboard.nested import tensors_in
from hookboard.ranks import local

Kind = Literal["module", "between", "batch", "parameter"]

_PLAN = plan("nan_count")


@dataclass(frozen=True, slots=True)
class Values:
    """What is said of the values of one tensor.

    Args:
        count: how many there are.
        nan: how many are NaN.
        inf: how many are infinite.
        largest: the largest absolute value of the finite ones; 0 if there is none.
        is_mask: whether the only non-finite values are -Inf, and no gradient flows, as in an attention mask.
    """

    count: int
    nan: int
    inf: int
    largest: float
    is_mask: bool = False

    @property
    def is_finite(self) -> bool:
        """Whether all values are finite."""
        return not (self.nan or self.inf)


def values_of(tensor: Tensor) -> Values:
    """Look at a tensor. One whose values cannot be read counts as empty. This waits for the device."""
    try:
        row = measure(local(tensor.detach()), _PLAN)
    except (TypeError, RuntimeError):
        return Values(0, 0, 0, 0.0)
    found = Moments(*(row.tolist() if isinstance(row, Tensor) else row))
    largest = max(abs(found.min), abs(found.max)) if found.count else 0.0
    is_mask = bool(found.neginf) and not (found.nan or found.posinf or tensor.requires_grad)
    inf = int(found.posinf + found.neginf)
    return Values(int(found.count + found.nonfinite), int(found.nan), inf, largest, is_mask)


def floats_in(value: object) -> list[Tensor]:
    """The floating-point and complex tensors in a structure."""
    return [tensor for _, tensor in tensors_in(value) if tensor.is_floating_point() or tensor.is_complex()]


@dataclass(eq=False)
class Call:
    """One call of a module while it is searched.

    Args:
        name: the dotted name of the module; "" for the model itself, and for the step around all calls.
        module: the module.
        parent: the call that it runs in; None for the step.
        inputs: the values of its floating-point inputs.
        outputs: the values of its floating-point outputs.
        arrived: the gradients that arrived at its outputs, each with the number of its arrival.
        passed: the gradients that it passed back to its inputs, likewise.
        children: the calls that it made itself.
        taken: identifies the inputs that are not finite.
        is_clean: whether what it took is finite, masks aside.
    """

    name: str
    module: nn.Module
    parent: "Call | None" = None
    inputs: list[Values] = field(default_factory=list)
    outputs: list[Values] = field(default_factory=list)
    arrived: list[tuple[int, Values]] = field(default_factory=list)
    passed: list[tuple[int, Values]] = field(default_factory=list)
    children: list["Call"] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    is_clean: bool = True
    edges: Edges = field(default_factory=dict)
    since: int = 0

    def is_inside(self, other: "Call") -> bool:
        """Whether it runs in the other, or is the other."""
        return self is other or (self.parent is not None and self.parent.is_inside(other))

    @property
    def first_bad_gradient(self) -> int | None:
        """The number of the first gradient in it that is not finite; None if there is none."""
        own = [number for number, values in [*self.arrived, *self.passed] if not values.is_finite]
        inside = [number for child in self.children if (number := child.first_bad_gradient) is not None]
        return min([*own, *inside], default=None)


MODEL = "the model itself"
"""In place of a name that would be empty."""


@dataclass(frozen=True)
class Fault:
    """Where the first non-finite values come from.

    Args:
        kind: `module`: the module gives them itself. `between`: code in the forward of the module does, around the
            modules that it calls. `batch`: they came in with the batch, and the module takes them first. `parameter`:
            a parameter of the module holds them.
        name: the dotted name of the module.
        near: of `between`: the module that takes them first (MODEL: the model takes them itself), or, backward, the one
            that they arrive at first. Of `parameter`: the dotted name of the parameter.
        is_in_step: whether the code stands in `training_step`, outside of all modules.
        went_in: what the module took, or the loss; backward, the gradients that arrived at its outputs.
        came_out: what it gave; backward, the gradients that it passed on. Of `batch` and `parameter`: their values.
    """

    kind: Kind
    name: str
    near: str = ""
    is_in_step: bool = False
    went_in: tuple[Values, ...] = ()
    came_out: tuple[Values, ...] = ()


def backward_fault(step: Call, spoiled: Collection[str]) -> Fault:
    """Where the first non-finite gradient of a backward pass comes from.

    It is the innermost call at whose outputs only finite gradients arrived, and in which others appear. If no gradient
    of an activation is bad, it is the last module that gave its own parameters a bad one.

    Args:
        step: the step around all calls.
        spoiled: the names of the modules whose own parameters got a non-finite gradient.
    """
    if step.first_bad_gradient is None:
        last = next((call for call in _latest_first(step) if call.name in spoiled), step)
        return _fault_in(last, "module" if last is not step else "between", step)
    call = step
    while True:
        inside = [(number, c) for c in call.children if (number := _first_of_its_own(c)) is not None]
        if not inside:
            return _fault_in(call, "between" if call.children or call is step else "module", step)
        call = min(inside, key=lambda pair: pair[0])[1]


def _first_of_its_own(call: Call) -> int | None:
    """The number of the first bad gradient in a call that got none; None if it has none, or got one."""
    if not call.arrived or not all(values.is_finite for _, values in call.arrived):
        return None
    return call.first_bad_gradient


def _fault_in(call: Call, kind: Kind, step: Call) -> Fault:
    bad = [(number, child) for child in call.children if (number := child.first_bad_gradient) is not None]
    near = min(bad, key=lambda pair: pair[0])[1].name if bad else ""
    arrived, passed = (tuple(values for _, values in group) for group in (call.arrived, call.passed))
    return Fault(kind, call.name, near, call is step, arrived, tuple(v for v in passed if not v.is_finite))


def _latest_first(call: Call) -> list[Call]:
    found = [call]
    for child in call.children:
        found = [*_latest_first(child), *found]
    return found
