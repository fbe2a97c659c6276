"""`BlackBox`: checks every batch for a NaN or Inf, and finds the operation that produced the first one."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookboard.base.messages import listed, warn_switched_off
from hookboard.base.ranks import local
from hookboard.base.torch_private import parameters_in, sequence_number, version_of
from hookboard.health.rules.numerics import Nonfinite
from hookboard.measure.card import measuring_device
from hookboard.model.layouts import stored
from hookboard.tracing.bad_operation import MAX_NODES, Program, bad_operation_in, named, nodes_behind
from hookboard.tracing.detect import Sentinels, nonfinite_gradients
from hookboard.tracing.explain import (
    backward_event,
    batch_event,
    forward_event,
    parameter_event,
    unlocated_event,
    with_rows_of,
)
from hookboard.tracing.loss_rows import row_counts_of, worst_rows_of

MAX_EVENTS = 3
"""Maximum number of events that are explained in one fit."""

MAX_SEARCHES = 10
"""Maximum number of batches in which the operation is searched in one fit. Under a GradScaler some have no fault."""

LIST_EVERY_N_BATCHES = 100
"""At the first batch and every this many batches, the parameters are listed again, since a model may change."""

_STEEP = frozenset({"sqrt", "rsqrt", "pow", "norm", "linalg_vector_norm", "where", "acos", "asin", "cdist"})
"""Operations whose derivative may be infinite or NaN; as autograd names them."""

T = TypeVar("T")

MAX_VERSIONS = 64
"""How many parts of a batch are looked at in each step for whether it changes them (a choice)."""


class BlackBox:
    """Checks the loss and a few gradients of every batch, and explains the first that is not finite.

    Call its methods at every training batch in this order: `begin_batch`; `before_backward` and `after_backward` for
    each backward pass; `before_optimizer_step`. If reading gradients or the search fails, one warning
    says so and the black box is switched off.

    No code of the user runs for it: the graph of the loss tells the operation, as far as it has saved what operations
    took and gave. Of several bad batches in a row only the first is searched, and there are at most MAX_EVENTS such
    events; other bad batches are counted.

    The host waits for the device in each step. `late_event` is what can be known without.

    Args:
        model: the model.
        is_scaled: True if there is a GradScaler. Gradients are then not checked, because they overflow now and then.
        world_size: the number of processes.
    """

    def __init__(self, model: nn.Module, *, is_scaled: bool = False, world_size: int = 1) -> None:
        self.events: list[Nonfinite] = []
        """The events so far, at most MAX_EVENTS."""
        self.count = 0
        """Number of batches whose loss or gradients were not finite."""
        self.is_off = False
        """True after an error; it then finds nothing more."""
        self.loss = math.nan
        """The loss of the last backward pass of the batch, as a number; NaN before."""
        self.programs: Sequence[Program] = ()
        """The nodes behind the losses of the first step, which tell layer and line of the same nodes later."""
        self._model = model
        self._world_size = world_size
        self._is_scaled = is_scaled
        self._searches = 0
        self._batches = 0
        self._was_bad = self._is_bad = False
        self._here: tuple[int, int] = (0, 0)
        self._versions: list[int] = []
        self._backwards = self._begun = 0
        self._stepped: tuple[int, int, float] | None = None
        self._sentinels = Sentinels(model)

    def begin_batch(self, batch: Any, batch_idx: int, step: int) -> None:
        """Call before `training_step`. The batch is not kept.

        Args:
            batch: the batch that `training_step` will get; None if it is not known.
            batch_idx: its index.
            step: the optimizer step that it belongs to, as loggers count steps.
        """
        self._here, self._backwards, self.loss, self._begun = (step, batch_idx), 0, math.nan, sequence_number()
        self._was_bad, self._is_bad = self._is_bad, False
        if self._batches % LIST_EVERY_N_BATCHES in (0, 1):  # lazy layers have their parameters from the first batch on
            self._sentinels = Sentinels(self._model)
        self._batches += 1
        self._versions = _versions_in(batch)

    def before_backward(self, loss: Tensor, value: float | None = None, batch: Any = None) -> None:
        """Call before each backward pass. Checks the loss; if it is not finite, its graph is searched.

        Args:
            loss: what the backward pass starts from.
            value: the loss as a number, if the host knows it already; it may be without the scale.
            batch: the batch that `begin_batch` was given.
        """
        self._backwards += 1
        self.loss = _value_of(loss) if value is None else value
        if not math.isfinite(self.loss):
            self._add_event(lambda: self._search_forward(loss, batch))

    def after_backward(self) -> None:
        """Call after each backward pass. Checks a few gradients, and all of them if one is not finite."""
        if math.isfinite(self.loss):
            self._check_gradients()

    def before_optimizer_step(self) -> None:
        """Call before the optimizer changes weights; under a GradScaler, before it may skip the step.

        Checks the gradients if `after_backward` was not called in this batch, because the user calls
        `loss.backward()`.
        """
        if not self._backwards:
            self._check_gradients()
        self._stepped = (*self._here, self.loss)

    def _check_gradients(self) -> None:
        values = None if self._is_scaled else self._shielded(self._sentinels.values)
        # The sum of finite values rarely overflows.
        if values is None or math.isfinite(float(values.sum(dtype=torch.float32))):
            return
        spoiled = self._shielded(lambda: nonfinite_gradients(self._model))
        if spoiled:
            self._add_event(lambda: self._search_backward(spoiled))

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

    def _add_event(self, search: Callable[[], Nonfinite | None]) -> None:
        """Count a bad batch once; if it is the first in a row, call `search` and keep the event that it returns.

        If `search` returns None, the batch has no fault and does not count. Once there are MAX_EVENTS events or were
        MAX_SEARCHES searches, `search` is not called.
        """
        if self._is_bad:
            return
        self._is_bad = True
        if not self._was_bad and len(self.events) < MAX_EVENTS and self._searches < MAX_SEARCHES:
            self._searches += 1
            event = self._shielded(search)
            if event is None:
                self._is_bad = False
                return
            self.events.append(event)
        self.count += bool(self.events)

    def _search_forward(self, loss: Tensor, batch: Any) -> Nonfinite | None:
        """Return an event that tells what made a loss NaN or Inf.

        None under a GradScaler if the graph shows nothing but an infinite loss: then only the scale was too large.
        """
        for name, parameter in parameters_in(self._model).items():
            if not is_lazy(parameter) and not bool(torch.isfinite(local(stored(parameter.detach()))).all()):
                return parameter_event(name, parameter, *self._here, self._stepped)
        was_changed = self._versions != _versions_in(batch)
        is_long = sequence_number() - self._begun > MAX_NODES
        names = [] if is_long else [node.name() for node in nodes_behind(loss)]
        only = self.programs[0] if len(self.programs) == 1 else ()
        program = next((one for one in self.programs if [step.node for step in one] == names), only)
        origin = None if is_long else bad_operation_in(loss, self._model, program)
        is_taker = origin is not None and not origin.name and not origin.place.is_after
        taker = origin.place.module if origin is not None and is_taker else ""
        of_batch = functools.partial(batch_event, batch, *self._here, self.loss, taker, was_changed=was_changed)
        # Where an operation has made it of finite numbers, what is missing in the batch was left out.
        if (origin is None or not origin.name) and (event := of_batch()) is not None:
            return event
        if self._is_scaled and math.isinf(self.loss) and (origin is None or not origin.taker):
            return None
        if (origin is None or not origin.name) and (event := of_batch(counts_masks=True)) is not None:
            return event
        if origin is None:
            why = (
                "autograd has not saved the inputs to the operations, as in compiled code, activation checkpointing "
                f"and custom autograd functions, or there are more than {MAX_NODES:,} of them"
            )
            event = unlocated_event(False, *self._here, why, loss=self.loss)
        else:
            last_loss = math.nan if self._stepped is None else self._stepped[2]
            event = forward_event(origin, *self._here, self.loss, last_loss)
        return with_rows_of(event, worst_rows_of(loss, row_counts_of(batch)))

    def _search_backward(self, spoiled: dict[str, str]) -> Nonfinite:
        """Return an event that tells which layers have bad gradients.

        Args:
            spoiled: dotted name of each parameter with a bad gradient, mapped to the name of its module.
        """
        program = self.programs[0] if len(self.programs) == 1 else ()
        last = {step.module: number for number, step in enumerate(program)}
        in_order = sorted(spoiled, key=lambda name: last.get(spoiled[name], -1))
        behind = program[last[spoiled[in_order[-1]]] :] if spoiled[in_order[-1]] in last else ()
        steep = {
            f"{operation}() at {step.line}" if step.line else f"{operation}()"
            for step in behind
            if (operation := named(step.node)) in _STEEP
        }
        if self._world_size > 1:  # it may be that of another rank
            why = "gradients are averaged over the ranks, so the non-finite value may come from another rank"
            return unlocated_event(True, *self._here, why, in_order)
        is_known = math.isfinite(self.loss)  # of a backward pass of several losses it is not
        spoiled = {name: spoiled[name] for name in in_order}
        return backward_event(spoiled, listed(sorted(steep), 3), *self._here, is_known)


def _value_of(loss: Tensor) -> float:
    """Return the loss as a number: of several elements the sum, of complex ones the absolute value."""
    loss = loss.detach().abs() if loss.is_complex() else loss.detach()
    return float(loss if loss.numel() == 1 else loss.to(measuring_device(loss.device)).sum(dtype=torch.float64))


def _versions_in(batch: Any) -> list[int]:
    """Return the version number of the first plain tensors in a batch, which in-place changes increase.

    It runs in every step: no code of the batch's class runs, and what lies deeper in it is not looked for.
    """
    given = batch.values() if type(batch) is dict else batch if type(batch) in (tuple, list) else [batch]
    some = itertools.islice(given, MAX_VERSIONS)
    return [0 if one.is_inference() else version_of(one) for one in some if type(one) is Tensor]
