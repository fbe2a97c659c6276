"""`BlackBox`: notices the first NaN or Inf of a training in its very step, and finds the module that gave it."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from hookboard.first_nan import events as said
from hookboard.first_nan.late_flag import LateFlag, Noted
from hookboard.first_nan.search import Search
from hookboard.first_nan.sentinels import Sentinels, spoiled_gradients
from hookboard.health import Nonfinite
from hookboard.layouts import stored
from hookboard.measure import measuring_device
from hookboard.messages import warn_switched_off
from hookboard.nested import tensors_in
from hookboard.replay import GENERATORS, CannotRunAgainError, RandomState, step_again
from hookboard.torch_private import version_of

MOST_EVENTS = 3
"""How many events are explained in one fit."""

MOST_SEARCHES = 10
"""How many batches are run again in one fit: under a GradScaler, some only to see that nothing is wrong."""

CHECKED_EVERY = 100
"""At the first batch, and after so many more, the parameters are listed, for models that change; and it is looked from
which other random generators the step draws. From then on the states of these are kept: they take long to read."""


ALWAYS = {"torch", "CUDA"}
"""The generators whose states are kept at each batch: a step may draw from them now and then. CUDA's is left out where
the model is on the CPU."""

_KEPT = ("events", "count", "_searches", "_is_bad", "_stepped")

P = ParamSpec("P")


def _shielded(method: Callable[Concatenate["BlackBox", P], None]) -> Callable[Concatenate["BlackBox", P], None]:
    """A method that warns and switches the black box off where it would raise."""

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
    """Looks at the loss of every batch, and at a few gradients, and explains the first that is not finite.

    Call its methods at every training batch, in this order: `begin_batch`; `before_backward` and `after_backward` for
    each backward pass; `before_optimizer_step`; `end_batch`. None of them raises: after a fault of ours a warning says
    so, and it does nothing any more.

    To find the module, the batch is run again after the backward pass, before the weights are changed. It leaves no
    trace, see `step_again`. Only the first event is searched, and the first after a batch that was finite again, at
    most MOST_EVENTS times; others are counted.

    Args:
        trainer: the Trainer.
        pl_module: its module.
        exact: whether the host looks at every step, which makes it wait for the device. Otherwise a flag on the device
            is read later without waiting: then the step is known, and the module is not.
        is_scaled: whether there is a GradScaler. Then gradients are not looked at: they overflow now and then.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, *, exact: bool, is_scaled: bool = False) -> None:
        self.events: list[Nonfinite] = []
        """What has happened, at most MOST_EVENTS."""
        self.count = 0
        """In how many batches the loss or a gradient was not finite."""
        self.is_off = False
        """Whether a fault of ours has switched it off."""
        self._trainer = trainer
        self._model = pl_module
        self.is_exact = exact
        """Whether the host looks at every step, and searches the module at once."""
        self._is_scaled = is_scaled
        self._searches = 0
        self._batches = 0
        self._is_checked = False
        self._drawn = set(ALWAYS) if any(p.is_cuda for p in pl_module.parameters()) else ALWAYS - {"CUDA"}
        self._was_bad = self._is_bad = False
        self._here: tuple[int, int] = (0, 0)
        self._batch: Any = None
        self._random: RandomState | None = None
        self._versions: list[int] = []
        self._backwards = 0
        self._loss = math.nan
        self._stepped: tuple[int, int, float] | None = None
        self._sentinels = Sentinels(pl_module)
        self._flag = LateFlag()

    def parts(self) -> dict[str, Any]:
        """What a fit that is continued from a checkpoint must know."""
        return {**{name: getattr(self, name) for name in _KEPT}, "flag": self._flag.parts()}

    def go_on(self, parts: Mapping[str, Any]) -> None:
        """Know it: an event that lasts is no new one."""
        vars(self).update({name: parts[name] for name in _KEPT})
        self._say(self._flag.go_on(parts["flag"]))

    @_shielded
    def begin_batch(self, batch: Any, batch_idx: int, step: int) -> None:
        """Before `training_step`. The batch is kept until `end_batch`.

        Args:
            batch: what `training_step` will get.
            batch_idx: its index.
            step: the optimizer step that it belongs to, on the axis of the loggers.
        """
        self._here, self._backwards = (step, batch_idx), 0
        self._was_bad, self._is_bad = self._is_bad, False
        self._is_checked = self._batches % CHECKED_EVERY == 0
        if self._batches % CHECKED_EVERY in (0, 1):  # lazy layers have their parameters from the first batch on
            self._sentinels = Sentinels(self._model)
        self._batches += 1
        if not self.is_exact:
            self._read_flag()
        elif self._may_search:
            self._batch, self._versions = batch, _versions_in(batch)
            self._random = RandomState(GENERATORS.keys() if self._is_checked else self._drawn)

    @_shielded
    def before_backward(self, loss: Tensor, value: float | None = None) -> None:
        """Before each backward pass: look at the loss, or at its value where that is known."""
        self._backwards += 1
        if self.is_exact:
            self._loss = _value_of(loss) if value is None else value
            if torch.is_anomaly_enabled() and not math.isfinite(self._loss):  # then backward raises
                self._happened(self._search_forward)
        elif not (self._is_scaled and loss.dtype is torch.float16):  # it overflows when it is scaled
            self._flag.note(loss, Noted(*self._here, is_backward=False))

    @_shielded
    def after_backward(self) -> None:
        """After each backward pass: look at gradients. If something is not finite, run the batch again."""
        if self.is_exact and not math.isfinite(self._loss):
            self._happened(self._search_forward)
        else:
            self._look_at_gradients()

    @_shielded
    def before_optimizer_step(self) -> None:
        """Before the optimizer changes weights; under a GradScaler, before it may skip the step."""
        if not self._backwards:  # the user has called backward
            self._look_at_gradients()
        self._stepped = (*self._here, self._loss)

    def end_batch(self) -> None:
        """After the batch: let go of it."""
        random, self._batch, self._random = self._random, None, None
        if self._is_checked and random is not None:
            self._note_drawn(random)

    @_shielded
    def _note_drawn(self, since: RandomState) -> None:
        self._drawn |= since.moved()

    def _look_at_gradients(self) -> None:
        if self._is_scaled or (self.is_exact and self._sentinels.are_surely_finite()):
            return
        total = self._sentinels.total()
        if total is None:
            return
        if not self.is_exact:
            self._flag.note(total, Noted(*self._here, is_backward=True))
        elif not math.isfinite(float(total)):
            spoiled = spoiled_gradients(self._model)
            if spoiled:  # otherwise the sum has overflowed
                self._happened(lambda: self._search_backward(spoiled))

    def _happened(self, search: Callable[[], Nonfinite | None]) -> None:
        """Count the batch; explain it if it is the first, or the first after batches without."""
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
        return len(self.events) < MOST_EVENTS and self._searches < MOST_SEARCHES

    def _search_forward(self) -> Nonfinite | None:
        search = Search(self._model, self._batch)
        try:
            with self._again() as run, search.watching():
                loss = run()
                is_again, fault = not bool(torch.isfinite(loss).all()), search.forward_fault()
        except Exception as error:
            return said.of_unknown_place(False, *self._here, _why(error), loss=self._loss)
        if not is_again:
            if self._is_scaled:  # the scale, not the loss, was too large
                return None
            why = "run again, the batch gives a finite loss, so its state or its random numbers were others"
            return said.of_unknown_place(False, *self._here, why, loss=self._loss)
        if fault.kind == "parameter":
            return said.of_parameter(fault, *self._here, self._stepped)
        last_loss = math.nan if self._stepped is None else self._stepped[2]
        was_changed = self._versions != _versions_in(self._batch)
        return said.of_forward(
            fault, *self._here, self._loss, batch=self._batch, last_loss=last_loss, was_changed=was_changed
        )

    def _search_backward(self, spoiled: dict[str, str]) -> Nonfinite:
        search, names = Search(self._model, self._batch, with_gradients=True), list(spoiled)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        try:
            with self._again() as run, search.watching():
                gradients = torch.autograd.grad(run(), trained, allow_unused=True)
                is_again = not all(bool(torch.isfinite(stored(g)).all()) for g in gradients if g is not None)
                fault = search.backward_fault(set(spoiled.values()))
        except Exception as error:
            return said.of_unknown_place(True, *self._here, _why(error), names)
        if not is_again:
            elsewhere = self._trainer.world_size > 1
            why = "run again on this rank alone, the batch gives finite gradients"
            why += ", so they come from another rank" if elsewhere else ", so its state or random numbers were others"
            return said.of_unknown_place(True, *self._here, why, [] if elsewhere else names)
        return said.of_backward(fault, *self._here, names)

    @contextmanager
    def _again(self) -> Iterator[Callable[[], Tensor]]:
        if self._random is None:
            raise CannotRunAgainError("the batch was not kept")
        others = self._random.of_others()
        with step_again(self._trainer, self._model, self._batch, self._here[1], self._random, self._backwards) as run:

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

    def _read_flag(self) -> None:
        self._say(self._flag.read())

    def _say(self, noted: Noted | None) -> None:
        if noted is not None:
            self.count += 1
            why = "on this device it is looked at a step later; nonfinite='exact' finds the module in the step itself"
            self.events.append(said.of_unknown_place(noted.is_backward, noted.step, noted.batch_idx, why))


def _value_of(loss: Tensor) -> float:
    loss = loss.detach().abs() if loss.is_complex() else loss.detach()
    return float(loss if loss.numel() == 1 else loss.to(measuring_device(loss.device)).sum(dtype=torch.float64))


def _versions_in(batch: Any) -> list[int]:
    given = batch if type(batch) in (tuple, list) else [batch]
    # Nearly every batch is a few plain tensors, and it is looked at in every step.
    tensors = given if all(type(part) is Tensor for part in given) else [tensor for _, tensor in tensors_in(batch)]
    return [0 if tensor.is_inference() else version_of(tensor) for tensor in tensors]


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, CannotRunAgainError) else f"{type(error).__name__}: {error}"
