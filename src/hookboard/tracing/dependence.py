"""Finds outputs that depend on what they must not: on other samples of the batch, or on their own targets.

The recorded calls are made again with one sample, or one position, exchanged for another: what moves depends on it.
"""

import functools
import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import RESHAPES, Op, Value, loss_part
from hookboard.tracing.positions import (
    ROUNDING,
    Meeting,
    ahead_of,
    meetings_of,
    of_positions,
    other_positions,
    tensor_of,
)
from hookboard.tracing.rules import TracedStep
from hookboard.tracing.tape import UNANSWERED, Tape

AGREEMENT = 1e-2
"""A replay whose loss is further off than this share of it is not used (a choice): half precision rounds."""

PART = 4096
"""About so many numbers of each sample are compared (a choice)."""

OVERLAP = 0.75
"""If a smaller share of a sample's targets meets its outputs, they are another sample's targets (a choice)."""


def dependence(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for outputs that depend on other samples than their targets, or on what they are to predict.

    Nothing is asked if the replayed loss is another one than that of the step.
    """
    meetings = meetings_of(done)
    try:
        count, is_clear = _count_of(done)
        found = [one for meeting in meetings[:4] for one in ahead_of(done, meeting)]
        ahead = min(found, key=lambda one: one.shift != 1, default=None)  # others may predict further ahead
        variants = [{}, _other_sample(done, count)] + (other_positions(done, ahead) if ahead is not None else [])
        if not any(variants):
            return
        flat = [one for one in meetings if len(one.target.shape) == 1 < len(one.target.origin.shape)][: bool(count)]
        kept = [*meetings, *([ahead.meeting] if ahead is not None else ())]
        moves = _Moves(count, [value for one in kept for value in (one.output, one.target)])
        for value, other in variants[1].items():
            moves.note(None, value, [tensor_of(done, value), other])
        tape = Tape(done.step, done.loss)
        loss = float(tape.run(variants, moves.note)[0].detach().double().mean())
        wanted = [Tape(done.step, one.target).run(variants[:2]) for one in flat]
    except UNANSWERED as error:
        said = str(error).split(". ")[0].splitlines()[0] if str(error) else type(error).__name__
        done.step.not_asked = "a call of the step cannot be replayed" if "aten::" in said else said
        return
    if not math.isclose(loss, done.number, rel_tol=AGREEMENT, abs_tol=1e-6):
        done.step.not_asked = "replaying the step gives a different loss"
        return
    if is_clear:
        yield from _of_samples(done, tape, moves)
    for meeting, targets in zip(flat, wanted, strict=True):
        yield from _of_orders(meeting, moves.kept[meeting.output][:2], targets)
    if ahead is not None:
        yield from of_positions(ahead, moves.kept[ahead.meeting.output])


BATCH_MIXING = Rule("batch_mixing", dependence, of="step")
FUTURE_LEAK = Rule("future_leak", None, of="step", gives="alarm")


def _count_of(done: TracedStep) -> tuple[int, bool]:
    """Return the length of the batch's first dimension, 0 if its tensors differ, and whether it counts the samples.

    It does if the loss depends on a tensor of the batch with one number per sample, shape (n,) or (n, 1), on pictures,
    on tensors that differ in their second dimension, or on nothing but matrices of real numbers with as many rows.
    """
    given = [value for value in done.loss.ancestors() if value.path is not None and value.op is None]
    shapes = [value.shape for value in given]
    counts = {shape[0] for shape in shapes if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)}
    if all(len(shape) == 2 for shape in shapes) and all(tensor_of(done, value).is_floating_point() for value in given):
        counts |= {shape[0] for shape in shapes}
    first = counts or {shape[0] for shape in shapes if shape}
    # Pictures have their samples first; sequences may have them second, but then all tensors have.
    is_clear = not any(len(shape) == 3 and shape[0] == shape[1] for shape in shapes) and (
        len(counts) == 1
        or len({shape[1] for shape in shapes if len(shape) > 1}) > 1
        or max(map(len, shapes), default=0) > 3
    )
    count = first.pop() if len(first) == 1 else 0
    return count if count > 1 else 0, is_clear


def _other_sample(done: TracedStep, count: int) -> dict[Value, Tensor]:
    """Return the tensors of the batch with the first sample exchanged for another one."""
    changed = {}
    for value in done.loss.ancestors() if count else ():
        axes = [axis for axis, size in enumerate(value.shape) if size == count]
        if value.path is not None and value.op is None and axes:
            rows = tensor_of(done, value).clone().movedim(axes[0], 0)
            others = (rows != rows[0]).reshape(count, -1).sum(1)
            rows[0] = rows[others.argmax()].clone()
            changed[value] = rows.movedim(0, axes[0])
    return changed


class _Moves:
    """What moves in each variant, noted while the calls are made again.

    Args:
        count: how many samples the batch has; 0 if that is not clear.
        kept: the values whose numbers are all kept.
    """

    def __init__(self, count: int, kept: list[Value]) -> None:
        self.count = count
        self.of: dict[Value, list[tuple[Tensor, Tensor]]] = {}
        """For each value of real numbers, in each layout that it may have, by how much each sample moves, and how many
        samples are none of those before, wherever they stand."""
        self.most: dict[Value, Tensor] = {}
        """By how much they move at most."""
        self.kept: dict[Value, list[Tensor]] = {value: [] for value in kept}

    def note(self, op: Op | None, value: Value, tensors: list[Tensor]) -> None:
        if value in self.kept:
            self.kept[value] = [tensor.detach() for tensor in tensors]
        before, after = (tensor.detach() for tensor in tensors[:2])
        if not self.count or before.shape != after.shape or not (before.is_floating_point() and before.numel()):
            return
        axes = [axis for axis, size in enumerate(before.shape) if size == self.count]
        layouts = [[one.movedim(axis, 0) for one in (before, after)] for axis in axes]
        # Samples and positions may be in one dimension, and features be as many as samples.
        given = [one.shape for one in op.inputs] if op is not None else []
        is_cut_anew = len(given) == 1 and math.prod(given[0]) == before.numel() and given[0][:1] != before.shape[:1]
        if not (axes and is_cut_anew) and before.dim() and len(before) % self.count == 0:
            cut = [one.reshape(-1, self.count, *one.shape[1:]).transpose(0, 1) for one in (before, after)]
            layouts += [[before, after], cut]
        parts = [[_part(one, self.count) for one in pair] for pair in layouts]
        self.of[value] = [(_moved(*pair), _strays(*_keys(*pair))) for pair in parts]
        self.most[value] = self.of[value][0][0].amax() if layouts else _moved(_part(before, 1), _part(after, 1)).amax()

    def mixes(self, value: Value, *, by_place: bool = False) -> bool | None:
        """Return whether other samples than one move; None if the samples cannot be told apart, or none moves.

        Args:
            value: the value.
            by_place: whether samples that are put in another order move too.
        """
        found = [(moved.tolist(), float(strays)) for moved, strays in self.of.get(value, ())]
        largest = max((max(moved) for moved, _ in found), default=0.0)
        if not largest > 0:
            return None
        least = ROUNDING * min(largest, 1e30)
        return all(max(moved[1:]) > least and (by_place or strays > 1) for moved, strays in found)

    def mixes_pairs(self, meeting: Meeting) -> bool:
        """Return whether more than one output meets another target when one sample changes."""
        parts = [
            [_part(one, self.count) for one in self.kept[value][:2] if one.shape[:1] == (self.count,)]
            for value in (meeting.output, meeting.target)
        ]
        if not all(len(pair) == 2 and pair[0].shape == pair[1].shape for pair in parts):
            return False
        outputs, targets = (_keys(*pair) for pair in parts)
        before, after = (2 * one + other for one, other in zip(outputs, targets, strict=True))
        return float(_strays(before, after)) > 1


def _part(tensor: Tensor, rows: int) -> Tensor:
    """Return a part of the numbers of each row, shape (rows, numbers)."""
    stride = tensor.numel() // (rows * PART) | 1  # odd, so that it meets all channels
    return tensor.reshape(rows, -1)[:, ::stride]


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """Return by how much the rows move at most, shape (rows,)."""
    # Infinities that stay have not moved.
    return (after - before).abs().float().masked_fill(after == before, 0).nan_to_num(torch.inf).amax(1)


def _keys(*tensors: Tensor) -> list[Tensor]:
    """Return a number for each row, which another row has only if it is the same but for rounding."""
    parts = [one.double().nan_to_num(0.0, 0.0, 0.0) for one in tensors]
    weights = torch.arange(1.0, 1 + parts[0].shape[1], dtype=torch.double, device=parts[0].device).sin()
    return [one @ weights / parts[0].abs().amax().clamp(min=1e-300) for one in parts]


def _strays(before: Tensor, after: Tensor) -> Tensor:
    """Return how many keys are none of those before, shape ()."""
    known = before.sort().values
    place = torch.searchsorted(known, after).clamp(1, len(known) - 1)
    apart = torch.minimum((after - known[place - 1]).abs(), (after - known[place]).abs())
    return (apart > ROUNDING * known.abs().amax()).sum()


def _of_samples(done: TracedStep, tape: Tape, moves: _Moves) -> Iterator[Finding]:
    """Yield a finding for the first call that takes samples and mixes them, if the outputs are mixed in the end."""
    of_loss, meetings = set(loss_part(done.loss)), meetings_of(done)
    heads = [one for op in of_loss for one in op.inputs if one.of_parameters and one.op not in of_loss]
    is_in_model = any(moves.mixes(one) for one in heads)
    pairs = [one for one in meetings if moves.mixes_pairs(one) and moves.mixes(one.target, by_place=True) is not True]
    compared = [{value.op for value in one.output.ancestors()} for one in pairs]
    # Those in another order are mixed only if they meet the targets of others.
    for by_place, op in itertools.product((False, True), tape.ops):
        mixes = functools.partial(moves.mixes, by_place=by_place)
        mixed = [one for one in op.results if mixes(one)]
        given = [one for one in op.inputs if one.path is not None or (one in moves.most and float(moves.most[one]) > 0)]
        if not mixed or not given or any(map(mixes, given)):
            continue
        result = mixed[0]
        if not result.requires_grad and op.name not in RESHAPES:
            return  # inputs that are mixed on purpose, as in mixup; or choices, as of experts
        if not (is_in_model and not by_place) and not any(op in ops for ops in compared):
            continue
        if not _is_meant(op, given, result, moves):
            # Rows of numbers may be the positions of one sequence, or the objects of one scene.
            is_open = len(given[0].shape) == 2 and given[0].shape[0] == moves.count and op not in of_loss
            yield _mixing(op, given[0], result, may_be_meant=is_open)
        return


def _is_meant(op: Op, given: list[Value], result: Value, moves: _Moves) -> bool:
    """Return True if a call shows that it mixes samples on purpose.

    It takes two outputs, a target, a number of the whole batch, such as a deviation, or an adjacency matrix; or it
    takes the batch as one sequence, or as a list; or it makes a matrix of all pairs, or a number of the whole batch.
    """
    count, first = result.shape.count(moves.count), given[0].shape
    others = [one for one in op.inputs if one not in given and one.parameter is None and not one.requires_grad]
    is_adjacency = any(len(one.shape) > 1 and one.shape[-1] == one.shape[-2] for one in others)
    is_adjacency |= any(len(one.origin.shape) == 2 == one.origin.shape[0] for one in others)  # pairs of nodes
    is_one = math.prod(result.shape) == moves.count or (len(given[0].shape) == 3 and given[0].shape[1] == 1)
    is_whole = any(not moves.of.get(one, [()]) for one in given) or count < first.count(moves.count)
    is_pairs = count > max(1, first.count(moves.count)) or result.shape == (moves.count,) * 2
    is_target = any(not one.of_parameters for one in given) and any(one.of_parameters for one in given)
    return len(set(given)) > 1 or is_pairs or is_target or is_whole or is_adjacency or is_one


def _mixing(op: Op, first: Value, result: Value, *, may_be_meant: bool) -> Finding:
    shape, count = list(first.shape), first.shape[0]
    if op.name in ("view", "reshape") and count in result.shape:
        is_clear = len(result.shape) == len(shape) == len(set(shape))
        order = ", ".join(str(shape.index(size)) for size in result.shape) if is_clear else "..."
        is_exchange = list(result.shape) == [shape[1], count, *shape[2:]]
        moved = (
            f"reshapes {shape} to {list(result.shape)} without moving elements: dimension {result.shape.index(count)} "
            "is then as long as the batch, but each index along it mixes several samples"
        )
        advice = f"use {'transpose(0, 1)' if is_exchange else f'permute({order})'} in place of the {op.name}"
    else:
        moved = (
            f"mixes samples of its input of shape {shape}: when the first sample changes, so do the outputs of other "
            "samples"
        )
        advice = f"pass the dimensions in the order {op.name} expects, so that samples do not mix"
        if op.name in ("softmax", "log_softmax"):
            advice = f"use dim={1 if len(shape) == 2 else -1}"
        elif op.name in ("getitem", "gather", "index_select", "take_along_dim"):
            advice = "keep each sample's index within its own rows"
        elif op.name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward"):
            advice = "set batch_first=True"
    return Finding(
        op.place.module,
        f"{op.name} {op.place} {moved}",
        advice,
        "note" if may_be_meant else "alarm",
        rule="batch_mixing",
    )


def _of_orders(meeting: Meeting, outputs: list[Tensor], targets: list[Tensor]) -> Iterator[Finding]:
    """Yield an alarm if the rows of outputs and targets that belong to the first sample are not the same rows."""
    if len(outputs[0]) != len(targets[0]):
        return
    of_output = (outputs[0] != outputs[1]).reshape(len(outputs[0]), -1).any(1)
    of_target, op = targets[0] != targets[1], meeting.op
    if bool(of_target.any()) and (of_output & of_target).sum() < OVERLAP * of_target.sum():
        elsewhere = (of_output & ~of_target).nonzero().flatten().tolist()
        if elsewhere:
            yield Finding(
                op.place.module,
                f"{op.name} {op.place} compares outputs of the first sample with targets of others, as in row "
                f"{elsewhere[-1]} of {len(of_output)}, because outputs and targets are flattened in different orders",
                "transpose the outputs or the targets before they are flattened, so that both have shape "
                "(samples, positions)",
                "alarm",
                rule="loss_shape",
            )
