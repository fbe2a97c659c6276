"""Finds language models whose outputs depend on the tokens that they are to predict."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookboard.auditing.calls import Op, Value
from hookboard.auditing.program import StepTrace
from hookboard.auditing.rules import Finding, LossCall, TracedStep, losses_of

NEXT_SHARE = 0.9
"""If a larger share of the targets are the tokens at the next position, the model predicts these (a choice)."""

MIN_POSITIONS = 4
"""Shorter sequences are not judged (a choice)."""

MIN_GRADIENT_SHARE = 1e-6
"""An output depends on a position whose gradient is more than this share of the largest one (a choice): finite masks,
such as -10000, leave a little less than that."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Embedded(NamedTuple):
    """A call of an embedding with tokens of the batch.

    Args:
        op: the call.
        tokens: shape (samples, positions).
        vectors: its result, shape (samples, positions, features).
    """

    op: Op
    tokens: Tensor
    vectors: Tensor


def note_embedding(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> Embedded | None:
    """Return the call if its tokens have two dimensions and come from the batch, and its result needs a gradient.

    Otherwise None.
    """
    tokens, ids = given.get("input"), op.arguments.get("input")
    if tokens is None or ids is None or tokens.dim() != 2 or ids.origin.path is None or not results[0].requires_grad:
        return None
    return Embedded(op, tokens, results[0])


def future_leak(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if an output depends on the very token that it is to predict.

    That is so if the targets are the next tokens, and an output depends on tokens after its own position; or if they
    are the tokens at their own position, and outputs depend on these and on no later ones.
    """
    if any(isinstance(module, _NORMS) and module.training for module in done.step.model.modules()):
        return  # its statistics make all positions depend on each other, yet reveal next to nothing of the tokens
    calls = [call for call in losses_of(done) if call.op.name in ("cross_entropy", "nll_loss")]
    embedded = [op.seen for op in done.step.ops if isinstance(op.seen, Embedded)]
    for call in calls:
        for tokens in embedded:
            place = _position_to_test(call, tokens.tokens)
            if place is None:
                yield from _copied(done.step, call, tokens)
                continue
            sample, position = place
            _, seen = _seen_positions(done.step, call, tokens, sample, position)
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


def loss_shape(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if outputs and targets of sequences are flattened in different orders.

    Then the output of one sample is compared with the target of another, as where the model takes (positions, samples)
    and the targets are (samples, positions).
    """
    for call in losses_of(done):
        shape, live = call.target.origin.shape, call.live
        if live is None or live.dim() != 2 or len(shape) != 2 or call.wanted.shape != (math.prod(shape),):
            continue
        for embedded in (op.seen for op in done.step.ops if isinstance(op.seen, Embedded)):
            ids = embedded.op.arguments.get("input")
            if not isinstance(ids, Value) or ids.origin.shape != shape or shape[0] == shape[1] or min(shape) < 2:
                continue
            if embedded.tokens.shape not in (shape, shape[::-1]) or len(live) != call.wanted.numel():
                continue
            axis = 0 if embedded.tokens.shape == shape else 1
            # Row 1 is of the first sample if rows are (samples, positions), and of the second one otherwise.
            seen, wanted = _samples_seen(done.step, live[1], embedded.vectors, axis), int(_is_transposed(call.target))
            if seen is not None and seen != wanted:
                yield Finding(
                    "loss_shape",
                    "alarm",
                    call.op.place.module,
                    f"{call.op.name} at {call.op.place} compares the output of sample {seen} with the target of "
                    f"sample {wanted} (row 1 of {len(live)}): they are flattened in different orders",
                    "transpose the outputs or the targets before they are flattened, so that both are (samples, "
                    "positions)",
                )
                return


_TRANSPOSING = frozenset({"t", "T", "mT", "transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims"})


def _is_transposed(value: Value) -> bool:
    """Return True if an odd number of transpositions lies between a value and its origin."""
    count = 0
    while value.op is not None and value is not value.origin:
        count += value.op.name in _TRANSPOSING
        value = value.op.inputs[0]
    return count % 2 == 1


def _samples_seen(step: StepTrace, output: Tensor, vectors: Tensor, axis: int) -> int | None:
    """Return the only sample on which an output depends, by its gradient.

    None if it depends on none or several, or if no gradient can be computed.

    Args:
        step: the step, which knows whether a gradient may be computed.
        output: the model's output for one target, shape (classes,).
        vectors: the result of the embedding.
        axis: the dimension of `vectors` that holds the samples.
    """
    if not step.is_plain(output, vectors):
        return None
    weighted = output.float() * torch.linspace(-1, 1, len(output), device=output.device)
    try:
        (gradient,) = torch.autograd.grad(weighted.sum(), vectors, retain_graph=True, allow_unused=True)
    except RuntimeError:  # the graph was freed, or a tensor in it was changed in place
        return None
    if gradient is None:
        return None
    sizes = gradient.detach().abs().amax(tuple(dim for dim in range(gradient.dim()) if dim != axis))
    depends = (sizes > MIN_GRADIENT_SHARE * sizes.max()).nonzero().flatten().tolist()
    return depends[0] if len(depends) == 1 else None


def _copied(step: StepTrace, call: LossCall, embedded: Embedded) -> Iterator[Finding]:
    """Yield an alarm if the targets are the tokens at their own position, and the model reads from left to right.

    A model that reads later tokens too may be meant to give its input back, as an autoencoder.
    """
    samples, positions = embedded.tokens.shape
    wanted = call.wanted
    if wanted.is_floating_point() or wanted.numel() != samples * positions or call.live is None:
        return
    counts = wanted.reshape(samples, positions) != call.op.arguments.get("ignore_index", -100)
    is_same = wanted.reshape(samples, positions) == embedded.tokens
    if positions < MIN_POSITIONS or counts.sum() < MIN_POSITIONS or not bool(is_same[counts].all()):
        return
    places = counts.nonzero().tolist()
    sample, position = min(places, key=lambda place: abs(place[1] - positions // 2))
    own, later = _seen_positions(step, call, embedded, sample, position)
    if own and not later:
        yield Finding(
            "future_leak",
            "alarm",
            "",
            f"the targets of {call.op.name} at {call.op.place} are the tokens that the model is given at the same "
            "positions: it only has to copy them",
            "shift them: give the model tokens[:, :-1], and compare its outputs with tokens[:, 1:]",
        )


def _position_to_test(call: LossCall, tokens: Tensor) -> tuple[int, int] | None:
    """Return the index of a sample and of a position to test; None unless the targets clearly are the next tokens.

    The target at that position is the next token, which differs from the token there; it is near the middle.
    """
    samples, positions = tokens.shape
    wanted = call.wanted
    if wanted.is_floating_point() or wanted.numel() % samples or call.live is None:
        return None
    each = wanted.numel() // samples
    if each not in (positions, positions - 1) or each < MIN_POSITIONS:
        return None
    targets, now, following = wanted.reshape(samples, each)[:, :-1], tokens[:, : each - 1], tokens[:, 1:each]
    counts = (targets != call.op.arguments.get("ignore_index", -100)) & (now != following)
    if counts.sum() < MIN_POSITIONS or (targets == following)[counts].double().mean() <= NEXT_SHARE:
        return None
    places = (counts & (targets == following)).nonzero().tolist()
    sample, position = min(places, key=lambda place: abs(place[1] - each // 2))
    return sample, position


def _seen_positions(
    step: StepTrace, call: LossCall, embedded: Embedded, sample: int, position: int
) -> tuple[bool, int]:
    """Return whether the output at a position depends on the token there, and on how many later ones: by gradients.

    (False, 0) if there is no gradient, or it cannot be computed.
    """
    assert call.live is not None
    samples, each = len(embedded.tokens), call.wanted.numel() // len(embedded.tokens)
    classes_last = call.live if call.live.dim() == 2 else call.live.movedim(1, -1)
    output = classes_last.reshape(samples, each, -1)[sample, position].float()
    if not step.is_plain(output, embedded.vectors):
        return False, 0
    weights = torch.linspace(-1, 1, len(output), device=output.device)  # a plain sum may be constant, as of softmax
    try:
        (gradient,) = torch.autograd.grad(
            (output * weights).sum(), embedded.vectors, retain_graph=True, allow_unused=True
        )
    except RuntimeError:  # the graph was freed, or a tensor in it was changed in place
        return False, 0
    if gradient is None:
        return False, 0
    sizes = gradient[sample].detach().abs().amax(-1)
    depends = sizes > MIN_GRADIENT_SHARE * sizes.max()
    return bool(depends[position]), int(depends[position + 1 :].sum())
