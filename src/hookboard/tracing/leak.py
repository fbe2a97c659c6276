"""Finds outputs that see their targets, among the inputs or at other positions, and tokens without an order."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.base.torch_private import parameters_in
from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import RESHAPES, Value, asked
from hookboard.tracing.dependence import RECURRENT, DataInput, Layout, firsts_behind, layouts_of
from hookboard.tracing.loss_rules import LossCall, TracedStep, losses_of

NEXT_SHARE = 0.9
"""If more than this share of the targets are later inputs, the model predicts these (a choice)."""

MIN_POSITIONS = 4
"""Shorter sequences are not judged (a choice)."""

SEEN = 1e-5
"""A position is seen if its gradient exceeds this share of the largest (a choice): masks of -10000 leave a bit."""

MAX_COLUMNS = 4096
"""Wider data are not searched for the targets (a choice)."""

ENOUGH_BITS = 64
"""Targets of fewer bits may equal a column of the data by chance (a choice)."""

MAX_TARGETS = 64
"""The first so many targets of a sample, such as a picture, and loss calls of a step are searched (a choice)."""

MAX_ROWS, MAX_PLACES = 8, 1024
"""So many rows of tokens, and so many tokens of each, are looked at (choices)."""

SAME = 1e-5
"""Outputs are the same if they differ by less than this share of their spread (a choice): kernels round."""


@asked
def token_order(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if equal tokens at different positions have equal outputs that depend on other tokens too."""
    for call in losses_of(done)[:4]:
        source = next((one for one in call.output.ancestors() if _are_tokens(done, one)), None)
        wanted = call.wanted.detach()
        if source is None or wanted.numel() != math.prod(source.shape) or not done.graph.has(call.output):
            continue
        if any(one.shift for one in _ahead_of(done, call)):  # a model of the next token sees those before alone
            continue
        weights = parameters_in(done.step.model)
        places = [weights[one.parameter] for one in call.output.ancestors() if one.parameter in weights]
        if any(source.shape[1] in one.shape[:-1] and not bool(one.any()) for one in places):  # which begin at 0
            continue
        tokens, outputs = done.step.given[source], _by_position(call.values.float(), Ahead(call, source, 0, 0, 0))
        if outputs is None or bool((wanted.reshape(tokens.shape) == wanted.reshape(tokens.shape)[:, :1]).all()):
            continue  # one answer for all tokens, as for a set
        rows = tokens[:MAX_ROWS, :MAX_PLACES]
        before = (rows[:, :, None] == rows[:, None]).int().argmax(1)  # where the token stands first
        again = before != torch.arange(rows.shape[1], device=rows.device)
        here = outputs[: len(rows), : rows.shape[1]]
        distances = (here - here.take_along_dim(before[:, :, None], 1)).abs().amax(2)
        spread = (outputs - outputs.mean((0, 1))).abs().max()
        if not bool(again.any()) or not bool(distances[again].max() <= SAME * spread) or not bool(spread > 0):
            continue  # dropout, and all else that is drawn, hides it too
        sample, other = again.nonzero()[0].tolist()
        first = int(before[sample, other])
        seen = _seen_from(done, Ahead(call, source, 0, sample, first), first) or set()
        if len(seen) > 1:
            taking = next(op for op in done.step.ops if any(one.origin is source for one in op.inputs if one.of_batch))
            yield Finding(
                "",
                f"the order of the tokens in {taking.name} {taking.place} has no influence: token "
                f"{int(tokens[sample, first])} has the same output at positions {first} and {other}, although outputs "
                "depend on the other tokens too",
                "add a positional embedding or encoding to the token embeddings",
                "alarm",
            )
            return


TOKEN_ORDER = Rule("no_influence", token_order, of="step", gives="alarm")


def _are_tokens(done: TracedStep, value: Value) -> bool:
    tensor = done.step.given.get(value)
    if tensor is None or tensor.dim() != 2 or tensor.shape[1] < MIN_POSITIONS:
        return False
    return not (tensor.is_floating_point() or tensor.is_complex()) and tensor.element_size() > 1


@asked
def target_leak(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if a column of the data that enter a linear layer is the target."""
    found = list[tuple[LossCall, DataInput, int]]()
    for call in losses_of(done)[:MAX_TARGETS]:
        if call.target.origin in done.step.given and call.wanted.dim() and not call.wanted.is_complex():
            found += [(call, op.seen, column) for op in done.step.ops for column in _columns_of(done, call, op.seen)]
    if not found:
        return
    call, data, column = found[0]
    width = data.tensor[0].numel()
    if len({other for _, one, other in found if one is data}) <= width / 2:  # else it is to give its input back
        yield Finding(
            data.op.place.module,
            f"column {column} of the {width} that enter the model in {data.op.name} {data.op.place} is the target of "
            f"{call.op.name} {call.op.place}, in all {len(call.wanted)} samples",
            "remove this column from the inputs, unless it is known at prediction time",
            "alarm",
        )


TARGET_LEAK = Rule("target_leak", target_leak, of="step", gives="alarm")


def _columns_of(done: TracedStep, call: LossCall, seen: object) -> list[int]:
    """Return which columns of the data that a linear layer takes are targets that its output is compared with."""
    if not isinstance(seen, DataInput) or seen.op.name != "linear" or not done.graph.has(seen.op.results[0]):
        return []
    rows, wanted = seen.tensor, call.wanted.detach()
    if rows.dim() < 2 or len(rows) != len(wanted) or not 1 < rows[0].numel() <= MAX_COLUMNS:
        return []
    columns, targets = rows.reshape(len(rows), -1), wanted.reshape(len(wanted), -1)[:, :MAX_TARGETS]
    telling = [i for i, column in enumerate(targets.T) if _bits_in(column) >= ENOUGH_BITS]
    equal = ((i, (targets[:, i] == columns.T).all(1).nonzero().flatten().tolist()) for i in telling)
    exact = [(i, same[0]) for i, same in equal if same]
    if not exact or (len(telling) > 1 and 2 * len(exact) > len(telling)):
        return []
    # A weight that a call has computed may be masked, as in an autoregressive flow.
    if len(seen.op.inputs) < 2 or seen.op.inputs[1].parameter is None or not done.graph.has(call.output):
        return []
    (gradient,) = done.graph.gradients(call.output, torch.ones(call.output.shape), [seen.op.results[0]])
    return [] if gradient is None or not bool(gradient.any()) else [column for _, column in exact]


def _bits_in(column: Tensor) -> float:
    """Return the entropy of the values in a column, in bits, times the number of elements: 0 if all are equal."""
    _, counts = column.unique(return_counts=True)
    shares = counts.double() / len(column)
    return float(-(shares * shares.log2()).sum()) * len(column)


class Ahead(NamedTuple):
    """Targets that are the inputs `shift` positions later, and a place to test whether the output sees them."""

    call: LossCall
    source: Value  # the tensor of the batch, shape (samples, positions, ...)
    shift: int
    sample: int
    position: int  # of the targets, near the middle


@asked
def future_leak(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if an output depends on its own target, or if tokens are shifted twice."""
    found = [each for call in losses_of(done)[:4] for each in _ahead_of(done, call)]
    ahead = min(found, key=lambda each: each.shift != 1, default=None)  # others may predict further ahead
    if ahead is None or not done.graph.has(ahead.call.output):
        return
    op, shift, position = ahead.call.op, ahead.shift, ahead.position
    own = position + shift
    seen = _seen_from(done, ahead, position)
    if seen is None:
        return
    later = "one position later" if shift == 1 else "two positions later"
    is_of_tokens = ahead.call.target.shape != ahead.call.output.shape
    if shift and own in seen:
        yield Finding(
            "",
            f"the targets of {op.name} {op.place} are the inputs {later}, and the output at position {position} "
            "depends on that input, so the model sees what it should predict",
            "pass attention a causal mask, which hides later positions, and avoid bidirectional layers",
            "alarm",
            rule="future_leak",
        )
    elif shift == 2 and is_of_tokens and own - 1 not in seen:
        yield Finding(
            op.place.module,
            f"the targets of {op.name} {op.place} are the tokens two positions later, and the output does not see the "
            "token in between, so the targets are shifted twice",
            "shift once: a loss that shifts internally needs unshifted outputs and tokens",
            "alarm",
            rule="targets",
        )
    # Where the output before sees it too, as in an autoencoder, there is more to it than to copy.
    elif shift == 0 and is_of_tokens and own in seen and own not in (_seen_from(done, ahead, position - 1) or {own}):
        yield Finding(
            "",
            f"the targets of {op.name} {op.place} are the model's input tokens at the same positions, so the "
            "model only has to copy them",
            "shift the targets: pass tokens[:, :-1] to the model, and compare its outputs with tokens[:, 1:]",
            "alarm",
            rule="future_leak",
        )


FUTURE_LEAK = Rule("future_leak", future_leak, of="step", gives="alarm")


def _ahead_of(done: TracedStep, call: LossCall) -> Iterator[Ahead]:
    """Yield where the targets of a call are its inputs one or two positions later, or the same; at most one place."""
    output, target, wanted = call.output, call.target, call.wanted.detach()
    sources = [value for value in output.ancestors() if value in done.step.given]
    sources = [value for value in sources if len(value.shape) > 1 and value.shape[1] >= MIN_POSITIONS]
    sources = [value for value in sources if not _is_read_twice(value, output)]
    if not target.of_batch or not wanted.dim() or call.op.arguments.get("reduction") == "none":  # a mask may follow
        return
    for source in sources:
        samples, positions = source.shape[:2]
        inputs = done.step.given[source].detach()
        if torch.bool in (wanted.dtype, inputs.dtype):  # a mask
            continue
        if wanted.numel() % samples or inputs.numel() % (samples * positions):
            continue
        size = inputs.numel() // samples // positions
        each = wanted.numel() // samples // size
        if not MIN_POSITIONS <= each <= positions or wanted.numel() != samples * each * size:
            continue
        if any(_is_cut_at_front(part, range(each, positions + 1)) for part in output.ancestors()):
            continue  # then its rows are no positions
        now, then = inputs.reshape(samples, positions, size), wanted.reshape(samples, each, size)
        for shift in (1, 2, 0):
            length = min(each, positions - shift)
            aimed, later = then[:, :length], now[:, shift : shift + length]
            counts = (aimed != call.op.arguments.get("ignore_index", -100)).all(-1)
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
                    yield Ahead(call, source, shift, sample, position)
                    return


def _is_cut_at_front(value: Value, lengths: range) -> bool:
    """Return True if a slice has left out first positions, as `h[:, 3:]`, of a dimension with one of these lengths."""
    if value.op is None or value.op.name != "getitem":
        return False
    index, shape = value.op.arguments.get("1"), value.op.inputs[0].shape
    index = index if isinstance(index, tuple) else (index,)
    if ... in index:
        at = index.index(...)
        index = (*index[:at], *[None] * (len(shape) - len(index) + 1), *index[at + 1 :])
    return any(
        isinstance(part, slice) and part.start and size in lengths for part, size in zip(index, shape, strict=False)
    )


def _is_read_twice(source: Value, output: Value) -> bool:
    """Return True if layers take the source in two ways, as an encoder, which sees all of it, and a decoder do."""
    readers = list[tuple[Value, tuple[str, ...]]]()
    for op in {value.op for value in output.ancestors() if value.op is not None}:
        weights = tuple(one.parameter for one in op.inputs if one.parameter is not None)
        of_batch = [one for one in op.inputs if one.of_batch and not one.of_parameters]
        readers += [(one, weights) for one in of_batch if weights and source in one.ancestors()]
    return len({one for one, _ in readers}) > 1 or len({weights for _, weights in readers}) < len(readers)


def _seen_from(done: TracedStep, ahead: Ahead, position: int) -> set[int] | None:
    """Return the positions of the source on which the output at a position depends; None if that cannot be told."""
    weights = torch.zeros(ahead.call.output.shape)
    placed = _by_position(weights, ahead)
    starts = [(one, taken) for one in firsts_behind(ahead.call.output, done.graph) if (taken := _taken_in(one, ahead))]
    if placed is None or placed.data_ptr() != weights.data_ptr() or not starts:
        return None
    one = placed[ahead.sample, position]
    one.copy_(torch.arange(1.0, 1 + len(one)).sin())
    gradients = done.graph.gradients(ahead.call.output, weights, [one for one, _ in starts])
    sizes = torch.zeros(ahead.source.shape[1])
    for (first, (layout, axis)), gradient in zip(starts, gradients, strict=True):
        if gradient is not None:
            each = layout(gradient)[ahead.sample].movedim(axis, 0).flatten(1).abs().amax(1).float().cpu()
            if first.op is not None and first.op.name in RECURRENT:  # which has read all before, or all
                is_both = bool([*first.op.arguments.values()][-2])
                each = each.max().expand(len(each)) if is_both else each.flip(0).cummax(0).values.flip(0)
            sizes[: len(each)] += each
    return set((sizes > SEEN * sizes.max()).nonzero().flatten().tolist())


_KEEPING = frozenset({"embedding", "linear", "matmul", "mm", "getitem", "index_select", "mul", "add"})
"""Functions of the batch and of weights that keep positions apart; so do convolutions with kernels of one element."""

_STAYING = {"getitem"} | RESHAPES - {"index_select", "masked_select", "narrow", "select", "gather", "expand"}
_STAYING |= {"one_hot", "add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "long", "int"}
"""Functions of the batch that leave positions where they are, if slices begin with the first of them."""


def _taken_in(first: Value, ahead: Ahead) -> tuple[Layout, int] | None:
    """Return the layout by samples of a first tensor, and the dimension of its positions; None if that is not clear."""
    op, (samples, positions) = first.op, ahead.source.shape[:2]
    data = [] if op is None else [value for value in op.inputs if value.of_batch and not value.of_parameters]
    layouts = layouts_of(first, samples)
    if op is None or len(data) != 1 or len(layouts) != 1 or ahead.source not in data[0].ancestors():
        return None
    is_small = op.name.startswith("conv") and all(size == 1 for size in op.inputs[1].shape[2:])
    sizes = layouts[0](torch.empty(first.shape, device="meta")).shape[1:]
    # The last ones may be targets alone.
    axes = [axis for axis, size in enumerate(sizes) if positions - 2 <= size <= positions]
    if not axes or not (is_small or op.name in _KEEPING | RECURRENT) or not all(map(_stays, data[0].ancestors())):
        return None
    return layouts[0], axes[-1] if is_small else axes[0]


def _stays(value: Value) -> bool:
    """Return True if the positions of a tensor stand where they stood in what it was made of."""
    if value.op is None:
        return True
    index = value.op.arguments.get("1") if value.op.name == "getitem" else ()
    slices = [one for one in (index if isinstance(index, tuple) else (index,)) if one is not None and one is not ...]
    begin = all(isinstance(one, slice) and not one.start and one.step in (None, 1) for one in slices)
    return value.op.name in _STAYING and begin


def _by_position(output: Tensor, ahead: Ahead) -> Tensor | None:
    """Return an output as (samples, positions, numbers); None if that cannot be told."""
    target, source = ahead.call.target.shape, ahead.source.shape
    if output.dim() > 1 and output.shape != target and output.shape[:1] + output.shape[2:] == target:
        output = output.movedim(1, -1)  # classes come second
    each = math.prod(target) // source[0] // math.prod(source[2:])
    return output.reshape(source[0], each, -1) if output.numel() % (source[0] * each) == 0 else None
