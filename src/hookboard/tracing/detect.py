"""Notices gradients with a NaN or Inf: `Sentinels` reads a few of them, `nonfinite_gradients` all."""

from functools import partial
from operator import attrgetter, is_not

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from hookboard.base.ranks import local
from hookboard.base.torch_private import modules_in, parameters_in
from hookboard.model.layouts import stored
from hookboard.model.selection import named_submodules

MAX_WHOLE_ELEMENTS = 4096
"""Maximum number of elements of a parameter whose gradient is read completely."""

MAX_FIRST_MODULE_ELEMENTS = 65_536
"""Maximum number of elements of a parameter of the first module, or of a sparse gradient, that is read completely."""

MAX_SENTINELS = 64
"""Maximum number of small gradients that are read, and of large ones of which one column is read."""

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
            (one, [p for p in parameters_in(one, recurse=False).values() if not is_lazy(p)])
            for one in modules_in(model).values()
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

    def values(self) -> Tensor | None:
        """Return all elements that are read in one real tensor of shape (n,); None if none of them has a gradient."""
        whole, columns = _gradients_of(self._whole), _gradients_of(self._columns) if self._columns else []
        for parameter in self._sparse:
            if parameter.grad is not None:
                held = _as_plain(stored(parameter.grad))
                (columns if held.ndim > 1 and held.numel() > MAX_FIRST_MODULE_ELEMENTS else whole).append(held)
        parts = [*map(torch.flatten, whole)]
        for gradient in columns:
            parts += [gradient.flatten(1).select(1, 0)] if gradient.numel() else []
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
    # This runs in every step: `map` and `set` take a fraction of the time of a loop in Python.
    gradients = [*filter(_IS_THERE, map(_GRADIENT, parameters))]
    if set(map(type, gradients)) <= {Tensor} and set(map(_LAYOUT, gradients)) <= {torch.strided}:
        return gradients
    return [_as_plain(gradient) for gradient in gradients if gradient.layout is torch.strided]


_GRADIENT, _LAYOUT, _IS_THERE = attrgetter("grad"), attrgetter("layout"), partial(is_not, None)


def _as_plain(gradient: Tensor) -> Tensor:
    """Return the part of a gradient on this rank; a complex one as real numbers."""
    held = local(gradient)
    return torch.view_as_real(held) if held.is_complex() else held


def nonfinite_gradients(model: nn.Module) -> dict[str, str]:
    """Return the dotted name of each parameter whose gradient has a NaN or Inf, mapped to the name of its module."""
    found = {}
    for owner, module in {"": model, **dict(named_submodules(model))}.items():
        for name, parameter in parameters_in(module, recurse=False).items():
            grad = parameter.grad
            if grad is not None:
                held = local(stored(grad))
                if not bool(torch.isfinite(held).all()):
                    found[f"{owner}.{name}".lstrip(".")] = owner
    return found
