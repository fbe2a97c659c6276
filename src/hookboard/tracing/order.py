"""Finds models of tokens for which the order of these makes no difference."""

import math
from collections.abc import Iterator

from torch import Tensor

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import Op, Value
from hookboard.tracing.positions import MIN_POSITIONS, ROUNDING, Meeting, ahead_of, by_position, meetings_of, tensor_of
from hookboard.tracing.rules import TracedStep
from hookboard.tracing.tape import UNANSWERED, Tape

SAME = 1e-3
"""Outputs are exchanged with their tokens if what else moves is less than this share of it (a choice): sums round."""


def token_order(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if two tokens that are exchanged exchange their outputs, and change no other.

    Only for models with an output for each token, in which tokens influence the outputs of others.
    """
    for meeting in meetings_of(done)[:4]:
        tokens = next((one for one in meeting.output.ancestors() if _are_tokens(done, one)), None)
        if tokens is None or math.prod(meeting.target.shape) != math.prod(tokens.shape):
            continue
        try:
            if any(one.shift for one in ahead_of(done, meeting)):  # a model of the next token sees those before alone
                continue
            places = _makes_no_difference(done, meeting, tokens)
        except UNANSWERED:
            continue  # `dependence` has said so
        taking = next(op for op in done.step.ops if any(one.origin is tokens for one in op.inputs if one.of_batch))
        if places is not None:
            yield Finding(
                "",
                f"the order of the tokens in {taking.name} {taking.place} has no influence: swapping the tokens "
                f"at positions {places[0]} and {places[1]} swaps their outputs and leaves all others unchanged",
                "add a positional embedding or encoding to the token embeddings",
                "alarm",
            )
            return


TOKEN_ORDER = Rule("no_influence", token_order, of="step")


def _are_tokens(done: TracedStep, value: Value) -> bool:
    tensor = done.step.given.get(value)
    if tensor is None or value.path is None or tensor.dim() != 2 or tensor.shape[1] < MIN_POSITIONS:
        return False
    return not (tensor.is_floating_point() or tensor.is_complex()) and tensor.element_size() > 1


def _makes_no_difference(done: TracedStep, meeting: Meeting, tokens: Value) -> tuple[int, int] | None:
    """Return two positions whose tokens may be exchanged as well; None if order makes a difference."""
    given = tensor_of(done, tokens)
    first, others = given[0, 0], (given[0] != given[0, 0]).nonzero().flatten().tolist()
    (wanted,) = Tape(done.step, meeting.target).run([{}])
    wanted = wanted.reshape(given.shape)
    if not others or bool((wanted == wanted[:, :1]).all()):  # one answer for all tokens, as for a set
        return None
    place = others[0]
    exchanged, replaced = given.clone(), given.clone()
    exchanged[0, 0], exchanged[0, place] = given[0, place], first
    replaced[0, 0] = given[0, place]
    outputs: list[Tensor | None] = []

    def note(op: Op, value: Value, tensors: list[Tensor]) -> None:
        if value is meeting.output:
            outputs[:] = [by_position(one.detach(), meeting.target, tuple(given.shape)) for one in tensors]

    tape = Tape(done.step, done.loss)
    tape.run([{}, {tokens: exchanged}, {tokens: replaced}], note, without_dropout=True)
    if len(outputs) != 3 or any(one is None or one.shape[1] != given.shape[1] for one in outputs):
        return None
    before, after, other = (one[0].float() for one in outputs if one is not None)
    moved = float((after - before).abs().max())
    back = after.clone()
    back[0], back[place] = after[place], after[0]
    sees = float((other[place] - before[place]).abs().max())
    is_same = moved > 0 and float((back - before).abs().max()) < SAME * moved
    return (0, place) if is_same and sees > ROUNDING * moved else None
