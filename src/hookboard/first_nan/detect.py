"""Notices a NaN or Inf: `Sentinels` reads a few gradients, `LateFlag` keeps on the device what came first."""

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

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold so that a resumed fit can continue; see `load_state_dict`."""
        notes = [(number, noted.step, noted.batch_idx, noted.is_backward) for number, noted in self._notes]
        return {"first": self._first, "is_said": self._is_said, "notes": np.array(notes, np.int64).reshape(-1, 4)}

    def load_state_dict(self, parts: Mapping[str, Any]) -> Noted | None:
        """Restore what `state_dict` returned; return the first bad value unless `read` has reported it."""
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
