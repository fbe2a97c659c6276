"""Describes a `Fault` as a `Nonfinite` event, in sentences for the user."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from hookboard.first_nan.operation import Operation
from hookboard.first_nan.search import MODEL, Fault, ValueSummary
from hookboard.health import Loss, Nonfinite, Pass
from hookboard.messages import listed
from hookboard.nested import tensors_in

GROWN_ABOVE = 1e6
"""Above this, a value before the NaN or Inf shows that values grew until they overflowed."""

MAX_NAMED_ROWS = 5
"""Maximum number of batch rows that are named."""

_CHECK_CODE = "look for a division by 0, the logarithm or the root of 0, or an overflow there; add an epsilon or clamp"


def forward_event(
    fault: Fault,
    step: int,
    batch_idx: int,
    loss: float,
    *,
    batch: Any = None,
    last_loss: float = math.nan,
    was_changed: bool = False,
) -> Nonfinite:
    """Describe a loss that is not finite because of a module, of code between modules, or of the batch.

    Args:
        fault: where the NaN or Inf comes from.
        step: the optimizer step.
        batch_idx: the index of the batch.
        loss: the loss.
        batch: the batch, in which bad rows are looked up.
        last_loss: the loss of the previous step.
        was_changed: True if `training_step` changed the batch in place.
    """
    if fault.kind == "batch":
        return _batch_event(fault, step, batch_idx, loss, rows_in(batch), was_changed)
    given = _described(fault.before)
    if fault.is_in_step and not fault.near:
        evidence = (
            f"The loss of step {step}, batch {batch_idx}, is {loss}, and every module gave finite values ({given}): "
            "it was computed outside of any module, in training_step."
        )
    else:
        evidence = (
            f"{_subject(fault, 'before')} gave {_described(fault.after)} in the forward pass of step {step}, batch "
            f"{batch_idx}; the input was finite ({given})."
        )
    largest = max([last_loss, *(values.largest for values in fault.before)])
    if largest > GROWN_ABOVE:
        advice = f"Values had grown to {largest:.3g} before: lower the learning rate, warm it up, or clip gradients."
    else:
        advice = f"In {_code_of(fault)} {_CHECK_CODE}."
    return Nonfinite(fault.name, "forward", step, batch_idx, given, evidence, advice)


def with_operation(event: Nonfinite, operation: Operation | None) -> Nonfinite:
    """Return the event of the forward pass with the function call that made the NaN or Inf; unchanged for None."""
    if operation is None:
        return event
    why = f": {operation.why}" if operation.why else ""
    evidence = f"{event.evidence} The first value that is not finite came from {operation.where}{why}."
    # If values had grown, the learning rate is the cause, and its advice stays.
    is_known = operation.why and event.advice.endswith(f"{_CHECK_CODE}.")
    return replace(event, evidence=evidence, advice=operation.advice if is_known else event.advice)


def rows_in(batch: Any) -> str:
    """Name the rows of a batch that hold a NaN or Inf; "" if there are none.

    >>> rows_in([torch.zeros(2), torch.tensor([[0.0], [float("nan")]])])
    ' in row 1 of tensor 1'
    """
    found = []
    for path, tensor in tensors_in(batch):
        if tensor.layout is not torch.strided or tensor.is_nested or not tensor.dim():
            continue
        rows = (~torch.isfinite(tensor)).flatten(1).any(1) if tensor.dim() > 1 else ~torch.isfinite(tensor)
        bad = [str(row) for row in rows.nonzero().flatten().tolist()]
        if bad:
            which = f"{'row' if len(bad) == 1 else 'rows'} {listed(bad, MAX_NAMED_ROWS)}"
            found.append(f"{which} of tensor {path}" if path else which)
    return f" in {'; '.join(found)}" if found else ""


def _batch_event(fault: Fault, step: int, batch_idx: int, loss: float, rows: str, was_changed: bool) -> Nonfinite:
    """Describe a NaN or Inf in the batch; `rows` is what `rows_in` returns."""
    held = _described(fault.after) + rows
    met = "the loss takes it directly" if fault.is_in_step else f"{_quoted(fault.name)} is the first that takes it"
    evidence = f"The batch {batch_idx} of step {step} holds {held}; {met}, and the loss is {loss}."
    if was_changed:
        evidence += " training_step changes the batch in place: before, it may have been finite."
    advice = f"Look at the data of batch {batch_idx}: find and drop such samples, or fill what is missing."
    return Nonfinite(fault.name, "batch", step, batch_idx, held, evidence, advice)


def backward_event(fault: Fault, step: int, batch_idx: int, spoiled: Sequence[str]) -> Nonfinite:
    """Describe gradients that are not finite although the loss is.

    Args:
        fault: the call that they come from.
        step: the optimizer step.
        batch_idx: the index of the batch.
        spoiled: the names of the parameters whose gradients are not finite.
    """
    subject, given = _subject(fault, "after"), _described(fault.before)
    arrived = f"; what arrived at its output was finite ({given})" if given else ""
    gave = _described(fault.after) if fault.after else "gradients that are not finite"
    evidence = (
        f"{subject} passed back {gave} in the backward pass of step {step}, batch {batch_idx}, although the loss is "
        f"finite{arrived}; {len(spoiled)} parameters have gradients that are not finite."
    )
    advice = (
        f"In {_code_of(fault)} look for an operation whose derivative is infinite, such as the root or norm of 0, or "
        "for a NaN that torch.where hides; clamp before it."
    )
    return Nonfinite(fault.name, "backward", step, batch_idx, given, evidence, advice)


def parameter_event(fault: Fault, step: int, batch_idx: int, stepped: tuple[int, int, float] | None) -> Nonfinite:
    """Describe weights that were not finite before the forward pass, as an event of the last optimizer step.

    Before the first one, the event is that of the step in which they were found.

    Args:
        fault: which parameter it is.
        step: the step in which it was found.
        batch_idx: the index of its batch.
        stepped: step, batch index and loss of the last optimizer step, NaN for a loss that is not known; None before
            the first.
    """
    values = _described(fault.after)
    if stepped is None:
        evidence = f"The parameter {fault.near!r} holds {values} before the first optimizer step of this fit."
        advice = "Look at the initialization, and at the checkpoint that was loaded."
        return Nonfinite(fault.name, "start", step, batch_idx, "", evidence, advice, parameter=fault.near)
    at, its_batch, loss = stepped
    finite = f"; the loss of that step was finite ({loss:.3g})" if math.isfinite(loss) else ""
    where = f"The optimizer step of step {at}, batch {its_batch}"
    evidence = f"{where}, left {values} in the parameter {fault.near!r}{finite}."
    advice = (
        "Lower the learning rate, or clip gradients; look at the optimizer's eps and at the gradients of that step."
    )
    return Nonfinite(fault.name, "optimizer", at, its_batch, "", evidence, advice, parameter=fault.near)


def unlocated_event(
    is_backward: bool, step: int, batch_idx: int, why: str, spoiled: Sequence[str] = (), loss: float | None = None
) -> Nonfinite:
    """Describe a non-finite loss or gradient whose module could not be found.

    Args:
        is_backward: whether gradients are not finite, rather than the loss.
        step: the optimizer step.
        batch_idx: the index of the batch.
        why: completes the sentence "The module was not searched: ".
        spoiled: the parameters with non-finite gradients, in model order; the module of the last is the best guess.
        loss: the loss, if it is known; ignored for gradients.
    """
    module = spoiled[-1].rpartition(".")[0] if spoiled else ""
    if is_backward:
        evidence = f"Gradients of step {step}, batch {batch_idx}, are not finite"
        evidence += f", that of {spoiled[-1]!r} is the last in the model" if spoiled else ""
    else:
        evidence = f"The loss of step {step}, batch {batch_idx}, is {'not finite' if loss is None else loss}"
    evidence += f". The module was not searched: {why}."
    advice = "Train this batch once more with torch.autograd.set_detect_anomaly(True)."
    during: Pass = "backward" if is_backward else "forward"
    return Nonfinite(module, during, step, batch_idx, "", evidence, advice, is_located=False)


def late_event(losses: Iterable[Loss]) -> Nonfinite | None:
    """Describe the first loss that is not finite, which the host learns after the step; None if all are finite."""
    bad = next((loss for loss in losses if not math.isfinite(loss.value)), None)
    if bad is None:
        return None
    why = "losses are read at the next look; nonfinite='exact' finds it in the step itself"
    return unlocated_event(False, bad.step, bad.batch_idx, why, loss=bad.value)


def _quoted(name: str) -> str:
    """Return the name of a module in quotes, or MODEL for the model."""
    return MODEL if name in ("", MODEL) else repr(name)


def _code_of(fault: Fault) -> str:
    """Return the name of the function that has the faulty code: "training_step" or "the forward of 'net.1'"."""
    return "training_step" if fault.is_in_step else f"the forward of {_quoted(fault.name)}"


def _subject(fault: Fault, side: str) -> str:
    """Return the subject of a sentence: the module, or the code that stands before or after the module `near`.

    Args:
        fault: the fault.
        side: `before` or `after`.
    """
    if fault.kind == "module":
        return _quoted(fault.name)[:1].upper() + _quoted(fault.name)[1:]
    near = f", {side} {_quoted(fault.near)}" if fault.near else ""
    outside = "Code outside of any module, in training_step" if fault.is_in_step else ""
    return f"{outside or f'Code in the forward of {_quoted(fault.name)}, outside of the modules in it'}{near},"


def _described(group: Sequence[ValueSummary]) -> str:
    """Describe the values of all these tensors: "3 NaN in 128 values", "96 values up to 2.5", or "" for no tensor."""
    if not group:
        return ""
    nan, inf, count = (sum(getattr(values, name) for values in group) for name in ("nan", "inf", "count"))
    bad = " and ".join(f"{number} {kind}" for number, kind in ((nan, "NaN"), (inf, "Inf")) if number)
    if bad:
        return f"{bad} in {count} values"
    return f"{count} values up to {max(values.largest for values in group):.3g}"
