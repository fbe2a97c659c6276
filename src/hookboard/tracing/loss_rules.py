"""Rules that find faults in a traced step, and the loss calls that they judge."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from hookboard.base.messages import warn_switched_off
from hookboard.health.rule import Finding, Rule
from hookboard.health.rules.shared import SCALE_TARGETS
from hookboard.tracing.calls import RESHAPES, Observer, Op, PartialGraph, Place, Value, loss_part
from hookboard.tracing.program import StepTrace

RANGES: dict[str, tuple[float, float]] = {
    "sigmoid": (0, 1),
    "hardsigmoid": (0, 1),
    "softmax": (0, 1),
    "tanh": (-1, 1),
    "hardtanh": (-1, 1),
    "softsign": (-1, 1),
    "relu": (0, math.inf),
    "relu6": (0, 6),
    "softplus": (0, math.inf),
    "log_softmax": (-math.inf, 0),
    "log_sigmoid": (-math.inf, 0),
}
"""The range of each function's outputs."""

FLAT = frozenset({"round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "heaviside"})
"""Functions whose gradient is 0 wherever it is defined."""

TAKES_LOGITS = frozenset({"cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"})
REGRESSION = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
BINARY = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits"})
LOSSES = TAKES_LOGITS | REGRESSION | BINARY | {"nll_loss", "kl_div"}
ROUNDING = 1e-3
"""How far numbers may be outside of a range: interpolation and half precision round (a choice)."""

SUM_DEVIATION = 0.1
"""How far the sum of probabilities may be from 1: half precision rounds (a choice)."""

OUT_OF_REACH_SHARE = 0.05
"""Targets out of reach are an alarm if they cost at least this share of the targets' variance (a choice)."""

UNSCALED_TARGETS = 10
"""A larger mean or deviation of regression targets is a note (a choice): most models begin with outputs of about 1."""

ONE_CLASS_SAMPLES = 32
"""So many samples, all of one of 3 or more classes, are an alarm (a choice): 1 batch in 10,000 if 3/4 of all are."""


class TracedStep(NamedTuple):
    """A step that has run, up to one of its losses."""

    step: StepTrace
    loss: Value
    trained: Collection[str]  # the names of the trainable parameters
    without: Collection[str]  # the names of those that no gradient reaches from any loss so far
    number: float  # the loss; NaN unless it is one real number
    graph: PartialGraph
    has_gradient: bool | None = None  # whether any loss gives a gradient that is not 0; None if that is not known
    still: Collection[Value] = ()  # terms that take parameters without a gradient, and do not depend on them


class LossCall(NamedTuple):
    """A call that compares an output with a target: of a loss function, or a subtraction."""

    op: Op
    output: Value
    target: Value
    values: Tensor  # the output, detached
    wanted: Tensor  # the target, detached
    counts_all: bool = True  # False with weights or `reduction="none"`, after which a mask may follow
    weight: Tensor | None = None  # of the classes, or of the positive one

    @property
    def ignored(self) -> int | None:
        """The class number of targets that do not count; None if the loss takes no class numbers."""
        takes_numbers = self.op.name in ("cross_entropy", "nll_loss") and not self.wanted.is_floating_point()
        return int(self.op.arguments.get("ignore_index", -100)) if takes_numbers else None

    @property
    def counts(self) -> Tensor:
        """Which targets count, shape of `wanted`, bool."""
        wanted = self.wanted.detach()
        return torch.ones_like(wanted, dtype=torch.bool) if self.ignored is None else wanted != self.ignored


def _of_loss(op: Op, tensors: Mapping[str, Tensor], results: Sequence[Tensor]) -> LossCall | None:
    """Return the call of a loss function that takes an `input` and a `target`; None for others."""
    if {"input", "target"} <= tensors.keys():
        output, target = op.arguments["input"], op.arguments["target"]
        counts_all = op.arguments.get("reduction") != "none" and "weight" not in tensors
        weight = tensors.get("pos_weight", tensors.get("weight"))
        return LossCall(op, output, target, tensors["input"].detach(), tensors["target"].detach(), counts_all, weight)
    return None


def _of_difference(op: Op, tensors: Mapping[str, Tensor], results: Sequence[Tensor]) -> LossCall | None:
    """Return a subtraction between a tensor that needs a gradient and one from the batch alone; None for others."""
    pairs = list(zip(op.inputs, tensors.values(), strict=False))
    if len(pairs) == 2:
        for (output, values), (target, wanted) in (pairs, pairs[::-1]):
            if output.requires_grad and target.of_batch and not target.of_parameters:
                return LossCall(op, output, target, values.detach(), wanted.detach())
    return None


def losses_of(done: TracedStep) -> Sequence[LossCall]:
    """Return the calls of loss functions, and each output minus target that is summed up to the loss."""
    if done.loss in done.step.loss_calls:  # many rules ask
        return done.step.loss_calls[done.loss]
    reduced, behind = {id(op) for op in _only_reduced(done.loss)}, list(done.loss.ancestors())
    is_known = all(value.op or value.path or value.parameter or not value.requires_grad for value in behind)
    leading = {id(value.op) for value in behind}
    # A call on an output that needs no gradient computes a metric.
    calls = [op.seen for op in done.step.ops if isinstance(op.seen, LossCall) and op.seen.output.requires_grad]
    calls = [call for call in calls if call.op.name in LOSSES or id(call.op) in reduced]
    # Calls that do not lead to the loss, as another model's, count only if it comes from code that hides its calls.
    found = [call for call in calls if id(call.op) in leading]
    return done.step.loss_calls.setdefault(done.loss, found if found or is_known else calls)


_REDUCING = frozenset({"mean", "sum", "pow", "square", "abs", "sqrt", "norm", "clamp", "neg", "add", "radd"})
_REDUCING |= {"mul", "rmul", "div", "truediv", "rtruediv"}


def _only_reduced(loss: Value) -> Iterator[Op]:
    """Yield the calls from which functions in `_REDUCING` alone lead to the loss, and the calls of these functions."""
    waiting, seen = [loss], set[int]()
    while waiting:
        value = waiting.pop()
        op = value.op
        if op is not None and id(op) not in seen:
            seen.add(id(op))
            yield op
            is_one = len({id(given) for given in op.inputs}) == 1  # also of a difference times itself
            if op.name in _REDUCING and (is_one or math.prod(value.shape) == 1):  # not loss times mask
                waiting.extend(op.inputs)


def loss_input(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a loss function whose input is not what it takes, and for a softmax of probabilities."""
    yield from _softmax_twice(done)
    for call in losses_of(done):
        name, made_by, values = call.op.name, call.output.made_by, call.values
        # cross_entropy gives the same for log-probabilities as for logits.
        is_harmless = made_by == "softplus" or (made_by == "log_softmax" and name == "cross_entropy")
        if name in TAKES_LOGITS and made_by in RANGES and not is_harmless:
            yield _of_logits(call)
        if name == "nll_loss" and values.dim() > 1 and values.is_floating_point() and not _weighs_logs(call.output):
            sums = values.double().exp().sum(1)
            sums = sums[call.counts]
            if bool(((sums - 1).abs() > SUM_DEVIATION).any()):
                came = f" (the input comes from {_origin(call.output)})" if made_by else ""
                yield Finding(
                    call.op.place.module,
                    f"nll_loss {call.op.place} expects log-probabilities, whose exp sums to 1; the exp of its "
                    f"input sums to {in_numbers(sums)}{came}",
                    _for_nll_loss(call),
                    "alarm",
                )
        if name == "kl_div" and bool((values > ROUNDING).any()):
            yield Finding(
                call.op.place.module,
                f"kl_div {call.op.place} expects log-probabilities, which are at most 0, but its input is "
                f"{in_numbers(values)}{_from(call.output)}",
                f"use log_softmax{' in place of the softmax' * (made_by == 'softmax')}: kl_div expects "
                "log-probabilities",
                "alarm",
            )


_TRANSPOSING = frozenset({"t", "T", "mT", "transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims"})


def _softmax_twice(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a softmax of what a softmax has given, over the same dimension; one for each line."""
    behind = (value.op for value in done.loss.ancestors() if value.op is not None and value.op.inputs)
    seen = set[Place]()
    for op in (op for op in behind if op.name in ("softmax", "log_softmax")):
        value, dim, place = op.inputs[0], _dim_of(op), op.place
        while value.op is not None and value.op.name in RESHAPES - _TRANSPOSING:
            value = value.op.inputs[0]
        if value.made_by != "softmax" or value.op is None or dim is None or _dim_of(value.op) != dim:
            continue
        size = value.shape[dim]
        if op.inputs[0].shape[dim] == size > 1 and place not in seen:
            seen.add(place)
            yield Finding(
                place.module,
                f"{op.name} {place} is applied to the output of softmax {value.op.place}: for inputs between 0 and 1, "
                f"the largest probability is at most {math.e / (math.e + size - 1):.2g} (uniform is {1 / size:.2g})",
                f"pass the logits to this {op.name}, or remove it",
                "alarm",
            )


LOSS_INPUT = Rule("loss_input", loss_input, of="step", gives="alarm")


def _weighs_logs(value: Value) -> bool:
    """Return True if a value is log-probabilities that were multiplied or selected since, as in a focal loss."""
    while (
        value.op is not None
        and value.op.name in RESHAPES
        and math.prod(value.op.inputs[0].shape) == math.prod(value.shape)
    ):
        value = value.op.inputs[0]
    before = value.ancestors(lambda one: one.op is not None and not any(given.parameter for given in one.op.inputs))
    made_by = [one.op.name for one in before if one.op is not None]
    return "log_softmax" in made_by[1:] and made_by[0] != "exp"


def _for_nll_loss(call: LossCall) -> str:
    """Return the advice for an `nll_loss` that gets something other than log-probabilities."""
    made_by = call.output.made_by
    sums = call.values.double().sum(1)
    if bool((call.values < 0).any()) or bool(((sums - 1).abs() > SUM_DEVIATION).any()):
        if made_by in ("softmax", "log_softmax"):
            return f"use log_softmax(dim=1) in place of the {made_by}, which runs over another dimension"
        return "apply log_softmax(dim=1) first, or pass the raw logits to cross_entropy"
    remedies = {"exp": "remove the exp", "softmax": "use log_softmax in place of the softmax"}
    return remedies.get(made_by, "take the logarithm of its input") + ": nll_loss gets probabilities"


def _of_logits(call: LossCall) -> Finding:
    """Return the alarm for a loss that takes logits and got the output of a function such as softmax."""
    made_by, classes = call.output.made_by, call.values.shape[1] if call.values.dim() > 1 else 1
    gives_probabilities = RANGES[made_by] == (0, 1) or made_by.startswith("log_")
    why = "where probabilities are needed, compute them outside the loss"
    why = why if gives_probabilities else "logits may have any value"
    low, high = _limits_of(call.output) or (-math.inf, math.inf)
    bound = ""
    if (
        call.op.name == "cross_entropy"
        and call.counts_all
        and math.isfinite(low)
        and math.isfinite(high)
        and classes > 1
    ):
        least = math.log1p((classes - 1) * math.exp(low - high))
        bound = f"; with {classes} logits from {low:g} to {high:g}, the loss of a sample cannot fall below {least:.3g}"
    return Finding(
        _module_of(call.output),
        f"{call.op.name} {call.op.place} expects logits, but its input comes from {_origin(call.output)}{bound}",
        f"remove the {made_by}; {why}",
        "alarm",
    )


def loss_shape(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if outputs and targets broadcast, or if a view mixes positions and classes in front of a loss."""
    yield from _broadcast(done)
    yield from _mixed(done)


LOSS_SHAPE = Rule("loss_shape", loss_shape, of="step", gives="alarm")


def _broadcast(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm if output and target broadcast so that each output is compared with every target."""
    for op in loss_part(done.loss):
        for output, target in itertools.permutations(op.inputs, 2) if len(op.inputs) < 4 else ():
            if not output.requires_grad or not target.of_batch or target.requires_grad or output.shape == target.shape:
                continue
            # All pairs are wanted where both were given a dimension for it, as of quantiles.
            is_regression = op.name in REGRESSION and not all(
                side.op and _makes_pairs(side.op) for side in (output, target)
            )
            both = _common_shape(output.shape, target.shape)
            # Outside of losses for regression, other shapes than (n, 1) and (n,) are meant to combine all pairs.
            if both not in (output.shape, target.shape, ()) and (
                is_regression or (both == op.results[0].shape and _is_column_and_row(output, target))
            ):
                yield Finding(
                    op.place.module,
                    f"{op.place}, an output of shape {list(output.shape)} is compared with targets of shape "
                    f"{list(target.shape)}: broadcasting to {list(both)} compares each output with every target",
                    "give both the same shape, with squeeze(1) or unsqueeze(1)",
                    "alarm",
                )


def _common_shape(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to; () if they do not."""
    try:
        return tuple(torch.broadcast_shapes(one, other))
    except RuntimeError:
        return ()


def _is_column_and_row(one: Value, other: Value) -> bool:
    """Return True for the shapes (n, 1) and (n,) with n > 1, unless a call has made one so to combine all pairs."""
    row, column = sorted((one, other), key=lambda value: len(value.shape))
    is_shape = len(row.shape) == 1 and row.shape[0] > 1 and column.shape == (*row.shape, 1)
    return is_shape and not any(value.op is not None and _makes_pairs(value.op) for value in (row, column))


def _makes_pairs(op: Op) -> bool:
    """Return True if a call may make a row or column on purpose, to combine all pairs: an index, view or reduction."""
    is_column_of_row = op.name in ("view", "reshape") and len(op.inputs[0].shape) == 1
    return is_column_of_row or op.name in _MAKING_PAIRS


_MAKING_PAIRS = frozenset({"getitem", "unsqueeze", "sum", "norm", "mean", "amax", "max", "logsumexp"})


def _mixed(done: TracedStep) -> Iterator[Finding]:
    """Yield an alarm for a view that exchanges classes and positions in front of a loss, in place of a transpose."""
    for call in losses_of(done):
        op = call.output.op
        if call.op.name not in ("cross_entropy", "nll_loss") or op is None or op.name not in ("view", "reshape"):
            continue
        before, after = op.inputs[0].shape, call.output.shape
        if len(before) > 2 and after == (before[0], before[-1], *before[1:-1]) != before:
            remedy = "transpose(1, 2)" if len(before) == 3 else "movedim(-1, 1)"
        elif _has_classes_second(op.inputs[0]) and after == (math.prod(before) // before[1], before[1]):
            remedy = f"movedim(1, -1).reshape(-1, {before[1]})"
        else:
            continue
        yield Finding(
            op.place.module,
            f"{op.name} {op.place} reshapes {list(before)} to {list(after)} without moving elements, which mixes "
            f"classes and positions in the input of {call.op.name} {call.op.place}",
            f"use {remedy} in place of the {op.name}",
            "alarm",
        )


def _has_classes_second(value: Value) -> bool:
    """Return True for shape (N, C, ...), unless a view made it or its last dimension may be the classes as well."""
    shape = value.shape
    is_made_by_view = value.op is not None and value.op.name in ("view", "reshape", "unflatten")
    return len(shape) > 2 and math.prod(shape[2:]) > 1 and shape[-1] != shape[1] and not is_made_by_view


def last_softmaxes(done: TracedStep) -> Iterator[tuple[LossCall, Op, tuple[int, ...], int]]:
    """Yield each (log-)softmax whose output a loss takes: loss call, softmax call, its input's shape, its `dim`."""
    calls = {id(call.output.origin.op): call for call in losses_of(done) if call.output.origin.op is not None}
    for key, call in calls.items():
        op = call.output.origin.op
        assert op is not None
        if id(op) != key or op.name not in ("softmax", "log_softmax") or not op.inputs:
            continue
        dim = _dim_of(op)
        if dim is not None:
            yield call, op, op.inputs[0].shape, dim


def _dim_of(op: Op) -> int | None:
    """Return the dimension of a softmax, counted from the last as -1; None if it is not known."""
    shape, dim = op.inputs[0].shape, op.arguments.get("dim", op.arguments.get("1"))
    if dim is None:  # torch then chooses, with a warning
        dim = 0 if len(shape) in (0, 1, 3) else 1
    return dim % len(shape) - len(shape) if isinstance(dim, int) and shape else None


def output_range(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for targets outside of the range of the model's last function."""
    yield from _sums_that_differ(done)
    for call in losses_of(done):
        limits = _limits_of(call.output) if call.counts_all else None
        if limits is None or call.op.name not in REGRESSION | {"binary_cross_entropy", "sub", "rsub"}:
            continue
        wanted = call.wanted.detach().double()
        beyond = (wanted - wanted.clamp(*limits)).abs()
        outside = int((beyond > ROUNDING).sum())
        # Noise around the end of a range is beyond it as well. Outputs side by side have a variance each.
        lost, varies = (
            (beyond.square().mean(0), wanted.var(0))
            if wanted.dim() == 2 and len(wanted) > 1
            else (beyond.square().mean(), wanted.var())
        )
        is_harmful = wanted.numel() < 2 or bool((lost > OUT_OF_REACH_SHARE * varies).any())
        if outside:
            yield Finding(
                _module_of(call.output),
                f"{_origin(call.output)} outputs values {_interval(limits)}, but the targets {call.op.place} are "
                f"{in_numbers(wanted)}, so {outside:,} of {wanted.numel():,} cannot be reached",
                f"remove the {call.output.made_by}, or scale the targets into its range",
                "alarm" if is_harmful else "note",
            )


OUTPUT_RANGE = Rule("output_range", output_range, of="step")


def _sums_that_differ(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for a softmax, whose outputs sum to 1, with targets that do not, such as several labels."""
    for call, op, shape, dim in last_softmaxes(done):
        is_compared = call.op.name in REGRESSION | {"binary_cross_entropy", "sub", "rsub"} and call.counts_all
        is_over_samples = len(shape) > 1 and dim % len(shape) == 0
        if op.name != "softmax" or not is_compared or is_over_samples or shape[dim] < 2 or call.wanted.shape != shape:
            continue
        sums = call.wanted.detach().double().sum(dim)
        outside = int(((sums - 1).abs() > SUM_DEVIATION).sum())
        if outside:
            yield Finding(
                op.place.module,
                f"the outputs of softmax {op.place} sum to 1, but the targets {call.op.place} sum to "
                f"{in_numbers(sums)} per sample, so those of {outside:,} of {sums.numel():,} samples cannot be reached",
                "if a sample can have several labels, remove the softmax and use binary_cross_entropy_with_logits, "
                "with sigmoid where probabilities are needed; otherwise scale the targets to sum to 1",
                "alarm" if outside > sums.numel() / 100 else "note",
            )


def targets(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for targets that the loss does not accept, that are all equal, or that should be scaled."""
    for call in losses_of(done):
        wanted, place = call.wanted.detach(), call.op.place
        if call.op.name in BINARY and call.counts_all and wanted.numel():
            low, high = float(wanted.min()), float(wanted.max())
            if low < -ROUNDING or high > 1 + ROUNDING:
                yield Finding(
                    place.module,
                    f"{call.op.name} {place} expects targets from 0 to 1, but they range from {low:g} to {high:g}, so "
                    "its loss has no lower bound",
                    "encode two classes as 0 and 1; for more classes use cross_entropy",
                    "alarm",
                )
        if call.op.name in REGRESSION | {"sub", "rsub"} and wanted.numel() > 1 and not wanted.is_complex():
            spread, mean = float(wanted.double().std()), float(wanted.double().mean())
            if spread > UNSCALED_TARGETS or abs(mean) > UNSCALED_TARGETS:
                yield Finding(
                    place.module,
                    f"the targets {place} are {in_numbers(wanted)}, with a mean of {mean:.3g} and a standard "
                    f"deviation of {spread:.3g}",
                    SCALE_TARGETS,
                    is_root=True,
                )
        yield from _all_the_same(call)


TARGETS = Rule("targets", targets, of="step")


def _all_the_same(call: LossCall) -> Iterator[Finding]:
    """Yield a finding if all targets that count are equal, or none counts."""
    place, counted = call.op.place, call.wanted.detach()[call.counts]
    total, is_soft = call.wanted.numel(), call.op.name == "cross_entropy" and call.wanted.is_floating_point()
    if total and not counted.numel():
        yield Finding(
            place.module,
            f"all {total:,} targets of {call.op.name} {place} are {call.ignored}, its ignore_index, so none of them "
            "counts",
            "check how the labels are made: look for a template that does not mark the answer, a maximum length that "
            "cuts it off, or a mask that hides it",
            "alarm",
        )
    are_some = counted.numel() < total  # then they are tokens, which may be shifted and masked before
    is_given = call.target.of_batch if are_some else call.target.origin.path is not None
    if not is_given or is_soft or counted.numel() <= 7 or not bool((counted == counted[0]).all()):
        return
    classes = call.values.shape[1] if call.op.name in ("cross_entropy", "nll_loss") and call.values.dim() > 1 else 0
    is_each = (are_some or len(call.target.origin.shape) == 1) and counted.numel() >= ONE_CLASS_SAMPLES
    which = (
        f"all {counted.numel():,} targets that count (of {total:,})"
        if are_some
        else f"all {total:,} targets of the batch"
    )
    yield Finding(
        place.module,
        f"{which} {place} are {float(counted[0]):g}" + (f", one of {classes} classes" if classes else ""),
        "check the labels of the data set, whether it is shuffled, and the sampler's weights",
        "alarm" if classes > 2 and is_each else "note",
    )


OBSERVERS: Mapping[str, Observer] = {
    **dict.fromkeys(LOSSES, _of_loss),
    **dict.fromkeys(("sub", "rsub"), _of_difference),
}
"""Function name to what is called with its tensors; see `StepTrace`."""


def findings_of(done: TracedStep, rules: Sequence[Rule]) -> list[Finding]:
    """Return the findings of the rules, equal ones once. A rule that raises gives a warning and no findings."""
    return list(dict.fromkeys(finding for rule in rules for finding in _findings_of_rule(rule, done)))


def _findings_of_rule(rule: Rule, done: TracedStep) -> list[Finding]:
    try:
        return [] if rule.judge is None else [replace(one, rule=one.rule or rule.name) for one in rule.judge(done)]
    except Exception as error:  # the other rules are still asked
        warn_switched_off(f"the rule {rule.name!r} of audit", error)
        return []


def _limits_of(value: Value) -> tuple[float, float] | None:
    """Return the range (low, high) of the function that computed the value, infinite where open; None if not known."""
    op = value.origin.op
    if op is None or op.name not in RANGES.keys() | {"clamp", "clip"}:
        return None
    if op.name in ("clamp", "clip"):
        low, high = op.arguments.get("min", op.arguments.get("1")), op.arguments.get("max", op.arguments.get("2"))
        is_plain = all(limit is None or isinstance(limit, int | float) for limit in (low, high))
        return (-math.inf if low is None else low, math.inf if high is None else high) if is_plain else None
    if op.name == "hardtanh":  # ReLU6 calls it too
        return float(op.arguments.get("min_val", -1)), float(op.arguments.get("max_val", 1))
    return RANGES[op.name]


def _origin(value: Value) -> str:
    """Return in words which function computed a value, past views and casts: `softmax at model.py:7 (in net.2)`."""
    op = value.origin.op
    assert op is not None
    return f"{op.name} {op.place}"


def _module_of(value: Value) -> str:
    return "" if value.origin.op is None else value.origin.op.place.module


def _from(value: Value) -> str:
    """Return ", and comes from ..." for a sentence on the value; "" if no call of the step computed it."""
    return f", and comes from {_origin(value)}" if value.origin.op is not None else ""


def in_numbers(tensor: Tensor) -> str:
    """Return the smallest and largest element, as in `between -1.5 and 3`; one number if they are equal."""
    low, high = float(tensor.detach().min()), float(tensor.detach().max())
    return f"{low:.3g}" if low == high else f"between {low:.3g} and {high:.3g}"


def _interval(limits: tuple[float, float]) -> str:
    low, high = limits
    if math.isinf(high):
        return f"of at least {low:g}"
    return f"of at most {high:g}" if math.isinf(low) else f"from {low:g} to {high:g}"
