"""Which parameters move a loss, by value: what decides about a gradient that does not come."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from hookboard.tracing.calls import Value, loss_part
from hookboard.tracing.ledger import terms_of
from hookboard.tracing.program import StepTrace
from hookboard.tracing.rules import LOSSES, TracedStep, losses_of
from hookboard.tracing.scaling import mean_behind, picks_log_probabilities
from hookboard.tracing.tape import SECONDS, UNANSWERED, copy_of, moves


def _other(tensor: Tensor) -> Tensor:
    """Return clearly different numbers of the same kind, without random numbers."""
    flat = tensor.detach().flatten().roll(1)
    size = flat.abs().mean() if flat.numel() else flat.sum()
    size = torch.where(size > 0, size, torch.ones_like(size))
    sign = torch.ones_like(flat)
    sign[::2] = -1
    changed = (flat + 0.5 * size * sign).reshape(tensor.shape).to(tensor.dtype)
    return changed.requires_grad_(tensor.requires_grad)


def _is_moved_by(step: StepTrace, end: Value, values: Iterable[Value]) -> bool:
    """Return whether a value moves when others change; True if that cannot be told."""
    if step.replayed > SECONDS:
        return True
    try:
        other = {value: _other(copy_of(step, value)) for value in values}
    except UNANSWERED:
        return True
    return moves(step, end, other) is not False


def _weights(value: Value, but: Collection[Value] = ()) -> dict[str, Value]:
    """Return the parameters that a value was computed from, by name; not those behind some values."""
    behind = value.ancestors(lambda one: one not in but)
    return {one.parameter: one for one in behind if one.op is None and one.parameter is not None}


def still_terms(step: StepTrace, loss: Value) -> set[Value]:
    """Return the terms that take parameters without a gradient, and do not move when these change."""
    terms = (term for term in terms_of(loss) if not term.requires_grad and term.of_parameters)
    return {term for term in terms if not _is_moved_by(step, term, _weights(term).values())}


def targets_of(loss: Value) -> set[Value]:
    """Return what the loss compares with outputs that need a gradient: this is to have none, as that of a critic."""
    names = LOSSES | {"sub", "rsub"}
    comparing = [op for op in loss_part(loss) if op.name in names and op.results[0].requires_grad]
    return {value for op in comparing for value in op.inputs if not value.requires_grad}


def moving_among(step: StepTrace, loss: Value, names: Collection[str]) -> set[str]:
    """Return those of the named parameters that move the loss when they change, or of which that cannot be told.

    Not those that move it only through its targets, as those of a teacher do.
    """
    behind = {name: value for name, value in _weights(loss, targets_of(loss)).items() if name in names}
    if not behind or not _is_moved_by(step, loss, behind.values()):
        return set()
    return {name for name, value in behind.items() if _is_moved_by(step, loss, [value])}


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
