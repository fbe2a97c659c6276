"""`BlackBox`: notices the first NaN or Inf in the step where it appears, and finds the module that produced it."""

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from hookboard.first_nan.explain import backward_event, forward_event, parameter_event, unlocated_event, with_operation
from hookboard.first_nan.operation import Operation, OperationSearch
from hookboard.first_nan.search import Search
from hookboard.health import Nonfinite
from hookboard.layouts import stored
from hookboard.measure import measuring_device
from hookboard.messages import warn_switched_off
from hookboard.nested import tensors_in
from hookboard.ranks import local
from hookboard.replay import GENERATORS, CannotRunAgainError, RandomState
from hookboard.selection import named_submodules
from hookboard.torch_private import version_of


@dataclass(frozen=True)
class Noted:
    """The step that a value on the device belongs to.

    Args:
        step: the optimizer step.
        batch_idx: the index of the batch.
        is_backward: True if the value comes from gradients, False if it is the loss.
    """

    step: int
    batch_idx: int
    is_backward: bool


NEVER = 2**31
"""The value of the flag while everything has been finite."""


class LateFlag:
    """Records on the device which value was the first that was not finite, and reads that without waiting.

    After each step the device starts copying the number of that value to the host, which reads it once the copy has
    arrived: one step later, or more if the host runs far ahead of the device.
    """

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._numbers = itertools.count()
        self._notes: deque[tuple[int, Noted]] = deque(maxlen=4096)
        self._copy: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        self._is_said = False

    def note(self, value: Tensor, noted: Noted) -> None:
        """Add a value of a step: a tensor of any shape, which counts as bad if any element is NaN or infinite."""
        number = next(self._numbers)
        self._notes.append((number, noted))
        with torch.no_grad():
            value = value.detach()
            if self._first is None:
                self._first = torch.full((), NEVER, dtype=torch.int64, device=value.device)
            bad = torch.where(torch.isfinite(value).all(), NEVER, number).to(self._first.device)
            self._first = torch.minimum(self._first, bad)

    def read(self) -> Noted | None:
        """Return the step of the first bad value as soon as the host knows it, and only once; otherwise None."""
        if self._first is None or self._is_said:
            return None
        found = self._read_copy()
        if self._copy is None:
            self._send_copy(self._first)
        if found is None or found == NEVER:
            return None
        self._is_said = True
        return next((noted for number, noted in self._notes if number == found), None)

    def parts(self) -> dict[str, Any]:
        """Return what a checkpoint must hold so that a resumed fit can continue; see `go_on`."""
        notes = [(number, noted.step, noted.batch_idx, noted.is_backward) for number, noted in self._notes]
        return {"first": self._first, "is_said": self._is_said, "notes": np.array(notes, np.int64).reshape(-1, 4)}

    def go_on(self, parts: Mapping[str, Any]) -> Noted | None:
        """Restore what `parts` returned. Returns the step of the first bad value if `read` has not reported it yet."""
        found = [note for note in parts["notes"].tolist() if note[0] == parts["first"] and not parts["is_said"]]
        self._is_said = parts["is_said"] or bool(found)
        return Noted(found[0][1], found[0][2], bool(found[0][3])) if found else None

    def _read_copy(self) -> int | None:
        if self._copy is None or (self._arrived is not None and not self._arrived.query()):
            return None
        copy, self._copy = self._copy, None
        return int(copy)

    def _send_copy(self, first: Tensor) -> None:
        if not first.is_cuda:
            self._copy = first
            return
        self._copy = torch.empty((), dtype=torch.int64, pin_memory=True)
        self._copy.copy_(first, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()


MAX_WHOLE_ELEMENTS = 4096
"""Parameters with at most this many elements are read completely."""

MAX_FIRST_MODULE_ELEMENTS = 65_536
"""Parameters of the first module are read completely up to this many elements."""

MAX_SENTINELS = 64
"""Maximum number of small gradients that are read, and also of large ones of which a column is read."""

MIN_SMALL_PARAMETERS = 8
"""With fewer small parameters than this, one column of each larger parameter is read too."""


class Sentinels:
    """Chooses a few small gradients, and tells from them whether any gradient of the model is not finite.

    A NaN spreads on its way back through the model: every earlier module receives it. So it is enough to read the
    smallest parameter of each module, such as a bias or the weight of a norm, and all parameters of the first module.
    If there are few small parameters, one column of the large ones is read too: it has one element per unit.

    A sparse gradient, such as an embedding's, is always read, because nothing may come after it; of a large one, again
    only the first column.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = [
            (module, [p for p in module.parameters(recurse=False) if not is_lazy(p)]) for module in model.modules()
        ]
        sparse = {id(p): p for module, own in modules for p in own if _is_sparse(module, p)}
        self._sparse = list(sparse.values())
        own = [[p for p in own if id(p) not in sparse and not p.is_nested] for _, own in modules]
        owned = [parameters for parameters in own if parameters]
        smallest = list({id(p): p for p in (min(some, key=torch.numel) for some in owned)}.values())
        small = [p for p in smallest if p.numel() <= MAX_WHOLE_ELEMENTS]
        large = [p for p in smallest if p.numel() > MAX_WHOLE_ELEMENTS and p.ndim > 1 and len(p) <= MAX_WHOLE_ELEMENTS]
        first = [p for p in (owned[0] if owned else []) if p.numel() <= MAX_FIRST_MODULE_ELEMENTS]
        self._whole = list({id(p): p for p in [*first, *_spread(small)]}.values())
        self._columns = _spread(large) if len(small) < MIN_SMALL_PARAMETERS else []

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients that are read completely, and those of which one column is read."""
        whole, columns = _gradients_of(self._whole), _gradients_of(self._columns)
        for parameter in self._sparse:
            if parameter.grad is not None:
                held = _as_plain(stored(parameter.grad))
                (columns if held.ndim > 1 and held.numel() > MAX_FIRST_MODULE_ELEMENTS else whole).append(held)
        return whole, columns

    def values(self) -> Tensor | None:
        """Return all elements that are read, in one tensor, real numbers of shape (n,); None if there is no gradient.

        It does not wait for the device.
        """
        whole, columns = self._gradients()
        parts = [gradient if gradient.ndim == 1 else gradient.flatten() for gradient in whole]
        parts += [gradient.flatten(1).select(1, 0) for gradient in columns if gradient.numel()]
        if not parts:
            return None
        try:
            joined = torch.cat(parts)  # one operation for all costs less than one for each of them
        except RuntimeError:  # they lie on several devices
            joined = torch.cat([part.to(parts[0].device) for part in parts])
        return torch.view_as_real(joined).flatten() if joined.is_complex() else joined


def _spread(parameters: list[Parameter]) -> list[Parameter]:
    """Return at most MAX_SENTINELS of the parameters, evenly spaced over the model."""
    return parameters[:: -(-len(parameters) // MAX_SENTINELS) or 1]


def _is_sparse(module: nn.Module, parameter: Parameter) -> bool:
    """Return True if the parameter's gradient is sparse, as far as this is known before the first backward pass."""
    grad = parameter.grad
    return vars(module).get("sparse") is True or (grad is not None and grad.layout is not torch.strided)


def _gradients_of(parameters: list[Parameter]) -> list[Tensor]:
    """Return the dense gradients, as far as this rank holds them."""
    gradients = [gradient for gradient in map(_GRADIENT, parameters) if gradient is not None]
    # Of each step: what the interpreter does by itself for all of them takes a fraction of the time.
    if set(map(type, gradients)) <= {Tensor} and set(map(_LAYOUT, gradients)) <= {torch.strided}:
        return gradients
    return [_as_plain(gradient) for gradient in gradients if gradient.layout is torch.strided]


_GRADIENT, _LAYOUT = attrgetter("grad"), attrgetter("layout")


def _as_plain(gradient: Tensor) -> Tensor:
    """Return the real numbers of a gradient that this rank holds."""
    held = local(gradient)
    return torch.view_as_real(held) if held.is_complex() else held


def nonfinite_gradients(model: nn.Module) -> dict[str, str]:
    """Return every parameter whose gradient is not finite: its dotted name, mapped to its module's."""
    found = {}
    for owner, module in {"": model, **dict(named_submodules(model))}.items():
        for name, parameter in module.named_parameters(recurse=False):
            grad = parameter.grad
            if grad is not None:
                held = local(stored(grad))
                if not bool(torch.isfinite(held).all()):
                    found[f"{owner}.{name}".lstrip(".")] = owner
    return found


MAX_EVENTS = 3
"""Maximum number of events that are explained in one fit."""

MAX_SEARCHES = 10
"""Maximum number of batches that are run again in one fit. Under a GradScaler some of them turn out to be fine."""

CHECK_EVERY_N_BATCHES = 100
"""At the first batch and every this many batches, the parameters are listed again, since a model may change, and it is
noted which random generators the step draws from. Only their states are saved from then on, because reading a state is
slow.
"""


ALWAYS_SAVED = {"torch", "CUDA"}
"""Generators whose state is saved before every batch: a step may use them only now and then. CUDA's is left out if the
model is on the CPU.
"""

_KEPT = ("events", "count", "_searches", "_is_bad", "_stepped")

P = ParamSpec("P")

StepAgain = Callable[[Any, int, RandomState, int], AbstractContextManager[Callable[[], Tensor]]]
"""Takes a batch, its index, the random state before it and the number of its backward pass."""


def _shielded(method: Callable[Concatenate["BlackBox", P], None]) -> Callable[Concatenate["BlackBox", P], None]:
    """Make a method that would raise give a warning and switch the black box off instead."""

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

    To find the module, the batch is run again after the backward pass, before the weights change. This leaves no trace,
    see `undisturbed`. Only the first of several bad batches in a row is searched, and at most MAX_EVENTS such series;
    other bad batches are counted.

    Args:
        model: the model.
        step_again: see `Loop.step_again`.
        exact: True: the host checks every step, which makes it wait for the device, and finds the module. False: the
            device records the step, and the host reads that later without waiting; the module stays unknown.
        is_scaled: True if there is a GradScaler. Gradients are then not checked, because they overflow now and then.
        world_size: the number of processes.
    """

    def __init__(
        self, model: nn.Module, step_again: StepAgain, *, exact: bool, is_scaled: bool = False, world_size: int = 1
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
        self.is_exact = exact
        """True if the host checks every step and searches for the module at once."""
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
        self._flag = LateFlag()

    def parts(self) -> dict[str, Any]:
        """Return what a checkpoint must hold so that a resumed fit can continue; see `go_on`."""
        return {**{name: getattr(self, name) for name in _KEPT}, "flag": self._flag.parts()}

    def go_on(self, parts: Mapping[str, Any]) -> None:
        """Restore what `parts` returned, so that an ongoing event does not count as a new one."""
        vars(self).update({name: parts[name] for name in _KEPT})
        self._say(self._flag.go_on(parts["flag"]))

    @_shielded
    def begin_batch(self, batch: Any, batch_idx: int, step: int) -> None:
        """Call before `training_step`. The batch is kept until `end_batch`.

        Args:
            batch: the batch that `training_step` will get.
            batch_idx: its index.
            step: the optimizer step that it belongs to, as loggers count steps.
        """
        self._here, self._backwards = (step, batch_idx), 0
        self._was_bad, self._is_bad = self._is_bad, False
        self._is_checked = self._batches % CHECK_EVERY_N_BATCHES == 0
        if self._batches % CHECK_EVERY_N_BATCHES in (0, 1):  # lazy layers have their parameters from the first batch on
            self._sentinels = Sentinels(self._model)
        self._batches += 1
        if not self.is_exact:
            self._read_flag()
        elif self._may_search:
            self._batch, self._versions = batch, _versions_in(batch)
            self._random = RandomState(GENERATORS.keys() if self._is_checked else self._drawn)

    @_shielded
    def before_backward(self, loss: Tensor, value: float | None = None) -> None:
        """Call before each backward pass. Takes the loss, on which `after_backward` acts.

        If not `exact`, the device checks it. If `exact`, and anomaly detection would make the backward pass raise, the
        batch is searched at once.

        Args:
            loss: what the backward pass starts from.
            value: the same as a number, if the host knows it already.
        """
        self._backwards += 1
        if self.is_exact:
            self._loss = _value_of(loss) if value is None else value
            if torch.is_anomaly_enabled() and not math.isfinite(self._loss):  # then backward raises
                self._happened(self._search_forward)
        elif not (self._is_scaled and loss.dtype is torch.float16):  # it overflows when it is scaled
            self._flag.note(loss, Noted(*self._here, is_backward=False))

    @_shielded
    def after_backward(self) -> None:
        """Call after each backward pass. Checks loss and gradients.

        If something is not finite, the batch is run again to find the module; if not `exact`, it is only noted.
        """
        if self.is_exact and not math.isfinite(self._loss):
            self._happened(self._search_forward)
        else:
            self._look_at_gradients()

    @_shielded
    def before_optimizer_step(self) -> None:
        """Call before the optimizer changes weights; under a GradScaler, before it may skip the step.

        Checks the gradients if no backward pass was announced, because the user has called backward.
        """
        if not self._backwards:  # the user has called backward
            self._look_at_gradients()
        self._stepped = (*self._here, self._loss)

    def end_batch(self) -> None:
        """Drop the batch and the random state that were kept to run it again.

        On checked batches, first note which generators the batch drew from: only those are kept from then on.
        """
        random, self._batch, self._random = self._random, None, None
        if self._is_checked and random is not None:
            self._note_drawn(random)

    @_shielded
    def _note_drawn(self, since: RandomState) -> None:
        self._drawn |= since.moved()

    def _look_at_gradients(self) -> None:
        if self._is_scaled:
            return
        values = self._sentinels.values()
        if values is None:
            return
        if not self.is_exact:
            self._flag.note(values, Noted(*self._here, is_backward=True))
        elif not math.isfinite(float(values.sum(dtype=torch.float32))):  # of finite values it may overflow, rarely
            spoiled = nonfinite_gradients(self._model)
            if spoiled:
                self._happened(lambda: self._search_backward(spoiled))

    def _happened(self, search: Callable[[], Nonfinite | None]) -> None:
        """Count a bad batch, and explain it with `search` if the batch before it was fine."""
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
        search = Search(self._model, self._batch)
        try:
            with self._again() as run, search.watching():
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
        """Return the call that made the NaN or Inf of the loss, from one more repetition; None if it is not found.

        The repetition before is left alone: some layers take another way while functions are followed.
        """
        try:
            search = OperationSearch()
            with self._again() as run:
                with search:
                    loss = run()
                return search.of(loss)
        except Exception:  # the module is known all the same
            return None

    def _search_backward(self, spoiled: dict[str, str]) -> Nonfinite:
        search, names = Search(self._model, self._batch, with_gradients=True), list(spoiled)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        try:
            with self._again() as run, search.watching():
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
    def _again(self) -> Iterator[Callable[[], Tensor]]:
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

    def _read_flag(self) -> None:
        self._say(self._flag.read())

    def _say(self, noted: Noted | None) -> None:
        if noted is not None:
            self.count += 1
            why = "on this device it is checked a step later; nonfinite='exact' finds the module in the step itself"
            self.events.append(unlocated_event(noted.is_backward, noted.step, noted.batch_idx, why))


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
