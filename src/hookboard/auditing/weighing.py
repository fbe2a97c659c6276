"""Finds targets that count too much or too little: padding in the loss, and weights of classes the wrong way round."""

from collections.abc import Iterator

import torch
from torch import Tensor

from hookboard.auditing.rules import Finding, LossCall, TracedStep, losses_of

MIN_PADDED_SHARE, MIN_PADDED_ROWS = 0.2, 0.5
"""Targets count as padded if at least this share of the rows (the second number) ends in a run of the same number, and
these runs are at least the first share of all targets (choices)."""

MIN_RUN = 2
"""A row is padded if it ends with at least this many equal numbers (a choice)."""

MIN_LABELS = 32
"""With fewer targets nothing is said of the weights of their classes (a choice)."""

RARE_SHARE, FREQUENT_SHARE = 0.2, 0.5
"""A class is rare below the first share of the targets, and frequent above the second (choices)."""

WEIGHT_FACTOR = 2.0
"""A frequent class must have this many times the weight of a rare one to be worth a note (a choice)."""


def padding(done: TracedStep) -> Iterator[Finding]:
    """Yield a note if a loss over sequences counts what pads them."""
    for call in losses_of(done):
        if call.op.name not in ("cross_entropy", "nll_loss") or not call.counts_all or call.target.origin.path is None:
            continue
        rows = call.wanted.reshape(call.target.origin.shape) if _has_rows(call) else None
        if rows is None:
            continue
        pad = padding_of(rows)
        if pad is None or pad == call.op.arguments.get("ignore_index", -100):
            continue
        share = float((runs_of(rows, pad)).double().mean())
        yield Finding(
            "padding",
            "note",
            call.op.place.module,
            f"{share:.0%} of the targets of {call.op.name} at {call.op.place} are the number {pad} that fills rows up "
            "to their end: the loss counts them like any other",
            f"give the loss ignore_index={pad}, if that is padding",
        )


def _has_rows(call: LossCall) -> bool:
    shape = call.target.origin.shape
    return len(shape) == 2 and shape[0] * shape[1] == call.wanted.numel() and not call.wanted.is_floating_point()


def runs_of(rows: Tensor, pad: int) -> Tensor:
    """Return which elements belong to a run of `pad` that lasts to the end of their row; shape of `rows`, bool."""
    return (rows == pad).flip(1).cumprod(1).flip(1).bool()


def padding_of(rows: Tensor) -> int | None:
    """Return the number that pads the rows; None if they are not padded."""
    pad = int(rows[:, -1].mode().values)
    lengths = runs_of(rows, pad).sum(1)
    has_ends = (lengths >= MIN_RUN).double().mean() >= MIN_PADDED_ROWS and lengths.unique().numel() > 1
    return pad if has_ends and lengths.sum() >= MIN_PADDED_SHARE * rows.numel() else None


def class_weights(done: TracedStep) -> Iterator[Finding]:
    """Yield a note if a frequent class has a larger weight in the loss than a rare one."""
    for call in losses_of(done):
        weight, wanted = call.weight, call.wanted.detach()
        if weight is None or wanted.numel() < MIN_LABELS or wanted.is_complex():
            continue
        if call.op.name == "binary_cross_entropy_with_logits":
            yield from _positive(call, weight, wanted.double())
        elif call.op.name in ("cross_entropy", "nll_loss") and not wanted.is_floating_point():
            yield from _of_classes(call, weight.double(), wanted.flatten())


def _positive(call: LossCall, weight: Tensor, wanted: Tensor) -> Iterator[Finding]:
    if weight.numel() != 1:
        return
    share, factor = float(wanted.mean()), float(weight)
    is_wrong = (share < RARE_SHARE and factor < 1 / WEIGHT_FACTOR) or (
        share > 1 - RARE_SHARE and factor > WEIGHT_FACTOR
    )
    if is_wrong and 0 < share < 1:
        yield Finding(
            "class_weights",
            "note",
            call.op.place.module,
            f"pos_weight of {call.op.name} at {call.op.place} is {factor:.3g}, and {share:.1%} of the targets are "
            f"positive: the rarer class counts less",
            f"set pos_weight to negatives / positives, here about {(1 - share) / share:.2g}",
        )


def _of_classes(call: LossCall, weight: Tensor, wanted: Tensor) -> Iterator[Finding]:
    known = wanted[(wanted >= 0) & (wanted < len(weight)) & (wanted != call.op.arguments.get("ignore_index", -100))]
    if len(known) < MIN_LABELS:
        return
    shares = torch.bincount(known, minlength=len(weight)).double() / len(known)
    most = int(shares.argmax())
    rare = (shares > 0) & (shares < RARE_SHARE)
    if shares[most] < FREQUENT_SHARE or not rare.any():
        return
    heaviest = float(weight[rare].max())
    if float(weight[most]) >= WEIGHT_FACTOR * heaviest:
        yield Finding(
            "class_weights",
            "note",
            call.op.place.module,
            f"the weights of {call.op.name} at {call.op.place} are {float(weight[most]):.3g} for class {most}, which "
            f"is {float(shares[most]):.0%} of the targets, and at most {heaviest:.3g} for rare ones",
            "give rare classes the larger weight, such as 1 / frequency",
        )
