"""Finds padding masks the wrong way round."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.auditing.calls import Op
from hookboard.auditing.inputs import Embedded
from hookboard.auditing.rules import OBSERVERS, Finding, TracedStep
from hookboard.auditing.weighing import padding_of, runs_of

AGREEING_SHARE = 0.99
"""A mask is the wrong way round if at least this share of it hides what is no padding, or shows what is (a choice)."""


class Masked(NamedTuple):
    """A call of attention with a mask over the positions of its keys.

    Args:
        hidden: which positions it hides, shape (samples, positions), bool.
        rows: how many rows of the mask are fully masked, and how many there are; None if none is, or if the result has
            no NaN.
    """

    hidden: Tensor
    rows: tuple[int, int] | None


def note_mask(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> object:
    """Return a `Masked` if the call has a `key_padding_mask` of two dimensions; otherwise what is its field `rows`."""
    rows = OBSERVERS[op.name](op, given, results)
    mask = given.get("key_padding_mask")
    if mask is None or mask.dim() != 2:
        return rows
    return Masked(mask.detach() if mask.dtype is torch.bool else mask.detach() == -math.inf, rows)


def padding_mask(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for attention that hides all tokens and shows the padding."""
    embedded = [op.seen.tokens for op in done.step.ops if isinstance(op.seen, Embedded)]
    for op in done.step.ops:
        if not isinstance(op.seen, Masked):
            continue
        hidden = op.seen.hidden
        for tokens in embedded:
            pad = padding_of(tokens) if tokens.shape == hidden.shape else None
            if pad is not None and float((hidden != runs_of(tokens, pad)).double().mean()) >= AGREEING_SHARE:
                yield Finding(
                    "padding_mask",
                    "alarm",
                    op.place.module,
                    f"the key_padding_mask of attention at {op.place} hides {float(hidden.double().mean()):.0%} of the "
                    f"positions, all that hold a token, and shows the padding (token {pad})",
                    "invert it: True hides a position, so give tokens == pad",
                )
                return
