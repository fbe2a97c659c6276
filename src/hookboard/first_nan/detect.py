"""Notices a NaN or Inf: `Sentinels` reads a few gradients; `LateFlag` records on the device which value was first."""

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from hookboard.layouts import stored
from hookboard.ranks import local
from hookboard.selection import named_submodules


@dataclass(frozen=True)
class CheckedValue:
    """The batch that a checked value belongs to, and whether the value is the loss or gradients.

    Args:
        step: the optimizer step.
        batch_idx: the index of the batch.
        is_backward: True if the value comes from gradients, False if it is the loss.
    """

    step: int
    batch_idx: int
    is_backward: bool


NEVER = 2**31
"""The value of the flag while every value has been finite."""


class LateFlag:
    """Records on the device which of the checked values was the first with a NaN or Inf.

    Values are numbered in the order of `check`. `read` never waits for the device: it starts a copy of the first bad
    number to the host and returns it at a later call, when the copy has arrived.
    """

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._numbers = itertools.count()
        self._checked: deque[tuple[int, CheckedValue]] = deque(maxlen=4096)
        self._copy: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None
        self._is_said = False

    def check(self, value: Tensor, source: CheckedValue) -> None:
        """Have the device check a tensor of any shape: it is bad if any element is NaN or infinite."""
        number = next(self._numbers)
        self._checked.append((number, source))
        with torch.no_grad():
            value = value.detach()
            if self._first is None:
                self._first = torch.full((), NEVER, dtype=torch.int64, device=value.device)
            bad = torch.where(torch.isfinite(value).all(), NEVER, number).to(self._first.device)
            self._first = torch.minimum(self._first, bad)

    def read(self) -> CheckedValue | None:
        """Return the first bad value, once, at the first call at which its number is on the host; otherwise None."""
        if self._first is None or self._is_said:
            return None
        found = self._read_copy()
        if self._copy is None:
            self._send_copy(self._first)
        if found is None or found == NEVER:
            return None
        self._is_said = True
        return next((source for number, source in self._checked if number == found), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of the first bad value, whether `read` has returned it, and the checked values."""
        notes = [(number, one.step, one.batch_idx, one.is_backward) for number, one in self._checked]
        return {"first": self._first, "is_said": self._is_said, "notes": np.array(notes, np.int64).reshape(-1, 4)}

    def load_state_dict(self, parts: Mapping[str, Any]) -> CheckedValue | None:
        """Return the first bad value of a saved state, unless it was reported before: then, and without one, None.

        From then on it counts as reported, and `read` returns None.
        """
        found = [note for note in parts["notes"].tolist() if note[0] == parts["first"] and not parts["is_said"]]
        self._is_said = parts["is_said"] or bool(found)
        return CheckedValue(found[0][1], found[0][2], bool(found[0][3])) if found else None

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
"""Maximum number of elements of a parameter whose gradient is read completely."""

MAX_FIRST_MODULE_ELEMENTS = 65_536
"""Maximum number of elements of a parameter of the first module, or of a sparse gradient, that is read completely."""

MAX_SENTINELS = 64
"""Maximum number of small gradients that are read; likewise of large ones of which one column is read."""

MIN_SMALL_PARAMETERS = 8
"""With fewer small parameters than this, one column of each larger parameter is read too."""


class Sentinels:
    """Chooses a few small gradients that show whether any gradient of the model has a NaN or Inf.

    The backward pass carries a NaN on to every earlier module. So it is enough to read the gradient of the smallest
    parameter of each module, such as a bias or the weight of a norm, and of all parameters of the first module. If
    there are few small parameters, the first column of the large ones is read too: it has one element per unit.

    A sparse gradient, such as an embedding's, is always read, because the backward pass may end there; of a large one,
    again only the first column.

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
        """Return all elements that are read in one real tensor of shape (n,); None if none of them has a gradient.

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
    """Return True if the module was made with `sparse=True`, or the parameter holds a sparse gradient already."""
    grad = parameter.grad
    return vars(module).get("sparse") is True or (grad is not None and grad.layout is not torch.strided)


def _gradients_of(parameters: list[Parameter]) -> list[Tensor]:
    """Return the dense gradients of the parameters that have one; of a sharded one, the part on this rank."""
    gradients = [gradient for gradient in map(_GRADIENT, parameters) if gradient is not None]
    # This runs in every step: `map` and `set` take a fraction of the time of a loop in Python.
    if set(map(type, gradients)) <= {Tensor} and set(map(_LAYOUT, gradients)) <= {torch.strided}:
        return gradients
    return [_as_plain(gradient) for gradient in gradients if gradient.layout is torch.strided]


_GRADIENT, _LAYOUT = attrgetter("grad"), attrgetter("layout")


def _as_plain(gradient: Tensor) -> Tensor:
    """Return the part of a gradient on this rank; a complex one as real numbers."""
    held = local(gradient)
    return torch.view_as_real(held) if held.is_complex() else held


def nonfinite_gradients(model: nn.Module) -> dict[str, str]:
    """Return the dotted name of each parameter whose gradient has a NaN or Inf, mapped to the name of its module."""
    found = {}
    for owner, module in {"": model, **dict(named_submodules(model))}.items():
        for name, parameter in module.named_parameters(recurse=False):
            grad = parameter.grad
            if grad is not None:
                held = local(stored(grad))
                if not bool(torch.isfinite(held).all()):
                    found[f"{owner}.{name}".lstrip(".")] = owner
    return found
