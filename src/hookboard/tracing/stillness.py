"""On which parameters a loss depends, with a gradient or without: what decides about a gradient that does not come."""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from hookboard.base.ranks import local
from hookboard.base.torch_private import has_memory
from hookboard.tracing.calls import CREATING, Op, Value, loss_part
from hookboard.tracing.graph import PartialGraph
from hookboard.tracing.ledger import MULTIPLYING, terms_of
from hookboard.tracing.rules import LOSSES, TracedStep, losses_of
from hookboard.tracing.scaling import mean_behind, picks_log_probabilities

_TIMES_WEIGHTS = MULTIPLYING | {"linear", "matmul", "bmm", "mm", "rmatmul", "conv1d", "conv2d", "conv3d"}

_CHOOSING = frozenset({"getitem", "gather", "index_select", "take_along_dim", "masked_select", "where", "index_add"})
"""Functions that may take some numbers of a tensor and leave others."""

_LIKE = frozenset({"type_as", "view_as", "reshape_as", "expand_as", "to"})
"""Functions that take nothing but shape, dtype and device from their second tensor."""


def _moved_by(op: Op, parameters: Mapping[str, Tensor], graph: PartialGraph) -> Sequence[Value]:
    """Return the tensors on which the result of a call depends, among those that it takes.

    Left out is what gives only a shape or dtype, and what is multiplied by 0 or by weights of 0.
    """
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
    factors = [weight] if isinstance(weight, Value) else op.inputs[:2] if op.name in _TIMES_WEIGHTS else []
    weights = [(one, parameters.get(one.parameter or "")) for one in factors]
    return [one for one, held in weights if _is_zero(held)] or op.inputs


def _is_zero(tensor: Tensor | None) -> bool:
    """Return True if a tensor is there, can be read and is all 0."""
    return tensor is not None and has_memory(held := local(tensor.detach())) and not bool(held.any())


def weights_behind(
    value: Value,
    parameters: Mapping[str, Tensor],
    graph: PartialGraph,
    but: Collection[Value] = (),
    *,
    beyond_choices: bool = True,
) -> set[str]:
    """Return the names of the parameters on which a value depends.

    Args:
        value: the value.
        parameters: the parameters by name.
        graph: the graph of the step.
        but: values that are not looked behind.
        beyond_choices: whether to look behind calls that pick some numbers of a tensor, such as `gather`: the others,
            as those of an expert without tokens, have no influence.
    """
    found, seen, waiting = set[str](), set(but), [value]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            found |= {one.parameter} if one.op is None and one.parameter is not None else set()
            is_choice = one.op is not None and one.op.name in _CHOOSING and len(one.op.inputs) > 1
            if one.op is not None and (beyond_choices or not is_choice):
                waiting += _moved_by(one.op, parameters, graph)
    return found


def still_terms(loss: Value, parameters: Mapping[str, Tensor], graph: PartialGraph) -> set[Value]:
    """Return the terms that take parameters without a gradient, and do not depend on them, as far as can be told.

    A term of just 0 or 1, such as the share of outputs that are finite, may be the same in every step.
    """
    terms = (term for term in terms_of(loss) if not term.requires_grad and term.of_parameters)
    return {term for term in terms if _is_constant(term) or not weights_behind(term, parameters, graph)}


def _is_constant(term: Value) -> bool:
    return term.scalar is not None and term.scalar.item() in (0, 1)


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
    given = [op.inputs[0] for op in behind if op.name in ("cross_entropy", "nll_loss")]
    return next((one.shape[:2][-1] for one in [*given, *picked] if one.requires_grad and one.shape), 0)


def has_moving_target(done: TracedStep) -> bool:
    """Return True if the model computes what it is compared with, without a gradient."""
    return any(call.target.of_parameters and not call.target.requires_grad for call in losses_of(done))
