"""A few small gradients that tell whether any gradient of a model is not finite."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from hookboard.ranks import local
from hookboard.selection import named_submodules

SMALL = 4096
"""Parameters of at most so many elements are read whole."""

FIRST = 65_536
"""The first module's own parameters are read whole up to so many elements."""

MOST_COLUMNS = 32
"""Of larger parameters one column is read, of at most so many modules."""


class Sentinels:
    """The gradients that are read after every backward pass.

    What is not finite spreads on its way back through a model: every module before it gets it. So it is enough to read
    the smallest parameter of each module, such as a bias or the weight of a norm. Of a larger weight one column is
    read, which has one element for each unit; and everything of the first module.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        own = [list(module.parameters(recurse=False)) for module in model.modules()]
        owned = [parameters for parameters in own if parameters]
        smallest = [min(parameters, key=torch.numel) for parameters in owned]
        first = [p for p in (owned[0] if owned else []) if p.numel() <= FIRST]
        whole = [*(p for p in smallest if p.numel() <= SMALL), *first]
        large = [p for p in smallest if p.numel() > SMALL and p.ndim > 1 and len(p) <= SMALL]
        self._whole = list({id(p): p for p in whole}.values())
        self._columns = list({id(p): p for p in large}.values())[:MOST_COLUMNS]

    def norm(self) -> Tensor | None:
        """The L2 norm of them all, shape (): not finite if one of them is not. None if there is no gradient.

        It overflows at gradients of 1e19 and more in float32. Nothing waits for the device.
        """
        gradients = [*_gradients(self._whole), *map(_column, _gradients(self._columns))]
        return torch.nn.utils.get_total_norm(gradients) if gradients else None


def _gradients(parameters: list[Parameter]) -> Iterator[Tensor]:
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.layout is torch.strided:
            yield local(grad)


def _column(grad: Tensor) -> Tensor:
    return grad.flatten(1).select(1, 0) if grad.numel() else grad


def spoiled_gradients(model: nn.Module) -> dict[str, str]:
    """All parameters whose gradient is not finite: dotted name to the name of the module that owns it."""
    found = {}
    for owner, module in {"": model, **dict(named_submodules(model))}.items():
        for name, parameter in module.named_parameters(recurse=False):
            grad = parameter.grad
            if grad is not None:
                held = local(grad.coalesce().values() if grad.is_sparse else grad)
                if not bool(torch.isfinite(held).all()):
                    found[f"{owner}.{name}".lstrip(".")] = owner
    return found
