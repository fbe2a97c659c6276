"""Describes what gave the first NaN or Inf as a `Nonfinite` event, in sentences for the user."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookboard.base.messages import listed
from hookboard.base.ranks import local
from hookboard.base.torch_private import can_be_read
from hookboard.health.look import Loss, WorstRows
from hookboard.health.rule import sentence
from hookboard.health.rules.numerics import Nonfinite
from hookboard.model.nested import tensors_in
from hookboard.tracing.bad_operation import SOFTMAXES, BadOperation, is_finite, is_mask, plain

GROWN_ABOVE = 1e6
"""Above this, a value before the NaN or Inf shows that values grew until they overflowed."""

MAX_NAMED_ROWS = 5
"""Maximum number of batch rows that are named."""

_CHECK = (
    "Look there for a division by 0, the logarithm of 0, the square root of a negative number, or an overflow; add an "
    "epsilon or clamp."
)


class Moment(NamedTuple):
    """A batch of the training: its optimizer step, its index, and its loss; NaN if that is not known."""

    step: int
    batch_idx: int
    loss: float = math.nan


def forward_event(origin: BadOperation, now: Moment, stepped: Moment | None) -> Nonfinite:
    """Describe a loss that is not finite because of an operation; `stepped` is the batch of the last step."""
    if not origin.names:
        return replace(unlocated_event(now, f"It may come from {listed(origin.earlier, 3)}."), advice=_CHECK)
    place = origin.place
    where = f" {'after' if place.is_after else 'in'} {place.module!r}" if place.module else ""
    is_number = origin.how == "made" and origin.given is not None and origin.given.numel() == 1
    found = "" if origin.given is None or is_number else f" ({described([origin.given])})"
    call = " or ".join(f"{plain(name)}()" for name in origin.names) + f"{place.at}{where}{found}"
    perhaps = f", perhaps by {listed(origin.earlier, 3)}" if origin.earlier else ""
    why, advice = _cause(origin)
    if origin.how == "took":
        said = f"The first operation to receive a non-finite value was {call}; the value was produced earlier{perhaps}"
    elif origin.how == "may have made":
        said = f"The first non-finite value came from {call}, or from earlier code{perhaps}"
    else:
        said = f"The first non-finite value came from {call}" + (f": {why}" if why and len(origin.names) == 1 else "")
    largest = max([0.0, *map(_largest, origin.taken.values()), stepped.loss if stepped else math.nan])
    if largest > GROWN_ABOVE:
        advice = f"Values had already grown to {largest:.3g}: lower the learning rate, warm it up, or clip gradients."
    module = "" if place.is_after and origin.how == "took" else place.module
    evidence = f"The loss of step {now.step}, batch {now.batch_idx}, is {now.loss}. {said}."
    return Nonfinite(module, "forward", now.step, now.batch_idx, evidence, advice or _CHECK)


def batch_event(batch: Any, now: Moment, taker: str, *, counts_masks: bool) -> Nonfinite | None:
    """Describe a NaN or Inf in the batch, which layer `taker` takes first ("" if unknown); None if there is none."""
    bad, said, rows = list[Tensor](), list[str](), set[int]()
    for path, tensor in tensors_in(batch):
        if not can_be_read(tensor) or is_finite(tensor) or (is_mask(tensor) and not counts_masks):
            continue
        bad.append(tensor)
        of_tensor = (~torch.isfinite(tensor)).flatten(1).any(1).nonzero().flatten().tolist() if tensor.dim() else []
        if of_tensor:
            which = f"{'row' if len(of_tensor) == 1 else 'rows'} {listed(map(str, of_tensor), MAX_NAMED_ROWS)}"
            said.append(f"{which} of tensor {path}" if path else which)
            rows.update(of_tensor)
    if not bad:
        return None
    where = f" ({'; '.join(said)})" if said else ""
    met = f"; {taker!r} is the first module to receive these values" if taker else ""
    evidence = f"In batch {now.batch_idx} (step {now.step}), {described(bad)}{where}{met}; the loss is {now.loss}."
    advice = f"Check the data of batch {now.batch_idx}: drop such samples, or fill in missing values."
    return Nonfinite(taker, "batch", now.step, now.batch_idx, evidence, advice, rows=tuple(sorted(rows)))


def with_rows_of(event: Nonfinite, worst: WorstRows | None) -> Nonfinite:
    """Return the event of a loss that is not finite with the rows of the batch in which it is so."""
    if worst is None or all(map(math.isfinite, worst.losses)):
        return event
    return replace(event, evidence=f"{event.evidence} {sentence(worst.clause)}", rows=worst.rows)


def backward_event(spoiled: Mapping[str, str], after: str, now: Moment, is_averaged: bool) -> Nonfinite:
    """Describe gradients that are not finite; `spoiled` maps parameters to layers, in the order of the forward pass."""
    name, module = list(spoiled.items())[-1]
    count = len(spoiled)
    they = "1 parameter has a non-finite gradient" if count == 1 else f"{count} parameters have non-finite gradients"
    evidence = (
        f"{they} in the backward pass of step {now.step}, batch {now.batch_idx}"
        + (", although the loss is finite." if math.isfinite(now.loss) else ".")
        + (f" Of these, {name!r} is used last in the forward pass." if count > 1 else f" It is {name!r}.")
        + (f" Later operations whose derivative can be infinite: {after}." if after else "")
        + (" Gradients are averaged over the ranks: it may come from another rank." if is_averaged else "")
    )
    advice = (
        "From this layer on, look for an operation whose derivative is infinite, such as the square root or norm of 0, "
        "or for a NaN that torch.where hides or the loss leaves out (0 times NaN is NaN); clamp its input."
    )
    return Nonfinite(module, "backward", now.step, now.batch_idx, evidence, advice, is_located=not is_averaged)


def parameter_event(name: str, values: Tensor, now: Moment, stepped: Moment | None) -> Nonfinite:
    """Describe a weight that was not finite before the forward pass, as an event of the last step, or of the start."""
    counts, module = described([values]), name.rpartition(".")[0]
    if stepped is None:
        evidence = f"In the parameter {name!r}, {counts} before the first optimizer step of this fit."
        advice = "Check the initialization, and the checkpoint that was loaded."
        return Nonfinite(module, "start", now.step, now.batch_idx, evidence, advice)
    finite = f"; the loss of that step was finite ({stepped.loss:.3g})" if math.isfinite(stepped.loss) else ""
    evidence = (
        f"After the optimizer step of step {stepped.step}, batch {stepped.batch_idx}, the parameter {name!r} is not "
        f"finite ({counts}){finite}."
    )
    advice = "Lower the learning rate, or clip gradients; check the optimizer's eps and the gradients of that step."
    if values.dtype is torch.float16:
        advice = "Adam's default eps of 1e-8 is 0 in float16: set eps=1e-4, or keep the weights in float32 or bfloat16."
    return Nonfinite(module, "optimizer", stepped.step, stepped.batch_idx, evidence, advice)


def unlocated_event(now: Moment, why: str) -> Nonfinite:
    """Describe a loss that is not finite without its place; the sentence `why` says why, or what it may be."""
    evidence = f"The loss of step {now.step}, batch {now.batch_idx}, is {now.loss}. {why}"
    advice = "Train this batch once more with torch.autograd.set_detect_anomaly(True)."
    return Nonfinite("", "forward", now.step, now.batch_idx, evidence, advice, is_located=False)


def late_event(losses: Iterable[Loss]) -> Nonfinite | None:
    """Describe the first loss that is not finite, which the host learns after the step; None if all are finite."""
    why = (
        "The module is unknown: losses are read only at the next measurement; nonfinite='exact' finds the module in "
        "the step itself."
    )
    bad = (Moment(loss.step, loss.batch_idx, loss.value) for loss in losses if not math.isfinite(loss.value))
    return next((unlocated_event(moment, why) for moment in bad), None)


def described(tensors: Sequence[Tensor]) -> str:
    """Describe the values of all these tensors that are not finite: "3 of 128 values are NaN and 1 of ..."."""
    shards = [local(tensor.detach()) for tensor in tensors]
    of = f"of {sum(shard.numel() for shard in shards)} values"
    nan, inf = (sum(int(kind(shard).sum()) for shard in shards) for kind in (torch.isnan, torch.isinf))
    return " and ".join(filter(None, [_counted(nan, of, "NaN"), _counted(inf, of, "Inf")]))


def _largest(tensor: Tensor) -> float:
    sizes = local(tensor).abs()
    return float(sizes.max()) if sizes.numel() else 0.0


_LOWEST = {"log": 0, "log2": 0, "log10": 0, "log1p": -1, "sqrt": 0, "rsqrt": 0, "pow": 0}
"""Operations to the number at or below which they may give no finite value."""


def _cause(origin: BadOperation) -> tuple[str, str]:
    """Return what is wrong with the inputs of the operation, as a clause, and what to change; each "" if not known."""
    name, first, output = origin.names[-1], origin.taken.get("self"), origin.given
    if origin.how == "took":
        return "", ""
    if first is not None and not first.numel():
        return "it is the mean of an empty tensor", "Skip this term when nothing is selected."
    if name.startswith("nll_loss") and output is not None and bool(torch.isnan(output).all()):
        return "all its targets are ignored", "Skip batches whose targets are all `ignore_index`."
    if name in SOFTMAXES:
        rows = 0 if output is None else int(torch.isnan(local(output)).all(-1).sum())
        if not rows or origin.how != "made":
            return "", "Look for a row that is fully masked, or for a NaN or Inf in the input of the softmax."
        said = "1 row is" if rows == 1 else f"{rows} rows are"
        return f"{said} fully masked", "Let each row attend to at least one position, or drop the fully masked rows."
    if name in ("div", "reciprocal"):
        divisor = origin.taken.get("other", first)
        zeros = 0 if divisor is None else int((divisor == 0).sum())
        return _counted(zeros, "of its divisors", "0"), "Add an epsilon to the divisor, or leave these values out."
    if name == "exp":
        return "", "Subtract the maximum first, or clamp its input; as an activation, use ReLU or GELU instead."
    if name not in _LOWEST:
        return "", ""
    least, low = _LOWEST[name], ""
    advice = f"Clamp its input above {least}" + (", or check the exponent." if name == "pow" else ".")
    if first is not None:
        is_low = first <= least
        if output is not None and output.shape == first.shape:  # a power may have overflowed elsewhere
            is_low &= torch.isnan(output) | (torch.isinf(output) & (first == least))
        low = _counted(int(is_low.sum()), f"of its {first.numel()} inputs", f"{least} or less")
        if name in ("log", "log2", "log10") and bool((first < 0).any()):
            advice += " If it is given logits, apply softmax or sigmoid first, or use a loss that takes logits."
    return low, advice


def _counted(count: int, what: str, value: str) -> str:
    """Return a clause such as "2 of its 8 inputs are 0 or less"; "" for a count of 0."""
    return f"{count} {what} {'is' if count == 1 else 'are'} {value}" if count else ""
