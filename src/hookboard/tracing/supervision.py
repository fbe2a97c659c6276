"""Which tokens of a batch are targets: how many count, and what stands at the edges of those that do."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.rules import LossCall, TracedStep, losses_of

MIN_ROWS = 8
"""Fewer rows are not judged (a choice)."""

ALIKE_SHARE = 0.5
"""Tokens that end or begin what counts differ from row to row if none of them has a larger share (a choice)."""

ELSEWHERE_SHARE = 0.25
"""Tokens before an answer seem to be its first if answers have more than this share of them elsewhere (a choice)."""


def supervised(done: TracedStep) -> str:
    """Return a sentence on how many targets count, for a loss that ignores some, as of tokens; "" for others."""
    for call in losses_of(done):
        counted, total = call.wanted.detach()[call.counts], call.wanted.numel()
        if 0 < counted.numel() < total and call.target.of_batch:  # of no target at all there is an alarm
            return (
                f"{counted.numel():,} of the {total:,} targets in the first batch count toward the loss "
                f"({counted.numel() / total:.0%}), with {counted.unique().numel():,} distinct values."
            )
    return ""


class TokenRows(NamedTuple):
    """The inputs that the targets are.

    Args:
        tokens: shape (rows, positions).
        counts: whether each of them counts as a target, same shape.
    """

    tokens: Tensor
    counts: Tensor


def token_rows_of(done: TracedStep, call: LossCall) -> TokenRows | None:
    """Return the inputs that are a loss's targets, up to two positions earlier; None if its targets are others."""
    wanted, counts = call.wanted.detach(), call.counts
    is_of_classes = call.op.name in ("cross_entropy", "nll_loss")
    sources = (value for value in call.output.ancestors() if value in done.step.given)
    for source in sources if is_of_classes and wanted.dtype is torch.long and bool(counts.any()) else ():
        inputs = done.step.given[source].detach()
        if (
            inputs.dim() != 2
            or inputs.dtype is not torch.long
            or len(inputs) < MIN_ROWS
            or wanted.numel() % len(inputs)
        ):
            continue
        rows, counted = wanted.reshape(len(inputs), -1), counts.reshape(len(inputs), -1)
        for shift in (1, 0, 2):
            length = min(rows.shape[1], inputs.shape[1] - shift)
            later, kept = inputs[:, shift : shift + length], counted[:, :length]
            if length > 0 and bool((rows[:, :length] == later)[kept].all()) and not bool(counted[:, length:].any()):
                return TokenRows(later, kept)
    return None


def supervision(done: TracedStep) -> Iterator[Finding]:
    """Yield a note for an end or a beginning of answers that never counts."""
    for call in losses_of(done):
        rows = token_rows_of(done, call)
        for evidence, advice in () if rows is None else _edges(*rows):
            yield Finding(call.op.place.module, f"{evidence} (targets of {call.op.name} {call.op.place})", advice)


SUPERVISION = Rule("targets", supervision, of="step")


def _edges(tokens: Tensor, counts: Tensor) -> Iterator[tuple[str, str]]:
    """Yield evidence and advice where all rows have the same token after, or two before, what counts."""
    has, places = counts.any(1), torch.arange(tokens.shape[1], device=tokens.device)
    first = torch.where(counts, places, len(places)).amin(1)
    last = torch.where(counts, places, -1).amax(1)
    # A single target, as a grade, needs no end.
    ended, begun = (counts.sum(1) > 1) & (last + 1 < len(places)), has & (first > 1)
    after, final = (tokens[ended, (last + by)[ended]] for by in (1, 0))
    if _is_one(after) and not _is_alike(final) and not bool((tokens[counts] == after[0]).any()):
        yield (
            f"in all {len(after)} rows that continue after their last counted target, the next token is "
            f"{int(after[0])}, which is never a target",
            "if this token ends an answer, count its first occurrence, or the model never learns to stop; if it is "
            "also the padding, mask the padding by position",
        )
    marker, before = (tokens[begun, (first - by)[begun]] for by in (2, 1))
    # What no answer has elsewhere may be a part of the prompt, such as the name of a language.
    is_told = bool(torch.isin(before, tokens[counts]).double().mean() > ELSEWHERE_SHARE)
    if _is_one(marker) and not _is_alike(before) and is_told:
        yield (
            f"in all {len(marker)} rows whose first tokens do not count, the last such token differs from row to row "
            f"and follows token {int(marker[0])}",
            f"if token {int(marker[0])} ends the prompt, include the first token of each answer in the loss",
        )


def _is_one(tokens: Tensor) -> bool:
    """Return True if the tokens of enough rows are all the same."""
    return len(tokens) >= MIN_ROWS and bool((tokens == tokens[0]).all())


def _is_alike(tokens: Tensor) -> bool:
    """Return True if most tokens are the same."""
    return bool((tokens == tokens.mode().values).double().mean() > ALIKE_SHARE)
