"""`BlackBox`: checks every batch for a NaN or Inf, and finds the operation that produced the first one."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookboard.base.messages import listed, warn_switched_off
from hookboard.base.torch_private import parameters_in, sequence_number
from hookboard.health.rules.numerics import Nonfinite
from hookboard.measure.card import measuring_device
from hookboard.model.layouts import stored
from hookboard.tracing import explain
from hookboard.tracing.bad_operation import MAX_NODES, Program, bad_operation_in, is_finite
from hookboard.tracing.explain import Moment
from hookboard.tracing.loss_rows import row_counts_of, worst_rows_of
from hookboard.tracing.sentinels import all_finite, nonfinite_gradients, sentinels_of

MAX_SEARCHES = 10
"""Maximum number of batches that are searched in one fit. Under a GradScaler some of them have no fault."""

LIST_EVERY_N_BATCHES = 100
"""At the first batch and every this many batches, the parameters are listed again, since a model may change."""

_STEEP = frozenset({"sqrt", "rsqrt", "pow", "norm", "linalg_vector_norm", "where", "acos", "asin", "cdist"})
"""Operations whose derivative may be infinite or NaN; as autograd names them."""

T = TypeVar("T")


class BlackBox:
    """Checks the loss and a few gradients of every batch, and explains the first that is not finite.

    Call its methods at every training batch in this order: `begin_batch`; `before_backward` and `after_backward` for
    each backward pass; `before_optimizer_step`. If reading gradients or the search fails, one warning says so and the
    black box is switched off.

    No code of the user runs for it: the graph of the loss tells the operation, as far as it has saved what operations
    took and gave. Of several bad batches in a row only the first is searched, and no more than MAX_SEARCHES in all.

    The host waits for the device in each step. `late_event` is what can be known without.

    Args:
        model: the model.
        is_scaled: True if there is a GradScaler. Gradients are then not checked, because they overflow now and then.
        world_size: the number of processes.
    """

    def __init__(self, model: nn.Module, *, is_scaled: bool = False, world_size: int = 1) -> None:
        self.events: list[Nonfinite] = []
        """The events so far, at most MAX_SEARCHES."""
        self.is_off = False
        """True after an error; it then finds nothing more."""
        self.loss = math.nan
        """The loss of the last backward pass of the batch, as a number; NaN before."""
        self.programs: Sequence[Program] = ()
        """The nodes behind the losses of the first step, which tell layer and line of the same nodes later."""
        self._model, self._is_scaled, self._is_averaged = model, is_scaled, world_size > 1
        self._batches = self._searches = 0
        self._was_bad = self._is_bad = self._has_passed = False
        self._here, self._first_number = (0, 0), 0
        self._stepped: Moment | None = None
        self._sentinels = sentinels_of(model)

    def begin_batch(self, batch_idx: int, step: int) -> None:
        """Call before `training_step`.

        Args:
            batch_idx: the index of the batch.
            step: the optimizer step that it belongs to, as loggers count steps.
        """
        self._here, self._first_number = (step, batch_idx), sequence_number()
        self.loss, self._has_passed = math.nan, False
        self._was_bad, self._is_bad = self._is_bad, False
        if self._batches % LIST_EVERY_N_BATCHES in (0, 1):  # lazy layers have their parameters from the first batch on
            self._sentinels = sentinels_of(self._model)
        self._batches += 1

    def before_backward(self, loss: Tensor, value: float | None = None, batch: Any = None) -> None:
        """Call before each backward pass. Checks the loss; if it is not finite, its graph is searched.

        Args:
            loss: what the backward pass starts from.
            value: the loss as a number, if the host knows it already; it may be without the scale.
            batch: the batch that `training_step` was given; None if it is not known.
        """
        self._has_passed = True
        self.loss = _value_of(loss) if value is None else value
        if not math.isfinite(self.loss):
            self._search(lambda now: self._in_forward(loss, batch, now))

    def after_backward(self) -> None:
        """Call after each backward pass. Checks a few gradients, and all of them if one is not finite."""
        if math.isfinite(self.loss):
            self._check_gradients()

    def before_optimizer_step(self) -> None:
        """Call before the optimizer changes weights; under a GradScaler, before it may skip the step.

        Checks the gradients if `before_backward` was not called in this batch, because the user calls
        `loss.backward()`.
        """
        if not self._has_passed:
            self._check_gradients()
        self._stepped = Moment(*self._here, self.loss)

    def _check_gradients(self) -> None:
        if not self._is_scaled:
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
        """Return an event that tells what made a loss NaN or Inf.

        None under a GradScaler if the graph shows nothing but an infinite loss: then only the scale was too large.
        """
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
        """Return an event that tells which layers have bad gradients.

        Args:
            spoiled: dotted name of each parameter with a bad gradient, mapped to the name of its module.
            now: the batch.
        """
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
