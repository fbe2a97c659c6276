"""`Tape`: repeats the recorded calls that led to a loss, with other numbers. No code of the user's runs."""

import functools
import inspect
import math
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.base.torch_private import NothingOfOthers, computing_plainly, has_memory, set_state, state_of
from hookboard.tracing.calls import Op, Value, tensors_of
from hookboard.tracing.program import StepTrace

SECONDS = 1.0
"""When all replays of a step have taken more time of this thread's, they are given up (a choice). It is not the time on
the clock: on a busy machine, as with workers that load data, that would decide what is tested."""

BYTES = 2**26
"""A replay that takes more memory, and more than the results of the calls, is not begun (a choice)."""

Watch = Callable[[Op, Value, list[Tensor]], object]
"""Takes a call, a value that it returned, and the tensor that this is in each variant."""


class CannotReplayError(RuntimeError):
    """The calls cannot be made again."""


UNANSWERED = (RuntimeError, ValueError, TypeError, IndexError, KeyError)
"""What ends a question, and nothing else: CannotReplayError, and what torch raises where a tensor is of an odd kind, or
where a number that the step has read from one no longer fits the exchanged one."""


class Tape:
    """The recorded calls behind a value, in order.

    Args:
        step: the recorded calls.
        end: the value, such as the loss.
        start: values that each variant gives, in place of what the calls have computed.
    """

    def __init__(self, step: StepTrace, end: Value, start: Collection[Value] = ()) -> None:
        begun, self._step, self._end = time.thread_time(), step, end
        behind = list(end.ancestors(lambda value: value not in start))
        wanted = {id(value.op) for value in behind}
        self.ops = [op for op in step.ops if id(op) in wanted]
        self.leaves = [*(value for value in behind if value.op is None), *start]
        """The values that no call has computed, and `start`."""
        self._last_use = {value: index for index, op in enumerate(self.ops) for value in (*op.results, *op.inputs)}
        self._last_use[end] = len(self.ops)
        step.replayed += time.thread_time() - begun  # in a deep model, finding the calls takes longer than making them

    def run(
        self,
        variants: Sequence[Mapping[Value, Tensor]],
        watch: Watch = lambda op, value, tensors: None,
        *,
        without_dropout: bool = False,
    ) -> list[Tensor]:
        """Return the last value in each variant; all are computed side by side, call by call.

        A batch norm takes the statistics of the first variant in all of them: through these, samples may influence
        each other. Random numbers are those of the step.

        Args:
            variants: for each variant, the tensors to take instead of values that no call computed, such as the batch.
            watch: called with what each call returns.
            without_dropout: whether nothing is dropped.

        Raises:
            CannotReplayError: a tensor is gone, or it takes too much memory, or all replays longer than SECONDS.
        """
        if any(_is_foreign(op.function) or any(map(callable, op.arguments.values())) for op in self.ops):
            raise CannotReplayError("the step makes calls that are not torch's own")
        begun = time.thread_time()
        drawn = {id(generator): generator for op in self.ops for generator, _ in op.drawn}
        states = [(generator, state_of(generator)) for generator in drawn.values()]
        # Let no function warn a second time; not by `catch_warnings`: all that warn once would warn once more.
        here = ("ignore", None, Warning, re.compile(r"(hookboard|torch)\."), 0)
        try:
            warnings.filters.insert(0, here)  # type: ignore[attr-defined]  # a list
            return self._run(variants, watch, begun + SECONDS - self._step.replayed, without_dropout)
        finally:
            warnings.filters.remove(here)  # type: ignore[attr-defined]  # a list
            for generator, state in states:
                set_state(generator, state)
            self._step.replayed += time.thread_time() - begun

    @computing_plainly
    def _run(
        self, variants: Sequence[Mapping[Value, Tensor]], watch: Watch, until: float, without_dropout: bool
    ) -> list[Tensor]:
        """Do what `run` does; give up when `time.thread_time()` has reached `until`."""
        if time.thread_time() > until:
            raise CannotReplayError("replaying the step takes too long")
        kept = {
            value: copy_of(self._step, value) for value in self.leaves if not all(value in given for given in variants)
        }
        held = {value: [given.get(value, kept.get(value)) for given in variants] for value in self.leaves}
        needs_grad = any(op.name == "grad" for op in self.ops)
        weights = [one for value, one in kept.items() if isinstance(self._step.given.get(value), nn.Parameter)]
        sizes = [[4 * math.prod(value.shape) for value in op.results] for op in self.ops]
        total = sum(map(sum, sizes))
        most = total if needs_grad else 2 * max((sum(each) for each in sizes), default=0)  # what it takes and returns
        if most * len(variants) > max(total, BYTES):
            raise CannotReplayError("replaying the step takes too much memory")
        unhooked = torch.autograd.graph.disable_saved_tensors_hooks("hooks on saved tensors would be called once more")
        with unhooked, NothingOfOthers(weights):
            for index, op in enumerate(self.ops):
                if time.thread_time() > until:
                    raise CannotReplayError("replaying the step takes too long")
                if not held.keys() >= set(op.inputs):
                    raise CannotReplayError("a tensor has been freed")
                with torch.set_grad_enabled(needs_grad and op.with_grad):
                    each = list(_made_again(op, held, len(variants), _NO_DROPOUT if without_dropout else {}))
                for value, *tensors in zip(op.results, *each, strict=True):
                    held[value] = tensors
                    watch(op, value, tensors)
                del each
                for value in {*op.inputs, *op.results}:
                    if self._last_use[value] <= index:
                        del held[value]
        return held[self._end]  # type: ignore[return-value]  # each is there


def copy_of(step: StepTrace, value: Value) -> Tensor:
    """Return a tensor that no call has computed, in memory of its own unless it is a parameter."""
    tensor = step.given.get(value)
    # FSDP frees the memory of weights that it has gathered, and what is computed with a part waits for other ranks.
    is_plain = getattr(type(tensor), "__torch_dispatch__", None) is Tensor.__torch_dispatch__  # unlike a DTensor
    if tensor is None or not is_plain or not (tensor.is_sparse or has_memory(tensor)):
        raise CannotReplayError("a tensor has been freed, or part of it is elsewhere")
    copied = tensor.detach() if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
    return copied.requires_grad_(tensor.requires_grad)


def moves(
    step: StepTrace,
    end: Value,
    other: Mapping[Value, Tensor],
    as_it_was: Mapping[Value, Tensor] | None = None,
    of: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> bool | None:
    """Return whether a value moves when others are exchanged.

    Args:
        step: the recorded calls.
        end: the value.
        other: the tensors to take instead.
        as_it_was: the same values as they were, where calls have computed them; left out for what no call has computed.
        of: the part of the value that is looked at.

    Returns:
        None if the calls cannot be made again.
    """
    try:
        variants = [as_it_was or {}, other]
        before, after = map(of, Tape(step, end, tuple(other) if as_it_was else ()).run(variants))
        before, after = before.detach(), after.detach()
        if before.is_complex() or not before.is_floating_point():
            return not torch.equal(before, after)
        size = float(before.abs().nan_to_num().amax()) if before.numel() else 0.0
        return not torch.allclose(before, after, rtol=0, atol=MOVED * size, equal_nan=True)
    except UNANSWERED:
        return None


MOVED = 1e-6
"""What moves by less than this share of its size has not moved: kernels round."""


@functools.cache
def _is_foreign(function: Callable[..., Any]) -> bool:
    """Return True for functions that are not of torch, and for custom operators, whose code may be the user's."""
    module = getattr(function, "__module__", None) or "torch"
    is_custom = module.startswith("torch._ops.") and module.split(".")[2] not in ("aten", "prim", "prims")
    return is_custom or not f"{module}.".startswith("torch.")


_NO_DROPOUT = {"training": False, "dropout_p": 0.0}


def _made_again(
    op: Op, held: Mapping[Value, list[Any]], count: int, instead: Mapping[str, Any]
) -> Iterator[list[Tensor]]:
    """Yield the tensors that a call returns in each variant, with other arguments in place of those that it has."""
    instead = {name: other for name, other in instead.items() if name in op.arguments}
    if op.name == "batch_norm" and op.arguments.get("training"):
        values = held[op.arguments["input"]][0].detach().float()
        variance, mean = torch.var_mean(values, [dim for dim in range(values.dim()) if dim != 1], correction=0)
        dtype = values.dtype if op.arguments.get("weight") is None else held[op.arguments["weight"]][0].dtype
        instead = {"running_mean": mean.to(dtype), "running_var": variance.to(dtype), "training": False}
    for index in range(count):
        for generator, state in op.drawn:
            set_state(generator, state)
        arguments = {key: _filled(given, held, index) for key, given in op.arguments.items()} | dict(instead)
        args, kwargs = _as_called(op.function, arguments)
        with ExitStack() as until_end:
            if op.autocast is not None:
                kind, dtype = op.autocast
                until_end.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            returned = op.function(*args, **kwargs)
        yield [args[0]] if op.name == "setitem" else list(tensors_of(returned))


def _filled(given: Any, held: Mapping[Value, list[Any]], index: int) -> Any:
    """Return an argument with tensors of a variant in place of the values."""
    if isinstance(given, Value):
        return held[given][index]
    if isinstance(given, list | tuple):
        parts = [_filled(part, held, index) for part in given]
        return parts if isinstance(given, list) else tuple(parts)
    if isinstance(given, slice):
        return slice(*(_filled(part, held, index) for part in (given.start, given.stop, given.step)))
    return given


def _as_called(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments from those by name, or by index."""
    if "0" in arguments or not inspect.isfunction(function):
        args = tuple(given for key, given in arguments.items() if key.isdigit())
        return args, {key: given for key, given in arguments.items() if not key.isdigit()}
    bound = inspect.BoundArguments(inspect.signature(function), arguments)
    return bound.args, bound.kwargs
