"""`all_finite`: notices a NaN or Inf in a few gradients. `nonfinite_gradients` looks at all of them."""

import math
from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from hookboard.base.ranks import local
from hookboard.base.torch_private import modules_in, parameters_in
from hookboard.model.layouts import stored
from hookboard.model.selection import named_submodules
from hookboard.tracing.bad_operation import is_finite

MAX_WHOLE_ELEMENTS = 4096
"""Of a gradient with more elements only the first column is read: it has one element for each unit."""

MAX_UNITS = 4096
"""Of a large gradient with more units than this nothing is read, unless it is sparse."""

MAX_SENTINELS = 64
"""Maximum number of gradients that are read, besides those of the first module and sparse ones."""

MIN_SMALL = 8
"""From this many small gradients on, the columns of large ones are not read."""


def sentinels_of(model: nn.Module) -> list[Parameter]:
    """Return a few parameters whose gradients show whether any gradient of a model has a NaN or Inf.

    The backward pass carries a NaN on to every earlier module. So it is enough to read the gradient of the smallest
    parameter of each module, such as a bias or the weight of a norm, of all parameters of the first module, and those
    that are sparse, such as an embedding's, because the backward pass may end there.
    """
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
