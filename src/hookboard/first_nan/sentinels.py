"""A few small gradients that tell whether any gradient of a model is not finite."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from hookboard.layouts import stored
from hookboard.measure import are_finite, needs_host
from hookboard.ranks import local
from hookboard.selection import named_submodules

SMALL = 4096
"""Parameters of at most so many elements are read whole."""

FIRST = 65_536
"""The first module's own parameters are read whole up to so many elements."""

MOST = 64
"""So many gradients are read at most."""

FEW = 8
"""With fewer small parameters than this, columns of larger ones are read too."""


class Sentinels:
    """The gradients that are read after every backward pass.

    What is not finite spreads on its way back through a model: every module before it gets it. So it is enough to read
    the smallest parameter of each module, such as a bias or the weight of a norm, and everything of the first module.
    In models that have few small ones, one column is read of larger weights: it has one element for each unit.

    A sparse gradient, as embeddings have it, is always read: it comes last, and nothing may stand behind it. Of a large
    one it is the first column again.

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
        small = [p for p in smallest if p.numel() <= SMALL]
        large = [p for p in smallest if p.numel() > SMALL and p.ndim > 1 and len(p) <= SMALL]
        first = [p for p in (owned[0] if owned else []) if p.numel() <= FIRST]
        self._whole = list({id(p): p for p in [*first, *_spread(small)]}.values())
        self._columns = _spread(large) if len(small) < FEW else []

    def are_surely_finite(self) -> bool:
        """Whether the host sees at once that they are all finite; False says nothing: `total` does.

        It runs after every backward pass, which leaves nothing of it in the caches: what counts is to do few different
        things, in this thread alone.
        """
        whole, columns = self._gradients()
        return bool(whole or columns) and are_finite(whole, columns)

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Those that are read whole, and those of which a column is read."""
        whole = [grad for p in self._whole if (grad := p.grad) is not None]
        columns = [grad for p in self._columns if (grad := p.grad) is not None]
        for parameter in self._sparse:
            if parameter.grad is not None:
                held = stored(parameter.grad)
                (columns if held.ndim > 1 and held.numel() > FIRST else whole).append(held)
        return whole, columns

    def total(self) -> Tensor | None:
        """A number that is not finite if one of them is not, such as their sum, shape (). None if there is no gradient.

        Nothing waits for the device.
        """
        whole, columns = self._gradients()
        parts = [gradient.flatten() for gradient in _plain(whole)]
        parts += [gradient.flatten(1).select(1, 0) for gradient in _plain(columns) if gradient.numel()]
        if not parts:
            return None
        device = parts[0].device
        try:
            joined = torch.cat(parts)  # one operation on small tensors costs less than one for each of them
        except RuntimeError:  # they lie on several devices
            joined = torch.cat([part.to(device) for part in parts])
        if needs_host(device):  # a sum in float32 could overflow; x - x is 0 or NaN
            return joined.sub(joined).sum()
        return joined.sum(dtype=torch.float64)


def _spread(parameters: list[Parameter]) -> list[Parameter]:
    """At most MOST of them, evenly over the model."""
    return parameters[:: -(-len(parameters) // MOST) or 1]


def _is_sparse(module: nn.Module, parameter: Parameter) -> bool:
    """Whether the gradient of a module's parameter is sparse, as far as can be told before the first one."""
    grad = parameter.grad
    return vars(module).get("sparse") is True or (grad is not None and grad.layout is not torch.strided)


def _plain(gradients: list[Tensor]) -> Iterator[Tensor]:
    for gradient in gradients:
        if gradient.layout is torch.strided:
            held = local(gradient)
            yield torch.view_as_real(held) if held.is_complex() else held


def spoiled_gradients(model: nn.Module) -> dict[str, str]:
    """All parameters whose gradient is not finite: dotted name to the name of the module that owns it."""
    found = {}
    for owner, module in {"": model, **dict(named_submodules(model))}.items():
        for name, parameter in module.named_parameters(recurse=False):
            grad = parameter.grad
            if grad is not None:
                held = local(stored(grad))
                if not bool(torch.isfinite(held).all()):
                    found[f"{owner}.{name}".lstrip(".")] = owner
    return found
