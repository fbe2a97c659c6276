"""`BlackBox`: notices the first NaN or Inf, and finds the operation that made it, and the rows of the batch."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from hookboard.base.messages import listed, warn_switched_off
from hookboard.base.ranks import local
from hookboard.base.torch_private import (
    computing_plainly,
    modules_in,
    number_saved_by,
    parameters_in,
    saved_tensors_of,
    sequence_number,
)
from hookboard.health.look import WorstRows
from hookboard.health.robust import median
from hookboard.health.rules.numerics import Nonfinite
from hookboard.measure.memory import measuring_device
from hookboard.model.nested import stored, tensors_in
from hookboard.model.selection import named_submodules
from hookboard.tracing import explain
from hookboard.tracing.bad_operation import MAX_NODES, Program, bad_operation_in, is_finite, operation_of
from hookboard.tracing.explain import Moment

_NUMBERS = {"nll_loss": ("ignore_index",), "smooth_l1_loss": ("beta",), "huber_loss": ("delta",)}
_TENSORS = ("weight", "pos_weight")
"""What a call of these functions was given besides, by the names under which a node saves it."""

_SAME = "nll_loss mse_loss huber_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits pow abs"
_LOSSES = {**{name: name for name in _SAME.split()}, "nll_loss2d": "nll_loss"}
"""Operation, as autograd names it, to the function of torch that gives a value for each element before the mean."""

_BETWEEN = "mean sum div mul add neg view reshape_alias unsafe_view squeeze unsqueeze to_copy alias"
_PASSING = frozenset(_BETWEEN.split())
"""Operations that may stand between these values and the loss."""

_FACTORS = ("mul", "div")

_BEFORE = frozenset(["log_softmax", "to_copy", "view", "unsafe_view", "reshape_alias", "clone"])
"""Operations that may stand between a flattened tensor of tokens and the values."""

NODES_LOOKED_AT = 64
"""How many operations before the loss are looked at, at most (a choice)."""

LEAST_FACTOR = 2.0
"""A finite row is named from this many times the median of the others (a choice)."""


def row_counts_of(batch: Any) -> frozenset[int] | None:
    """Return the numbers of rows of the tensors in a batch; None if the batch is not known."""
    return None if batch is None else frozenset(tensor.shape[0] for _, tensor in tensors_in(batch) if tensor.dim())


@computing_plainly
def worst_rows_of(loss: Tensor, counts: Collection[int] | None = None, excess: float = 0.0) -> WorstRows | None:
    """Return the rows of the batch with the largest or a non-finite loss; None if it is no matter of a few rows."""
    node = _values_before(loss)
    saved = {} if node is None else saved_tensors_of(node)
    if node is None or "self" not in saved or any(type(tensor) is not Tensor for tensor in saved.values()):
        return None  # a loss of no known kind, or code of the user would run
    with torch.no_grad():
        values, is_counted = _values_of(node, {name: tensor.detach() for name, tensor in saved.items()})
        rows = _row_count(node, values)
        if rows < 2 or (counts is not None and rows not in counts):
            return None  # they are not those of the batch
        is_counted = is_counted.reshape(rows, -1)
        sums = torch.where(is_counted, values.reshape(rows, -1).double(), 0).sum(1).tolist()
        numbers = is_counted.sum(1).tolist()
    by_row = {row: sums[row] / number for row, number in enumerate(numbers) if number}
    worst = [row for row, value in by_row.items() if not math.isfinite(value)]
    usual = median([value for value in by_row.values() if math.isfinite(value)])
    if not worst and by_row:
        most = max(by_row.values())
        worst = [row for row, value in by_row.items() if value > usual + (most - usual) / 2]
        without = [row for row in by_row if row not in worst]
        mean, rest = (sum(sums[row] for row in some) / sum(numbers[row] for row in some) for some in (by_row, without))
        # They must make half of `excess`, the share of the loss that is more than usual.
        worst = worst if most > LEAST_FACTOR * usual and mean - rest >= excess / 2 * mean else []
    if not worst or len(worst) > len(by_row) / 2:  # then it is not a matter of rows
        return None
    name = _function_of(node)
    return WorstRows(name, tuple(worst), tuple(by_row[row] for row in worst), usual, len(by_row))


def _values_before(loss: Tensor) -> Node | None:
    """Return the operation that gave the value of each element, if the loss is a multiple of their sum; else None."""
    node = loss.grad_fn
    for _ in range(NODES_LOOKED_AT):
        if node is None or operation_of(node) in _LOSSES:
            return node
        name, before = operation_of(node), [each for each, _ in node.next_functions if each is not None]
        if name not in _PASSING or len(before) != 1 or (name in _FACTORS and not _has_one_factor(node)):
            return None  # there are other terms, or elements have factors of their own, as of a mask
        node = before[0]
    return None


def _has_one_factor(node: Node) -> bool:
    """Return True if a product or quotient has the same known factor for all elements."""
    is_first = node.next_functions[0][0] is not None
    factor = saved_tensors_of(node).get("other" if is_first else "self")
    return factor is not None and factor.numel() == 1 and (is_first or operation_of(node) == "mul")


def _values_of(node: Node, saved: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the value of each element before the mean, and which of them count, same shape."""
    name, saved_input = _LOSSES[operation_of(node)], saved["self"]
    if name in ("pow", "abs"):
        exponent = number_saved_by(node, "exponent", 1)
        values = saved_input.abs() if name == "abs" else saved_input.pow(exponent)
        return values, torch.ones_like(values, dtype=torch.bool)
    target = saved["target"]
    options: dict[str, Any] = {key: saved[key] for key in _TENSORS if key in saved}
    options |= {key: number_saved_by(node, key) for key in _NUMBERS.get(name, ())}
    values = getattr(nn.functional, name)(saved_input, target, reduction="none", **options)
    counts = target != options["ignore_index"] if name == "nll_loss" else torch.ones_like(values, dtype=torch.bool)
    return values, counts.view_as(values)


def _row_count(node: Node, values: Tensor) -> int:
    """Return the number of rows of the batch: where tokens were flattened, from the shape before."""
    before = node.next_functions[0][0]
    while values.dim() == 1 and before is not None and operation_of(before) in _BEFORE:
        sizes = number_saved_by(before, "self_sym_sizes")
        known = sizes if sizes is not None and len(sizes) > 1 else (0,)
        if len(values) in (math.prod(known), math.prod(known[:-1]) if len(known) > 2 else 0):
            return int(known[0])
        before = before.next_functions[0][0]
    return len(values) if values.dim() else 0


def _function_of(node: Node) -> str:
    """Return the name of the function that gave the values, as users know it."""
    name, before = _LOSSES[operation_of(node)], node.next_functions[0][0]
    while name == "nll_loss" and before is not None and operation_of(before) in _BEFORE:
        name = "cross_entropy" if operation_of(before) == "log_softmax" else name
        before = before.next_functions[0][0]
    return name


MAX_WHOLE_ELEMENTS = 4096
"""Of a gradient with more elements only the first column is read: it has one element for each unit."""

MAX_UNITS = 4096
"""Of a large gradient with more units than this nothing is read, unless it is sparse."""

MAX_SENTINELS = 64
"""Maximum number of gradients that are read, besides those of the first module and sparse ones."""

MIN_SMALL = 8
"""From this many small gradients on, the columns of large ones are not read."""


def sentinels_of(model: nn.Module) -> list[Parameter]:
    """Return a few parameters whose gradients show whether any gradient of a model has a NaN or Inf."""
    # A NaN goes on to every earlier module, so the smallest parameter of each shows it. Where the backward pass may
    # end, at the first module and at sparse parameters such as an embedding, all are read.
    sparse, owned = list[Parameter](), list[list[Parameter]]()
    for module in modules_in(model).values():
        own = [p for p in parameters_in(module, recurse=False).values() if not is_lazy(p) and not p.is_nested]
        sparse += [p for p in own if vars(module).get("sparse") is True or _is_sparse(p)]
        few = [p for p in own if p.numel() <= MAX_WHOLE_ELEMENTS or (p.ndim > 1 and len(p) <= MAX_UNITS)]
        owned += [few] if few else []
    smallest = [min(own, key=torch.numel) for own in owned]
    small = [p for p in smallest if p.numel() <= MAX_WHOLE_ELEMENTS]
    smallest = small if len(small) >= MIN_SMALL else smallest
    spread = smallest[:: -(-len(smallest) // MAX_SENTINELS) or 1]
    return [*{id(p): p for p in (*chain(*owned[:1]), *sparse, *spread)}.values()]


def all_finite(parameters: Iterable[Parameter]) -> bool:
    """Return True if the gradients of these parameters are finite, as far as they are read."""
    parts = list[Tensor]()
    for parameter in parameters:  # this runs in every step
        gradient = parameter.grad
        if gradient is None:
            continue
        if type(gradient) is not Tensor or gradient.layout is not torch.strided:
            gradient = local(stored(gradient))
        is_whole = gradient.numel() <= MAX_WHOLE_ELEMENTS or gradient.ndim < 2
        parts.append(gradient.flatten() if is_whole else gradient.flatten(1).select(1, 0))
    if not parts:
        return True
    try:
        joined = torch.cat(parts)  # one operation for all costs less than one for each of them
    except RuntimeError:  # they lie on several devices
        joined = torch.cat([part.to(parts[0].device) for part in parts])
    joined = torch.view_as_real(joined) if joined.is_complex() else joined
    # A sum takes less time, and that of finite values rarely overflows.
    return math.isfinite(float(joined.sum(dtype=torch.float32))) or is_finite(joined)


def _is_sparse(parameter: Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.layout is not torch.strided


def nonfinite_gradients(model: nn.Module) -> dict[str, str]:
    """Return the dotted name of each parameter whose gradient has a NaN or Inf, mapped to the name of its module."""
    found = {}
    for owner, module in {"": model, **dict(named_submodules(model))}.items():
        for name, parameter in parameters_in(module, recurse=False).items():
            if parameter.grad is not None and not is_finite(stored(parameter.grad)):
                found[f"{owner}.{name}".lstrip(".")] = owner
    return found


MAX_SEARCHES = 10
"""Maximum number of batches that are searched in one fit. Under a GradScaler some of them have no fault."""

LIST_EVERY_N_BATCHES = 100
"""Every this many batches the parameters are listed again, since a model may change."""

_STEEP = frozenset({"sqrt", "rsqrt", "pow", "norm", "linalg_vector_norm", "where", "acos", "asin", "cdist"})
"""Operations whose derivative may be infinite or NaN; as autograd names them."""

T = TypeVar("T")


class BlackBox:
    """Checks the loss and a few gradients of every batch, waiting for the device, and explains the first NaN or Inf."""

    def __init__(self, model: nn.Module, *, is_scaled: bool = False, world_size: int = 1) -> None:
        self.events: list[Nonfinite] = []  # so far, at most MAX_SEARCHES
        self.is_off = False  # True after an error; it then finds nothing more
        self.loss = math.nan  # of the last backward pass of the batch; NaN before
        self.programs: Sequence[Program] = ()  # of the first step, for layer and line of the same nodes later
        self._model, self._is_scaled, self._is_averaged = model, is_scaled, world_size > 1
        self._batches = self._searches = 0
        self._was_bad = self._is_bad = self._has_passed = False
        self._here, self._first_number = (0, 0), 0
        self._stepped: Moment | None = None
        self._sentinels = sentinels_of(model)

    def begin_batch(self, batch_idx: int, step: int) -> None:
        """Call before `training_step`; `step` is the optimizer step of the batch, as loggers count steps."""
        self._here, self._first_number = (step, batch_idx), sequence_number()
        self.loss, self._has_passed = math.nan, False
        self._was_bad, self._is_bad = self._is_bad, False
        if self._batches % LIST_EVERY_N_BATCHES in (0, 1):  # lazy layers have their parameters from the first batch on
            self._sentinels = sentinels_of(self._model)
        self._batches += 1

    def before_backward(self, loss: Tensor, value: float | None = None, batch: Any = None) -> None:
        """Check the loss before each backward pass; `value` is that loss, perhaps unscaled, if the host knows it."""
        self._has_passed = True
        self.loss = _value_of(loss) if value is None else value
        if not math.isfinite(self.loss):
            self._search(lambda now: self._in_forward(loss, batch, now))

    def after_backward(self) -> None:
        """Check a few gradients after each backward pass, and all of them if one is not finite."""
        if math.isfinite(self.loss):
            self._check_gradients()

    def before_optimizer_step(self) -> None:
        """Call before the optimizer changes weights; under a GradScaler, before it may skip the step."""
        if not self._has_passed:  # the user calls `loss.backward()`
            self._check_gradients()
        self._stepped = Moment(*self._here, self.loss)

    def _check_gradients(self) -> None:
        if not self._is_scaled:  # else they overflow now and then
            spoiled = self._shielded(self._bad_gradients)
            if spoiled:
                self._search(lambda now: self._in_backward(spoiled, now))

    def _bad_gradients(self) -> dict[str, str]:
        return {} if all_finite(self._sentinels) else nonfinite_gradients(self._model)

    def _shielded(self, find: Callable[[], T]) -> T | None:
        """Return what `find` returns; None after an error, which switches the black box off with a warning."""
        if self.is_off:
            return None
        try:
            return find()
        except Exception as error:  # this runs in the middle of the user's step
            self.is_off = True
            warn_switched_off("the search for the first NaN or Inf", error)
            return None

    def _search(self, find: Callable[[Moment], Nonfinite | None]) -> None:
        """Keep what `find` returns, unless the batch before was bad too; if it returns None, this one has no fault."""
        if self._is_bad:
            return
        self._is_bad = True
        if self._was_bad or self._searches == MAX_SEARCHES:
            return
        self._searches += 1
        now = Moment(*self._here, self.loss)
        event = self._shielded(lambda: self._in_weights(now) or find(now))
        self._is_bad = event is not None
        if event is not None:
            self.events.append(event)

    def _in_weights(self, now: Moment) -> Nonfinite | None:
        for name, parameter in parameters_in(self._model).items():
            if not is_lazy(parameter) and not is_finite(stored(parameter.detach())):
                return explain.parameter_event(name, parameter, now, self._stepped)
        return None

    def _in_forward(self, loss: Tensor, batch: Any, now: Moment) -> Nonfinite | None:
        """Return an event that tells what made a loss NaN or Inf; None if only the scale of a GradScaler did."""
        is_long = sequence_number() - self._first_number > MAX_NODES
        origin = None if is_long else bad_operation_in(loss, self._model, self.programs)
        is_scale = self._is_scaled and math.isinf(now.loss) and (origin is None or not origin.names or origin.is_last)
        if origin is None or origin.how != "made":  # where it was made of finite numbers, the batch was not to blame
            taker = origin.place.module if origin is not None and not origin.place.is_after else ""
            event = explain.batch_event(batch, now, taker, counts_masks=not is_scale)
            if event is not None:
                return event
        if is_scale:
            return None
        if origin is None:
            event = explain.unlocated_event(now, _HIDDEN)
        else:
            event = explain.forward_event(origin, now, self._stepped)
        return explain.with_rows_of(event, worst_rows_of(loss, row_counts_of(batch)))

    def _in_backward(self, spoiled: Mapping[str, str], now: Moment) -> Nonfinite:
        """Return an event that tells which layers have bad gradients; `spoiled` maps parameters to layers."""
        program = self.programs[0] if len(self.programs) == 1 else ()
        last = {step.place.module: number for number, step in enumerate(program)}
        in_order = sorted(spoiled.items(), key=lambda one: last.get(one[1], -1))
        behind = program[last.get(in_order[-1][1], len(program)) :]
        steep = {f"{step.name}(){step.place.at}" for step in behind if step.name in _STEEP}
        return explain.backward_event(dict(in_order), listed(sorted(steep), 3), now, self._is_averaged)


_HIDDEN = (
    "The module is unknown: autograd has not saved the inputs to the operations, as in compiled code, activation "
    f"checkpointing and custom autograd functions, or there are more than {MAX_NODES:,} of them."
)


def _value_of(loss: Tensor) -> float:
    """Return the loss as a number: of several elements the sum, of complex ones the absolute value."""
    loss = loss.detach().abs() if loss.is_complex() else loss.detach()
    return float(loss if loss.numel() == 1 else loss.to(measuring_device(loss.device)).sum(dtype=torch.float64))
