"""Whether the outputs of a language model depend on the very tokens that they are to predict."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookboard.auditing.program import Op
from hookboard.auditing.rules import Done, Finding, LossCall, losses_of

NEXT_SHARE = 0.9
"""If more of the targets are the tokens of the next position, the model predicts them (a choice)."""

FEWEST_POSITIONS = 4
"""Shorter sequences are not judged (a choice)."""

REACHES = 1e-6
"""A position counts as seen if its gradient is more than this share of the largest one (a choice): finite masks, such
as -10000, leave a little less than that."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Embedded(NamedTuple):
    """A call of an embedding.

    Args:
        op: the call.
        tokens: shape (samples, positions).
        vectors: what it gave, shape (samples, positions, features).
    """

    op: Op
    tokens: Tensor
    vectors: Tensor


def note_embedding(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> Embedded | None:
    """Note a call of an embedding of sequences from the batch."""
    tokens, ids = given.get("input"), op.arguments.get("input")
    if tokens is None or ids is None or tokens.dim() != 2 or ids.origin.path is None or not results[0].requires_grad:
        return None
    return Embedded(op, tokens, results[0])


def future_leak(done: Done) -> Iterator[Finding]:
    """Find outputs that depend on later tokens, where the next token is the target."""
    if any(isinstance(module, _NORMS) and module.training for module in done.step.model.modules()):
        return  # its statistics make all positions depend on each other, and give hardly anything away
    calls = [call for call in losses_of(done) if call.op.name in ("cross_entropy", "nll_loss")]
    embedded = [op.seen for op in done.step.ops if isinstance(op.seen, Embedded)]
    for call in calls:
        for tokens in embedded:
            place = _position_to_test(call, tokens.tokens)
            if place is None:
                continue
            sample, position = place
            seen = _later_positions_seen(call, tokens, sample, position)
            count = tokens.tokens.shape[1] - position - 1
            if seen:
                yield Finding(
                    "future_leak",
                    "alarm",
                    "",
                    f"the targets of {call.op.name} at {call.op.place} are the tokens of the next position, and the "
                    f"output at position {position} depends on {seen} of the {count} positions after it",
                    "mask later positions in attention (is_causal=True), and use nothing that reads them backwards",
                )
                return


def _position_to_test(call: LossCall, tokens: Tensor) -> tuple[int, int] | None:
    """Return a sample and a position whose target is the next token; None if the targets are no next tokens."""
    samples, positions = tokens.shape
    wanted = call.wanted
    if wanted.is_floating_point() or wanted.numel() % samples or call.live is None:
        return None
    each = wanted.numel() // samples
    if each not in (positions, positions - 1) or each < FEWEST_POSITIONS:
        return None
    targets, now, following = wanted.reshape(samples, each)[:, :-1], tokens[:, : each - 1], tokens[:, 1:each]
    counts = (targets != call.op.arguments.get("ignore_index", -100)) & (now != following)
    if counts.sum() < FEWEST_POSITIONS or (targets == following)[counts].double().mean() <= NEXT_SHARE:
        return None
    places = (counts & (targets == following)).nonzero().tolist()
    sample, position = min(places, key=lambda place: abs(place[1] - each // 2))
    return sample, position


def _later_positions_seen(call: LossCall, embedded: Embedded, sample: int, position: int) -> int:
    """Count the later positions with a gradient from the output at one position."""
    assert call.live is not None
    samples, each = len(embedded.tokens), call.wanted.numel() // len(embedded.tokens)
    classes_last = call.live if call.live.dim() == 2 else call.live.movedim(1, -1)
    output = classes_last.reshape(samples, each, -1)[sample, position].float()
    weights = torch.linspace(-1, 1, len(output), device=output.device)  # a plain sum may be constant, as of softmax
    try:
        (gradient,) = torch.autograd.grad(
            (output * weights).sum(), embedded.vectors, retain_graph=True, allow_unused=True
        )
    except RuntimeError:  # the graph is not there any more, or does not allow it
        return 0
    if gradient is None:
        return 0
    sizes = gradient[sample].detach().abs().amax(-1)
    return int((sizes[position + 1 :] > REACHES * sizes.max()).sum())
