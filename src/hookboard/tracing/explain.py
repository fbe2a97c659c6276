"""Describes what gave the first NaN or Inf as a `Nonfinite` event, in sentences for the user."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookboard.base.messages import listed
from hookboard.base.ranks import local
from hookboard.health.look import Loss, WorstRows
from hookboard.health.rule import sentence
from hookboard.health.rules.numerics import Nonfinite, Pass
from hookboard.model.nested import tensors_in
from hookboard.tracing.bad_operation import SOFTMAXES, BadOperation

GROWN_ABOVE = 1e6
"""Above this, a value before the NaN or Inf shows that values grew until they overflowed."""

MAX_NAMED_ROWS = 5
"""Maximum number of batch rows that are named."""

_CHECK = (
    "Look there for a division by 0, the logarithm of 0, the square root of a negative number, or an overflow; add an "
    "epsilon or clamp."
)


def forward_event(
    origin: BadOperation, step: int, batch_idx: int, loss: float, last_loss: float = math.nan
) -> Nonfinite:
    """Describe a loss that is not finite because of an operation.

    Args:
        origin: the operation.
        step: the optimizer step.
        batch_idx: the index of the batch.
        loss: the loss.
        last_loss: the loss of the previous step.
    """
    place = origin.place
    where = place.at
    where += f" {'after' if place.is_after else 'in'} {place.module!r}" if place.module else ""
    found = "" if origin.given is None else f" ({described([origin.given])})"
    if origin.name:
        said = f"The first non-finite value came from {_plain(origin.name)}(){where}{found}"
    elif origin.is_maker:
        perhaps = f", perhaps {listed(place.before, 3)}" if place.before else ""
        said = f"The first non-finite value came from {_plain(origin.taker)}(){where}{found}"
        said += f", or from earlier code{perhaps}"
    else:
        by = f", perhaps by {listed(place.before, 3)}" if place.before else ""
        said = (
            f"The first operation to receive a non-finite value was {_plain(origin.taker)}(){where}{found}; the value "
            f"was produced earlier{by}"
        )
    why, advice = _cause(origin)
    evidence = f"The loss of step {step}, batch {batch_idx}, is {loss}. {said}"
    evidence += f": {why}." if why else "."
    taken = list(origin.taken.values())
    largest = max([last_loss, *(_largest(tensor) for tensor in taken)])
    if largest > GROWN_ABOVE:
        advice = f"Values had already grown to {largest:.3g}: lower the learning rate, warm it up, or clip gradients."
    module = "" if place.is_after and not origin.name and not origin.is_maker else place.module
    return Nonfinite(module, "forward", step, batch_idx, evidence, advice or _CHECK)


def batch_event(
    batch: Any, step: int, batch_idx: int, loss: float, taker: str, *, was_changed: bool, counts_masks: bool = False
) -> Nonfinite | None:
    """Describe a NaN or Inf in the batch; None if there is none.

    Args:
        batch: the batch.
        step: the optimizer step.
        batch_idx: the index of the batch.
        loss: the loss.
        taker: the layer that takes it first; "" if unknown.
        was_changed: True if the step changed the batch in place.
        counts_masks: True to count a tensor with -Inf alone, as masks have.
    """
    floats = [tensor for _, tensor in tensors_in(batch) if tensor.is_floating_point() or tensor.is_complex()]
    bad = [tensor for tensor in floats if _has_nan_or_inf(tensor, counts_masks)]
    if not bad:
        return None
    by_tensor = bad_rows_in(batch)
    held = described(bad) + _said_of_rows(by_tensor)
    met = f"; {taker!r} is the first module to receive these values" if taker else ""
    evidence = f"In batch {batch_idx} (step {step}), {held}{met}; the loss is {loss}."
    if was_changed:
        evidence += " training_step changes the batch in place, so the batch may have been finite before."
    advice = f"Check the data of batch {batch_idx}: drop such samples, or fill in missing values."
    rows = tuple(sorted({row for some in by_tensor.values() for row in some}))
    return Nonfinite(taker, "batch", step, batch_idx, evidence, advice, rows=rows)


def bad_rows_in(batch: Any) -> dict[str, list[int]]:
    """Return by the path of each tensor in a batch the rows that hold a NaN or Inf, if there are any.

    >>> bad_rows_in([torch.zeros(2), torch.tensor([[0.0], [float("nan")]])])
    {'1': [1]}
    """
    found = dict[str, list[int]]()
    for path, tensor in tensors_in(batch):
        if tensor.layout is not torch.strided or tensor.is_nested or not tensor.dim():
            continue
        rows = (~torch.isfinite(tensor)).flatten(1).any(1) if tensor.dim() > 1 else ~torch.isfinite(tensor)
        bad = rows.nonzero().flatten().tolist()
        if bad:
            found[path] = bad
    return found


def _said_of_rows(found: Mapping[str, Sequence[int]]) -> str:
    """Name the rows that `bad_rows_in` found: " (row 1 of tensor 1)"; "" if there are none."""
    said = []
    for path, rows in found.items():
        which = f"{'row' if len(rows) == 1 else 'rows'} {listed(map(str, rows), MAX_NAMED_ROWS)}"
        said.append(f"{which} of tensor {path}" if path else which)
    return f" ({'; '.join(said)})" if said else ""


def with_rows_of(event: Nonfinite, worst: WorstRows | None) -> Nonfinite:
    """Return the event of a loss that is not finite with the rows of the batch in which it is so."""
    if worst is None or all(map(math.isfinite, worst.losses)):
        return event
    return replace(event, evidence=f"{event.evidence} {sentence(worst.clause)}", rows=worst.rows)


def backward_event(
    spoiled: Mapping[str, str], after: str, step: int, batch_idx: int, is_loss_finite: bool
) -> Nonfinite:
    """Describe gradients that are not finite.

    Args:
        spoiled: the names of the parameters whose gradients are not finite to those of their layers, in the order in
            which the step used the layers.
        after: operations after the last of these layers whose derivative may be infinite; "" if none is known.
        step: the optimizer step.
        batch_idx: the index of the batch.
        is_loss_finite: whether the loss is known to be finite.
    """
    name, module = list(spoiled.items())[-1]
    count = len(spoiled)
    they = "1 parameter has a non-finite gradient" if count == 1 else f"{count} parameters have non-finite gradients"
    evidence = (
        f"{they} in the backward pass of step {step}, batch {batch_idx}"
        + (", although the loss is finite." if is_loss_finite else ".")
        + (f" Of these, {name!r} is used last in the forward pass." if count > 1 else f" It is {name!r}.")
        + (f" Later operations whose derivative can be infinite: {after}." if after else "")
    )
    advice = (
        "From this layer on, look for an operation whose derivative is infinite, such as the square root or norm of 0, "
        "or for a NaN that torch.where hides or the loss leaves out (0 times NaN is NaN); clamp its input."
    )
    return Nonfinite(module, "backward", step, batch_idx, evidence, advice)


def parameter_event(
    name: str, values: Tensor, step: int, batch_idx: int, stepped: tuple[int, int, float] | None
) -> Nonfinite:
    """Describe weights that were not finite before the forward pass, as an event of the last optimizer step.

    Before the first one, the event is that of the step in which they were found.

    Args:
        name: the dotted name of the parameter.
        values: its values.
        step: the step in which it was found.
        batch_idx: the index of its batch.
        stepped: step, batch index and loss of the last optimizer step, NaN for a loss that is not known; None before
            the first.
    """
    held, module = described([values]), name.rpartition(".")[0]
    if stepped is None:
        evidence = f"In the parameter {name!r}, {held} before the first optimizer step of this fit."
        advice = "Check the initialization, and the checkpoint that was loaded."
        return Nonfinite(module, "start", step, batch_idx, evidence, advice)
    at, its_batch, loss = stepped
    finite = f"; the loss of that step was finite ({loss:.3g})" if math.isfinite(loss) else ""
    evidence = (
        f"After the optimizer step of step {at}, batch {its_batch}, the parameter {name!r} is not finite ({held})"
        f"{finite}."
    )
    advice = "Lower the learning rate, or clip gradients; check the optimizer's eps and the gradients of that step."
    if values.dtype is torch.float16:
        advice = "Adam's default eps of 1e-8 is 0 in float16: set eps=1e-4, or keep the weights in float32 or bfloat16."
    return Nonfinite(module, "optimizer", at, its_batch, evidence, advice)


def unlocated_event(
    is_backward: bool, step: int, batch_idx: int, why: str, spoiled: Sequence[str] = (), loss: float | None = None
) -> Nonfinite:
    """Describe a non-finite loss or gradient whose module could not be found.

    Args:
        is_backward: whether gradients are not finite, rather than the loss.
        step: the optimizer step.
        batch_idx: the index of the batch.
        why: completes the sentence "The module is unknown: ".
        spoiled: the parameters with non-finite gradients, in model order; the module of the last is the best guess.
        loss: the loss, if it is known; ignored for gradients.
    """
    module = spoiled[-1].rpartition(".")[0] if spoiled else ""
    if is_backward:
        evidence = f"Gradients of step {step}, batch {batch_idx}, are not finite"
        evidence += f"; the last of these parameters in the model is {spoiled[-1]!r}" if spoiled else ""
    else:
        evidence = f"The loss of step {step}, batch {batch_idx}, is {'not finite' if loss is None else loss}"
    evidence += f". The module is unknown: {why}."
    advice = "Train this batch once more with torch.autograd.set_detect_anomaly(True)."
    during: Pass = "backward" if is_backward else "forward"
    return Nonfinite(module, during, step, batch_idx, evidence, advice, is_located=False)


def late_event(losses: Iterable[Loss]) -> Nonfinite | None:
    """Describe the first loss that is not finite, which the host learns after the step; None if all are finite."""
    bad = next((loss for loss in losses if not math.isfinite(loss.value)), None)
    if bad is None:
        return None
    why = "losses are read only at the next measurement; nonfinite='exact' finds the module in the step itself"
    return unlocated_event(False, bad.step, bad.batch_idx, why, loss=bad.value)


def described(tensors: Sequence[Tensor]) -> str:
    """Describe the values of all these tensors: "3 of 128 values are NaN", "96 values up to 2.5", or "" for none."""
    if not tensors:
        return ""
    held = [local(tensor.detach()) for tensor in tensors]
    count = sum(tensor.numel() for tensor in held)
    numbers = [(int(torch.isnan(t).sum()), int(torch.isinf(t).sum())) for t in held]
    nan, inf = (sum(column) for column in zip(*numbers, strict=True))
    bad = [_counted(nan, f"of {count} values", "NaN"), _counted(inf, f"of {count} values", "Inf")]
    return " and ".join(filter(None, bad)) or f"{count} values up to {max(map(_largest, held)):.3g}"


def _largest(tensor: Tensor) -> float:
    held = local(tensor.detach()).abs()
    held = held[torch.isfinite(held)]
    return float(held.max()) if held.numel() else 0.0


def _has_nan_or_inf(tensor: Tensor, counts_masks: bool) -> bool:
    held = local(tensor.detach())
    return not bool((torch.isfinite(held) | (not counts_masks and held == -torch.inf)).all())


def _plain(name: str) -> str:
    return _PLAIN_NAMES.get(name, name.removeprefix("native_"))


_PLAIN_NAMES = {
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
    "linalg_vector_norm": "norm",
    "safe_softmax": "softmax",
}
"""Name of an operation in autograd to the function that users know it by."""

_ROOTS = frozenset({"sqrt", "rsqrt", "pow"})
_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p"})


def _cause(origin: BadOperation) -> tuple[str, str]:
    """Return what is wrong with the inputs of the operation, as a clause, and what to change; each "" if not known."""
    first, name = origin.taken.get("self"), origin.taker if origin.is_maker else origin.name
    if name == "nll_loss":
        return "all its targets are ignored", "Skip batches whose targets are all `ignore_index`."
    if name == "mean" or (first is not None and not first.numel()):
        return "it is the mean of an empty tensor", "Skip this term when nothing is selected."
    if name in SOFTMAXES and origin.is_maker:
        return "", "Look for a row that is fully masked, or for a NaN or Inf in the input of the softmax."
    if name in SOFTMAXES and origin.given is not None:
        rows = int(torch.isnan(local(origin.given)).all(-1).sum())
        said = "1 row is" if rows == 1 else f"{rows} rows are"
        advice = "Let each row attend to at least one position, or drop the fully masked rows."
        return (f"{said} fully masked", advice) if rows else ("", "")
    if name in ("div", "reciprocal"):
        divisor = origin.taken.get("other", origin.taken.get("self") if name == "reciprocal" else None)
        zeros = 0 if divisor is None else int((divisor == 0).sum())
        return _counted(zeros, "of its divisors", "0"), "Add an epsilon to the divisor, or leave these values out."
    if name in _LOGARITHMS and first is not None:
        least = -1 if name == "log1p" else 0
        low = _counted(int((first <= least).sum()), f"of its {first.numel()} inputs", f"{least} or less")
        advice = f"Clamp its input above {least}."
        if not least and bool((first < 0).any()):
            advice += " If it is given logits, apply softmax or sigmoid first, or use a loss that takes logits."
        return low, advice
    if name in _ROOTS:  # of which only pow has saved its input
        low = "" if first is None else _counted(int((first <= 0).sum()), f"of its {first.numel()} inputs", "0 or less")
        return low, "Clamp its input above 0, or check the exponent."
    if name == "exp":
        advice = "Subtract the maximum first, or clamp its input; as an activation, use ReLU or GELU instead."
        return "", advice
    return "", ""


def _counted(count: int, what: str, value: str) -> str:
    """Return a clause such as "2 of its 8 inputs are 0 or less"; "" for a count of 0."""
    return f"{count} {what} {'is' if count == 1 else 'are'} {value}" if count else ""
