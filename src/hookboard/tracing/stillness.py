"""On which parameters a loss depends, with a gradient or without: what decides about a gradient that does not come."""

from collections.abc import Collection

from hookboard.tracing.calls import CREATING, Op, Value, loss_part
from hookboard.tracing.ledger import is_nothing, terms_of
from hookboard.tracing.rules import LOSSES, TracedStep, losses_of
from hookboard.tracing.scaling import mean_behind, picks_log_probabilities

_CHOOSING = frozenset({"getitem", "gather", "index_select", "take_along_dim", "masked_select", "where", "index_add"})
"""Functions that may take some numbers of a tensor and leave others."""

_LIKE = frozenset({"type_as", "view_as", "reshape_as", "expand_as", "to"})
"""Functions that take nothing but shape, dtype and device from their second tensor."""


def weights_behind(value: Value, but: Collection[Value] = (), *, beyond_choices: bool = True) -> set[str]:
    """Return the names of the parameters on which a value depends.

    Args:
        value: the value.
        but: values that are not looked behind.
        beyond_choices: whether to look behind calls that pick some numbers of a tensor, such as `gather`: the others,
            as those of an expert without tokens, have no influence.
    """
    found, seen, waiting = set[str](), set(but), [value]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        op = one.op
        if op is None:
            found |= set() if one.parameter is None else {one.parameter}
        elif op.name not in CREATING and not is_nothing(one) and (beyond_choices or not _is_choice(op)):
            waiting += op.inputs[:1] if op.name in _LIKE else op.inputs
    return found


def _is_choice(op: Op) -> bool:
    return op.name in _CHOOSING and len(op.inputs) > 1


def still_terms(loss: Value) -> set[Value]:
    """Return the terms that take parameters without a gradient, and do not depend on them, as far as can be told.

    A term of just 0 or 1, such as the share of outputs that are finite, may be the same in every step.
    """
    terms = (term for term in terms_of(loss) if not term.requires_grad and term.of_parameters)
    return {term for term in terms if _is_constant(term) or not weights_behind(term)}


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
