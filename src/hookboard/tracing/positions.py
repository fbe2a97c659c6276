"""Where outputs meet targets in the loss, and targets that are inputs at other positions."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.health.rule import Finding
from hookboard.tracing.calls import Op, Value, loss_part
from hookboard.tracing.ledger import MULTIPLYING
from hookboard.tracing.rules import TracedStep
from hookboard.tracing.tape import CannotReplayError, Tape, moves

ROUNDING = 1e-5
"""What moves by less than this share of the largest move does not move (a choice): kernels round, and finite masks such
as -10000 leave a little."""


class Meeting(NamedTuple):
    """A call of the loss that takes an output and a target.

    Args:
        op: the call.
        output: what it takes that needs a gradient.
        target: what it takes that was computed from the batch alone.
    """

    op: Op
    output: Value
    target: Value


def meetings_of(done: TracedStep) -> list[Meeting]:
    """Return where outputs meet targets in the loss, the last call first."""
    found = []
    for op in loss_part(done.loss):
        outputs = [one for one in op.inputs if one.requires_grad and one.of_batch]
        targets = [one for one in op.inputs if one.of_batch and not one.of_parameters]
        if outputs and targets:
            found.append(Meeting(op, outputs[0], targets[0]))
    return found


def tensor_of(done: TracedStep, value: Value) -> Tensor:
    """Return a tensor of the batch; CannotReplayError if it is gone."""
    tensor = done.step.given.get(value)
    if tensor is None:
        raise CannotReplayError("a tensor has been freed")
    return tensor.detach()


NEXT_SHARE = 0.9
"""If a larger share of the targets are the inputs some positions later, the model predicts these (a choice)."""

MIN_POSITIONS = 4
"""Shorter sequences are not judged (a choice)."""


class Ahead(NamedTuple):
    """Targets that are the inputs at later positions.

    Args:
        meeting: where an output meets them.
        source: the tensor of the batch, shape (samples, positions, ...).
        shift: how many positions the input is later than its target.
        sample: a sample.
        position: a position of its targets, near the middle.
    """

    meeting: Meeting
    source: Value
    shift: int
    sample: int
    position: int


def ahead_of(done: TracedStep, meeting: Meeting) -> Iterator[Ahead]:
    """Yield where the targets of a meeting are the inputs of later positions, or of the same.

    Not where an output is only multiplied: by a mask, which may be an input as well.
    """
    if meeting.op.name in MULTIPLYING:
        return
    output, target = meeting.output, meeting.target
    sources = [value for value in output.ancestors() if value.path is not None and value.op is None]
    sources = [value for value in sources if len(value.shape) > 1 and value.shape[1] >= MIN_POSITIONS]
    sources = [value for value in sources if not _is_read_twice(value, output)]
    if not sources or not target.shape or meeting.op.arguments.get("reduction") == "none":  # a mask may follow
        return
    (wanted,) = Tape(done.step, target).run([{}])
    (given,) = Tape(done.step, output).run([{}])
    # What gives no more than its shape, as in `loss.view_as(labels)`, is no target.
    other = wanted.flatten().roll(1).reshape(wanted.shape)
    if not moves(done.step, meeting.op.results[0], {output: given, target: other}, {output: given, target: wanted}):
        return
    for source in sources:
        samples, positions = source.shape[:2]
        inputs = tensor_of(done, source)
        if torch.bool in (wanted.dtype, inputs.dtype):  # a mask
            continue
        if wanted.numel() % samples or inputs.numel() % (samples * positions):
            continue
        size = inputs.numel() // samples // positions
        each = wanted.numel() // samples // size
        if not MIN_POSITIONS <= each <= positions or wanted.numel() != samples * each * size:
            continue
        if any(_is_cut_at_front(one, range(each, positions + 1)) for one in output.ancestors()):
            continue  # then its rows are no positions
        now, then = inputs.reshape(samples, positions, size), wanted.reshape(samples, each, size)
        for shift in (1, 2, 0):
            length = min(each, positions - shift)
            aimed, later = then[:, :length], now[:, shift : shift + length]
            counts = (aimed != meeting.op.arguments.get("ignore_index", -100)).all(-1)
            is_same = (aimed == later).all(-1)
            is_told = counts & (now[:, :length] != later).any(-1) if shift else counts
            least = NEXT_SHARE if shift else 1 - 1e-9  # what corrects a few tokens is not given its targets
            if (
                is_told.sum() >= MIN_POSITIONS
                and min(is_same[some].double().mean() for some in (counts, is_told)) > least
            ):
                places = (is_told & is_same)[:, : max(1, length - 1)].nonzero().tolist()
                if places:
                    sample, position = min(places, key=lambda place: abs(place[1] - each // 2))
                    yield Ahead(meeting, source, shift, sample, position)
                    return


def _is_cut_at_front(value: Value, lengths: range) -> bool:
    """Return True if a slice has left out the first of so many positions, as in `h[:, 3:]`."""
    if value.op is None or value.op.name != "getitem":
        return False
    index, shape = value.op.arguments.get("1"), value.op.inputs[0].shape
    index = index if isinstance(index, tuple) else (index,)
    if ... in index:
        at = index.index(...)
        index = (*index[:at], *[None] * (len(shape) - len(index) + 1), *index[at + 1 :])
    return any(
        isinstance(one, slice) and one.start and size in lengths for one, size in zip(index, shape, strict=False)
    )


def _is_read_twice(source: Value, output: Value) -> bool:
    """Return True if layers take it in two ways, as an encoder does that sees all of it, and a decoder."""
    taken = list[tuple[Value, tuple[str, ...]]]()
    for op in {value.op for value in output.ancestors() if value.op is not None}:
        weights = tuple(one.parameter for one in op.inputs if one.parameter is not None)
        of_batch = [one for one in op.inputs if one.of_batch and not one.of_parameters]
        taken += [(one, weights) for one in of_batch if weights and source in one.ancestors()]
    return len({one for one, _ in taken}) > 1 or len({weights for _, weights in taken}) < len(taken)


def other_positions(done: TracedStep, ahead: Ahead) -> list[Mapping[Value, Tensor]]:
    """Return the batch with the input that is the target exchanged, and, where that skips one, with that exchanged."""
    inputs, at = tensor_of(done, ahead.source), ahead.position + ahead.shift

    def exchanged(places: slice) -> Mapping[Value, Tensor]:
        changed = inputs.clone()
        rows = changed[ahead.sample, places]
        choices = inputs.reshape(-1, *inputs.shape[2:])
        for row in range(len(rows)):
            others = (choices != rows[row]).reshape(len(choices), -1).any(1).nonzero().flatten()
            rows[row] = choices[others[len(others) // 2]] if len(others) else rows[row]
        return {ahead.source: changed}

    return [exchanged(slice(at, at + 1)), *([exchanged(slice(at - 1, at))] if ahead.shift == 2 else ())]


def of_positions(ahead: Ahead, outputs: list[Tensor]) -> Iterator[Finding]:
    """Yield an alarm if an output moves with its own target, or if tokens are shifted twice.

    Args:
        ahead: where the targets are.
        outputs: what meets them: as it was, with another first sample, and in the variants of `other_positions`.
    """
    op, shift, position = ahead.meeting.op, ahead.shift, ahead.position
    later = "one position later" if shift == 1 else "two positions later"
    placed = [by_position(one, ahead.meeting.target, ahead.source.shape) for one in outputs]
    before, _, own = placed[:3]
    other = placed[3] if len(placed) > 3 else None
    if before is None or own is None:
        return
    sees_own = _moves_at(before, own, ahead.sample, position)
    # Where the output before sees it too, as in an autoencoder, there is more to it than to copy.
    sees_other = _moves_at(before, own if other is None else other, ahead.sample, position - (other is None))
    is_of_tokens = ahead.meeting.target.shape != ahead.meeting.output.shape
    if shift and sees_own:
        yield Finding(
            "",
            f"the targets of {op.name} {op.place} are the inputs {later}, and the output at position {position} "
            "changes when that input changes, so the model sees what it should predict",
            "mask later positions in attention (is_causal=True), and avoid bidirectional layers",
            "alarm",
            rule="future_leak",
        )
    elif shift == 2 and is_of_tokens and not sees_other:
        yield Finding(
            op.place.module,
            f"the targets of {op.name} {op.place} are the tokens two positions later, and the output does not see the "
            "token in between, so the targets are shifted twice",
            "shift once: a loss that shifts internally needs unshifted outputs and tokens",
            "alarm",
            rule="targets",
        )
    elif shift == 0 and is_of_tokens and sees_own and not sees_other:
        yield Finding(
            "",
            f"the targets of {op.name} {op.place} are the model's input tokens at the same positions, so the "
            "model only has to copy them",
            "shift the targets: pass tokens[:, :-1] to the model, and compare its outputs with tokens[:, 1:]",
            "alarm",
            rule="future_leak",
        )


def by_position(output: Tensor, target: Value, source: tuple[int, ...]) -> Tensor | None:
    """Return an output as (samples, positions, numbers); None if that cannot be told."""
    if output.dim() > 1 and output.shape != target.shape and output.shape[:1] + output.shape[2:] == target.shape:
        output = output.movedim(1, -1)  # classes come second
    samples, each = source[0], math.prod(target.shape) // source[0] // math.prod(source[2:])
    return output.reshape(samples, each, -1) if output.numel() % (samples * each) == 0 else None


def _moves_at(before: Tensor, after: Tensor, sample: int, position: int) -> bool:
    moved = (after - before)[sample].abs().float().amax(-1)
    return bool(moved[position] > ROUNDING * moved.max())
