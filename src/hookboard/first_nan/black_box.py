"""`BlackBox`: checks every batch for a NaN or Inf, and finds the module that produced the first one."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from hookboard.first_nan.detect import Sentinels, nonfinite_gradients
from hookboard.first_nan.explain import backward_event, forward_event, parameter_event, unlocated_event, with_operation
from hookboard.first_nan.operation import Operation, OperationSearch
from hookboard.first_nan.search import Search
from hookboard.health import Nonfinite
from hookboard.layouts import stored
from hookboard.measure import measuring_device
from hookboard.messages import warn_switched_off
from hookboard.nested import tensors_in
from hookboard.replay import GENERATORS, CannotRunAgainError, RandomState
from hookboard.torch_private import version_of

MAX_EVENTS = 3
"""Maximum number of events that are explained in one fit."""

MAX_SEARCHES = 10
"""Maximum number of batches that are run again in one fit. Under a GradScaler some of them have no fault."""

CHECK_EVERY_N_BATCHES = 100
"""At the first batch and every this many batches, the parameters are listed again, since a model may change, and all
random generators are compared before and after the batch. In between, only the states of those that a batch has drawn
from are saved, because reading a state is slow.
"""


ALWAYS_SAVED = {"torch", "CUDA"}
"""Generators whose state is saved before every batch: a step may use them only now and then. CUDA's is left out if the
model is on the CPU.
"""

_SAVED = ("events", "count", "_searches", "_is_bad", "_stepped")

P = ParamSpec("P")

StepAgain = Callable[[Any, int, RandomState, int], AbstractContextManager[Callable[[], Tensor]]]
"""The type of `Loop.step_again`: batch, its index, the random state before it, the number of the backward pass."""


def _shielded(method: Callable[Concatenate["BlackBox", P], None]) -> Callable[Concatenate["BlackBox", P], None]:
    """Wrap a method so that an error gives a warning and switches the black box off instead of being raised."""

    @functools.wraps(method)
    def shielded(box: "BlackBox", /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not box.is_off:
            try:
                method(box, *args, **kwargs)
            except Exception as error:
                box.is_off = True
                box.end_batch()
                warn_switched_off("the search for the first NaN or Inf", error)

    return shielded


class BlackBox:
    """Checks the loss and a few gradients of every batch, and explains the first that is not finite.

    Call its methods at every training batch in this order: `begin_batch`; `before_backward` and `after_backward` for
    each backward pass; `before_optimizer_step`; `end_batch`. None of them raises: if one fails, it gives a warning and
    the black box is switched off.

    To find the module, the batch is run again after the backward pass, before the weights change. Everything that this
    changes is restored, see `undisturbed`. Of several bad batches in a row only the first is run again, and there are
    at most MAX_EVENTS such events; other bad batches are counted.

    The host waits for the device in each step. `late_event` is what can be known without.

    Args:
        model: the model.
        step_again: runs the training step once more, see `Loop.step_again`.
        is_scaled: True if there is a GradScaler. Gradients are then not checked, because they overflow now and then.
        world_size: the number of processes.
    """

    def __init__(
        self, model: nn.Module, step_again: StepAgain, *, is_scaled: bool = False, world_size: int = 1
    ) -> None:
        self.events: list[Nonfinite] = []
        """The events so far, at most MAX_EVENTS."""
        self.count = 0
        """Number of batches whose loss or gradients were not finite."""
        self.is_off = False
        """True after an error in one of its methods; it then does nothing."""
        self._model = model
        self._step_again = step_again
        self._world_size = world_size
        self._is_scaled = is_scaled
        self._searches = 0
        self._batches = 0
        self._is_checked = False
        self._drawn = set(ALWAYS_SAVED) if any(p.is_cuda for p in model.parameters()) else ALWAYS_SAVED - {"CUDA"}
        self._was_bad = self._is_bad = False
        self._here: tuple[int, int] = (0, 0)
        self._batch: Any = None
        self._random: RandomState | None = None
        self._versions: list[int] = []
        self._backwards = 0
        self._loss = math.nan
        self._stepped: tuple[int, int, float] | None = None
        self._sentinels = Sentinels(model)

    def state_dict(self) -> dict[str, Any]:
        """Return the events and counts so far, for a checkpoint."""
        return {name: getattr(self, name) for name in _SAVED}

    def load_state_dict(self, parts: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, so that an ongoing event does not count as a new one."""
        vars(self).update({name: parts[name] for name in _SAVED})

    @_shielded
    def begin_batch(self, batch: Any, batch_idx: int, step: int) -> None:
        """Call before `training_step`. The batch is kept until `end_batch`.

        Args:
            batch: the batch that `training_step` will get.
            batch_idx: its index.
            step: the optimizer step that it belongs to, as loggers count steps.
        """
        self._here, self._backwards, self._loss = (step, batch_idx), 0, math.nan
        self._was_bad, self._is_bad = self._is_bad, False
        self._is_checked = self._batches % CHECK_EVERY_N_BATCHES == 0
        if self._batches % CHECK_EVERY_N_BATCHES in (0, 1):  # lazy layers have their parameters from the first batch on
            self._sentinels = Sentinels(self._model)
        self._batches += 1
        if self._may_search:
            self._batch, self._versions = batch, _versions_in(batch)
            self._random = RandomState(GENERATORS.keys() if self._is_checked else self._drawn)

    @_shielded
    def before_backward(self, loss: Tensor, value: float | None = None) -> None:
        """Call before each backward pass. Notes the loss; `after_backward` checks it.

        If torch's anomaly detection is on, which would make the backward pass raise, the batch of a bad loss is run
        again at once.

        Args:
            loss: what the backward pass starts from.
            value: the loss as a number, if the host knows it already; it may be without the scale.
        """
        self._backwards += 1
        self._loss = _value_of(loss) if value is None else value
        if torch.is_anomaly_enabled() and not math.isfinite(self._loss):  # then backward raises
            self._add_event(self._search_forward)

    @_shielded
    def after_backward(self) -> None:
        """Call after each backward pass. Checks loss and gradients.

        If one of them is not finite, the batch is run again to find the module.
        """
        if not math.isfinite(self._loss):
            self._add_event(self._search_forward)
        else:
            self._check_gradients()

    @_shielded
    def before_optimizer_step(self) -> None:
        """Call before the optimizer changes weights; under a GradScaler, before it may skip the step.

        Checks the gradients if `after_backward` was not called in this batch, because the user calls
        `loss.backward()`.
        """
        if not self._backwards:
            self._check_gradients()
        self._stepped = (*self._here, self._loss)

    def end_batch(self) -> None:
        """Drop the batch and the random state that were kept to run it again.

        Every CHECK_EVERY_N_BATCHES batches, also note which random generators the batch drew from.
        """
        random, self._batch, self._random = self._random, None, None
        if self._is_checked and random is not None:
            self._note_drawn(random)

    @_shielded
    def _note_drawn(self, since: RandomState) -> None:
        self._drawn |= since.moved()

    def _check_gradients(self) -> None:
        if self._is_scaled:
            return
        values = self._sentinels.values()
        if values is None:
            return
        if not math.isfinite(float(values.sum(dtype=torch.float32))):  # the sum of finite values rarely overflows
            spoiled = nonfinite_gradients(self._model)
            if spoiled:
                self._add_event(lambda: self._search_backward(spoiled))

    def _add_event(self, search: Callable[[], Nonfinite | None]) -> None:
        """Count a bad batch once; if it is the first in a row, call `search` and keep the event that it returns.

        If `search` returns None, the batch has no fault and does not count. Once there are MAX_EVENTS events or were
        MAX_SEARCHES searches, `search` is not called.
        """
        if self._is_bad:
            return
        self._is_bad = True
        if not self._was_bad and self._may_search:
            self._searches += 1
            event = search()
            if event is None:
                self._is_bad = False
                return
            self.events.append(event)
        self.count += bool(self.events)

    @property
    def _may_search(self) -> bool:
        return len(self.events) < MAX_EVENTS and self._searches < MAX_SEARCHES

    def _search_forward(self) -> Nonfinite | None:
        """Run the batch again; return an event that tells where its loss became NaN or Inf.

        The event names no module if the batch cannot be run again, or gives a finite loss now. Under a GradScaler a
        finite loss gives None: only the scale was too large.
        """
        search = Search(self._model, self._batch)
        try:
            with self._repetition() as run, search.recording():
                loss = run()
                is_again, fault = not bool(torch.isfinite(loss).all()), search.forward_fault()
        except Exception as error:
            return unlocated_event(False, *self._here, _why(error), loss=self._loss)
        if not is_again:
            if self._is_scaled:  # the scale, not the loss, was too large
                return None
            why = "run again, the batch gives a finite loss, so its state or its random numbers were different before"
            return unlocated_event(False, *self._here, why, loss=self._loss)
        if fault.kind == "parameter":
            return parameter_event(fault, *self._here, self._stepped)
        last_loss = math.nan if self._stepped is None else self._stepped[2]
        was_changed = self._versions != _versions_in(self._batch)
        event = forward_event(
            fault, *self._here, self._loss, batch=self._batch, last_loss=last_loss, was_changed=was_changed
        )
        return event if fault.kind == "batch" else with_operation(event, self._operation())

    def _operation(self) -> Operation | None:
        """Run the batch a third time; return the function call that made the NaN or Inf, None if it is not found.

        `Search` and `OperationSearch` cannot share a run: some layers run other code under a torch function mode.
        """
        try:
            search = OperationSearch()
            with self._repetition() as run:
                with search:
                    loss = run()
                return search.origin_of(loss)
        except Exception:  # the module is known all the same
            return None

    def _search_backward(self, spoiled: dict[str, str]) -> Nonfinite:
        """Run the batch again, with its backward pass; return an event that tells what gave the first bad gradient.

        The event names no module if the batch cannot be run again, or gives finite gradients now.

        Args:
            spoiled: dotted name of each parameter with a bad gradient, mapped to the name of its module.
        """
        search, names = Search(self._model, self._batch, with_gradients=True), list(spoiled)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        try:
            with self._repetition() as run, search.recording():
                gradients = torch.autograd.grad(run(), trained, allow_unused=True)
                is_again = not all(bool(torch.isfinite(stored(g)).all()) for g in gradients if g is not None)
                fault = search.backward_fault(set(spoiled.values()))
        except Exception as error:
            return unlocated_event(True, *self._here, _why(error), names)
        if not is_again:
            elsewhere = self._world_size > 1
            why = "run again on this rank alone, the batch gives finite gradients"
            why += (
                ", so they come from another rank"
                if elsewhere
                else ", so its state or random numbers were different before"
            )
            return unlocated_event(True, *self._here, why, [] if elsewhere else names)
        return backward_event(fault, *self._here, names)

    @contextmanager
    def _repetition(self) -> Iterator[Callable[[], Tensor]]:
        """Yield a function that runs the step again and returns its loss.

        Raises:
            CannotRunAgainError: it cannot be run; or, from the function, it has drawn from a generator whose state was
                not saved.
        """
        if self._random is None:
            raise CannotRunAgainError("the batch was not kept")
        if not self._backwards:
            raise CannotRunAgainError("its backward pass was not made by Lightning")
        others = self._random.of_others()
        with self._step_again(self._batch, self._here[1], self._random, self._backwards) as run:

            def again() -> Tensor:
                try:
                    return run()
                finally:
                    drawn = others.moved()
                    if drawn:
                        self._drawn |= drawn
                        names = " and ".join(sorted(drawn))
                        raise CannotRunAgainError(f"it draws numbers from {names}, which it did not do before")

            yield again


def _value_of(loss: Tensor) -> float:
    """Return the loss as a number: of several elements the sum, of complex ones the absolute value."""
    loss = loss.detach().abs() if loss.is_complex() else loss.detach()
    return float(loss if loss.numel() == 1 else loss.to(measuring_device(loss.device)).sum(dtype=torch.float64))


def _versions_in(batch: Any) -> list[int]:
    """Return the version number of each tensor in a batch, which in-place changes increase; 0 for inference tensors."""
    given = batch if type(batch) in (tuple, list) else [batch]
    # This runs in every step, and nearly every batch is a few plain tensors.
    tensors = given if all(type(part) is Tensor for part in given) else [tensor for _, tensor in tensors_in(batch)]
    return [0 if tensor.is_inference() else version_of(tensor) for tensor in tensors]


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, CannotRunAgainError) else f"{type(error).__name__}: {error}"
