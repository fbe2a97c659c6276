"""`Ledger`: what becomes of the gradient of each term of a loss, and on which parameters a term depends without one."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hookboard.base.ranks import local
from hookboard.base.torch_private import can_be_read, has_memory, parameters_in
from hookboard.health.rule import Finding
from hookboard.tracing.calls import CREATING, Op, PartialGraph, Place, Value, loss_part
from hookboard.tracing.loss_rules import LOSSES, TracedStep, losses_of
from hookboard.tracing.scaling import mean_behind, picks_log_probabilities

_JOINING = frozenset({"add", "radd", "iadd", "sub", "rsub", "isub", "mean", "sum", "neg", "stack"})
MULTIPLYING = frozenset({"mul", "rmul", "imul", "div", "truediv", "itruediv"})


def joining(loss: Value) -> Iterator[Op]:
    """Yield the calls that add up single numbers to the loss."""
    for value in _sums(loss):
        if value.op is not None and value.op.name in _JOINING:
            yield value.op


def terms_of(loss: Value) -> list[Value]:
    """Return the single numbers that the loss is a sum of, whatever they are multiplied by, unless that is 0."""
    found = [value for value in _sums(loss) if not _parts(value) and not _is_nothing(value)]
    return list({kind_of(value): value for value in reversed(found)}.values())  # of a loop, the last in the sum


def kind_of(term: Value) -> object:
    """Return what terms have in common that a line makes of the outputs of the same layers, as in a loop."""
    if term.op is None:
        return term
    names, seen, waiting = set[str](), set[Op](), [term.op]
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        own = {argument.parameter for argument in op.inputs if argument.parameter is not None}
        names |= own
        waiting += [] if own else [argument.op for argument in op.inputs if argument.op is not None]
    return term.op.name, term.op.place, term.requires_grad, frozenset(names)


def _sums(loss: Value) -> Iterator[Value]:
    waiting, seen = [loss], set[Value]()
    while waiting:
        value = waiting.pop()
        if value not in seen:
            seen.add(value)
            yield value
            waiting.extend(_parts(value))


def _is_nothing(value: Value) -> bool:
    """Return True for 0 times something, as where a library wants a loss that needs a gradient."""
    op = value.op
    return (
        op is not None
        and op.name in MULTIPLYING
        and any(argument == 0 for argument in op.arguments.values() if isinstance(argument, int | float))
    )


def _parts(value: Value) -> list[Value]:
    """Return the single numbers whose sum a value is a multiple of; [] if it is no such sum."""
    op = value.op
    if op is None or op.name not in _JOINING | MULTIPLYING or _is_nothing(value):
        return []
    is_sum = op.name in _JOINING or len(op.inputs) == 1  # of one, times a plain number
    parts = op.inputs if is_sum else [given for given in op.inputs if given.requires_grad]
    stack = op.inputs[0].op if op.name in ("mean", "sum") else None
    if stack is not None and stack.name in ("stack", "cat"):
        parts = stack.inputs
    return parts if all(math.prod(given.shape) == 1 for given in parts) else []


def trained_by(value: Value) -> set[str] | None:
    """Return the parameters that a gradient of this value reaches; None if it also passes what no known call made."""
    names, seen, waiting = set[str](), set[Value](), [value]
    while waiting:
        current = waiting.pop()
        if current in seen or not current.requires_grad:
            continue
        seen.add(current)
        if current.parameter is not None:
            names.add(current.parameter)
        elif current.op is None and current.path is None:
            return None  # as from compiled code
        if current.op is not None:
            waiting.extend(current.op.inputs)
    return names


def _is_leaf(value: Value) -> bool:
    """Return True if a value has a gradient, but nothing that it was computed from."""
    before = () if value.op is None else value.op.inputs
    return value.requires_grad and not any(part.requires_grad for part in before)


def any_not_zero(gradients: Iterable[Tensor | None]) -> bool:
    """Return True if a gradient has an element other than 0, or cannot be read; None is no gradient."""
    shards = (local(one) for one in gradients if one is not None)
    return any(not can_be_read(one) or bool(one.any()) for one in shards)


class Ledger:
    """Notes for each term whether its gradient is used, by an optimizer's step or by reading it, or thrown away."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters: Mapping[str, nn.Parameter] = parameters_in(model)
        self._waiting: list[tuple[Place, set[str]]] = []
        self._passes: dict[Place, list[bool]] = {}  # of each term: whether each settled pass was used
        self._read = 0
        self.stepped: set[str] | None = None  # parameters that had a gradient when an optimizer stepped; None before
        self.is_in_closure = False  # whether an optimizer calls one, as often as it likes: it uses each gradient

    def before_backward(self, loss: Value, ops: Sequence[Op]) -> None:
        """Note the terms of a loss whose backward pass comes next."""
        self.settle(ops)
        kept = {one for op in ops if op.name == "retain_grad" for one in op.inputs}
        for term in terms_of(loss) if not self.is_in_closure else ():
            if any(one in kept or _is_leaf(one) for one in term.ancestors() if one.parameter is None):
                continue  # it gives another tensor a gradient too, such as an input: that may be all it is for
            if term.op is not None and term.op.place.file and (names := trained_by(term)):
                self._waiting.append((term.op.place, names))

    def after_backward(self) -> None:
        """Leave out terms whose gradient is 0, or gone when the backward pass ends: a hook used it, to step at once."""
        self._waiting = [entry for entry in self._waiting if self._is_there(entry[1])]

    def _is_there(self, names: Collection[str]) -> bool:
        return any_not_zero(self._parameters[name].grad for name in names)

    def before_step(self, optimizer: Any, ops: Sequence[Op]) -> None:
        """Note that an optimizer steps."""
        self.settle(ops)
        ids = {id(one) for group in optimizer.param_groups for one in group["params"]}
        stepped = {name: one for name, one in self._parameters.items() if id(one) in ids}
        self.stepped = (self.stepped or set()) | {name for name, one in stepped.items() if any_not_zero([one.grad])}
        self._use(set(stepped))

    def settle(self, ops: Sequence[Op]) -> None:
        """Account for gradients that were read or thrown away since the last call."""
        came, self._read = ops[self._read :], len(ops)
        self._use({one.parameter for op in came if op.name == "grad" for one in op.inputs if one.parameter is not None})
        for place, names in self._waiting:
            if not self._is_there(names):  # all have lost theirs: it was thrown away
                self._passes.setdefault(place, []).append(False)
                names.clear()
        self._waiting = [one for one in self._waiting if one[1]]

    def _use(self, used: set[str]) -> None:
        for place, names in self._waiting:
            if names & used:
                self._passes.setdefault(place, []).append(True)
                names.clear()
        self._waiting = [one for one in self._waiting if one[1]]

    def findings(self) -> Iterator[Finding]:
        """Yield an alarm for the first term whose gradient was thrown away in most backward passes."""
        for place, were_used in self._passes.items():
            thrown = were_used.count(False)
            if thrown > len(were_used) / 2 and self.stepped is not None:  # else a dry run, or more batches to a step
                passes = f"in {thrown} of {len(were_used)} backward passes, " if len(were_used) > 1 else ""
                yield Finding(
                    place.module,
                    f"the loss term {place} trains nothing: {passes}its gradient is cleared before any optimizer steps",
                    "call zero_grad() before the backward pass or after step(), not between them, and step the "
                    "optimizer of these weights next",
                    "alarm",
                    rule="cut",
                )
                return


_TIMES_WEIGHTS = MULTIPLYING | {"linear", "matmul", "bmm", "mm", "rmatmul", "conv1d", "conv2d", "conv3d"}

_CHOOSING = frozenset({"getitem", "gather", "index_select", "take_along_dim", "masked_select", "where", "index_add"})
"""Functions that may take some numbers of a tensor and leave others."""

_LIKE = frozenset({"type_as", "view_as", "reshape_as", "expand_as", "to"})
"""Functions that take nothing but shape, dtype and device from their second tensor."""


def _moved_by(op: Op, parameters: Mapping[str, Tensor], graph: PartialGraph) -> Sequence[Value]:
    """Return the inputs on which a call's result depends, without those taken for their shape or multiplied by 0."""
    numbers = [one for one in op.arguments.values() if isinstance(one, int | float) and not isinstance(one, bool)]
    if op.name in CREATING or (op.name in MULTIPLYING and 0 in numbers):
        return ()
    if any(0 in one.shape for one in op.results):
        return ()
    is_product = op.name in MULTIPLYING and len(op.inputs) == 2 and graph.has(op.results[0])
    if is_product:  # with a mask, or with the shares of experts
        saved = graph.saved_by(op.results[0])
        zeros = [one for name, one in zip(("self", "other"), op.inputs, strict=True) if _is_zero(saved.get(name))]
        return zeros or op.inputs
    if op.name in _LIKE:
        return op.inputs[:1]
    weight = op.arguments.get("weight")
    factors: Sequence[Value] = ()
    if isinstance(weight, Value):
        factors = [weight]
    elif op.name in _TIMES_WEIGHTS:
        factors = op.inputs[:2]
    return [factor for factor in factors if _is_zero(parameters.get(factor.parameter or ""))] or op.inputs


def _is_zero(tensor: Tensor | None) -> bool:
    if tensor is None:
        return False
    shard = local(tensor.detach())
    return has_memory(shard) and not bool(shard.any())


def weights_behind(
    value: Value,
    parameters: Mapping[str, Tensor],
    graph: PartialGraph,
    but: Collection[Value] = (),
    *,
    beyond_choices: bool = True,
) -> set[str]:
    """Return the names of the parameters on which a value depends; what is behind the values `but` does not count."""
    found, seen, waiting = set[str](), set(but), [value]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            found |= {current.parameter} if current.op is None and current.parameter is not None else set()
            # What `gather` and others leave, as the numbers of an expert without tokens, has no influence.
            is_choice = current.op is not None and current.op.name in _CHOOSING and len(current.op.inputs) > 1
            if current.op is not None and (beyond_choices or not is_choice):
                waiting += _moved_by(current.op, parameters, graph)
    return found


def still_terms(loss: Value, parameters: Mapping[str, Tensor], graph: PartialGraph) -> set[Value]:
    """Return the terms that take parameters without a gradient, and do not depend on them, as far as can be told."""
    terms = (term for term in terms_of(loss) if not term.requires_grad and term.of_parameters)
    return {term for term in terms if _is_constant(term) or not weights_behind(term, parameters, graph)}


def _is_constant(term: Value) -> bool:
    return term.scalar is not None and term.scalar.item() in (0, 1)  # such as the share of finite outputs


def targets_of(loss: Value) -> set[Value]:
    """Return what the loss compares with outputs that need a gradient: this is to have none, as that of a critic."""
    names = LOSSES | {"sub", "rsub"}
    comparing = [op for op in loss_part(loss) if op.name in names and op.results[0].requires_grad]
    return {value for op in comparing for value in op.inputs if not value.requires_grad}


def classes_of(done: TracedStep) -> int:
    """Return of how many classes the loss takes the log-probability of one; 0 if it is another loss."""
    scaled = mean_behind(done.loss)
    picked = [] if scaled is None or not picks_log_probabilities(scaled.op) else [scaled.op.inputs[0].origin]
    behind = [value.op for value in done.loss.ancestors() if value.op is not None]
    scores = [op.inputs[0] for op in behind if op.name in ("cross_entropy", "nll_loss")]
    return next((part.shape[:2][-1] for part in [*scores, *picked] if part.requires_grad and part.shape), 0)


def has_moving_target(done: TracedStep) -> bool:
    """Return True if the model computes what its output is compared with, without a gradient."""
    return any(call.target.of_parameters and not call.target.requires_grad for call in losses_of(done))
