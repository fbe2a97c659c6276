"""The weights that modules compute with, and the parameters behind them (pruned ones included)."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.torch_private import modules_of, parameters_in, parameters_of


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight that a module uses.

    Args:
        module: the module.
        attribute: the weight's name in the module, such as `weight`.
        parameter: the parameter behind it: itself; `weight_orig` if it is pruned.
        is_pruned: whether `torch.nn.utils.prune` masks it.
    """

    module: nn.Module
    attribute: str
    parameter: Parameter
    is_pruned: bool = False

    @functools.cached_property  # it is read for each weight at each due step
    def is_plain(self) -> bool:
        """True if the weight is the parameter itself, of exactly the class `torch.nn.Parameter`."""
        return not self.is_pruned and type(self.parameter) is Parameter

    @property
    def in_use(self) -> Tensor:
        """The weight as the module uses it, computed from the current parameter, detached."""
        return weight_in_use(self.module, self.attribute) if self.is_pruned else self.parameter.detach()

    @property
    def grad(self) -> Tensor | None:
        """The gradient of its parameter (0 where it is pruned); None if it has none."""
        return self.parameter.grad

    @property
    def is_lazy(self) -> bool:
        """Whether it has no shape before the first forward pass."""
        return is_lazy(self.parameter)

    def is_same(self, other: "Weight | None") -> bool:
        """Return True if both are made of the same parameter; False for None."""
        return other is not None and self.parameter is other.parameter


def are_unchanged(weights: Mapping[str, Weight], modules: Mapping[str, nn.Module]) -> bool:
    """Return True if the modules still own just these weights, so that `weights_of` need not be called again.

    It takes a fraction of the time of `weights_of`. It does not notice a mask that was registered or deleted directly,
    without `torch.nn.utils.prune`.

    Args:
        weights: what `weights_of` found.
        modules: the modules, as they were given to `weights_of`.

    >>> head = nn.Linear(2, 1)
    >>> found = weights_of({"head": head})
    >>> are_unchanged(found, {"head": head})
    True
    >>> head.bias = None
    >>> are_unchanged(found, {"head": head})
    False
    """
    now: dict[int, tuple[int, str]] = {}
    for module in modules.values():
        for name, parameter in parameters_of(module).items():
            if parameter is not None:
                now.setdefault(id(parameter), (id(module), name))
    names = ((one, f"{one.attribute}_orig" if one.is_pruned else one.attribute) for one in weights.values())
    return now == {id(one.parameter): (id(one.module), name) for one, name in names}


def weight_in_use(module: nn.Module, attribute: str = "weight") -> Tensor:
    """Return the weight that a module computes with, detached.

    A pruned weight is computed as `weight_orig * weight_mask`, because the attribute still has the value of the last
    forward.
    """
    if _is_pruned(module, attribute):
        original, mask = getattr(module, f"{attribute}_orig"), getattr(module, f"{attribute}_mask")
        return original.detach() * mask.detach()  # type: ignore[no-any-return]  # getattr is untyped
    return getattr(module, attribute).detach()  # type: ignore[no-any-return]  # getattr is untyped


def weights_of(modules: Mapping[str, nn.Module]) -> dict[str, Weight]:
    """Return the weights that these modules own themselves, by dotted name; a shared one has its first name.

    >>> list(weights_of({"head": nn.Linear(2, 1)}))
    ['head.weight', 'head.bias']
    >>> from torch.nn.utils import prune
    >>> list(weights_of({"head": prune.l1_unstructured(nn.Linear(2, 1), "weight", amount=1)}))
    ['head.bias', 'head.weight']
    """
    found: dict[str, Weight] = {}
    seen: set[int] = set()
    for module_name, module in modules.items():
        prefix = f"{module_name}." if module_name else ""
        for name, parameter in parameters_in(module, recurse=False).items():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                original = name.removesuffix("_orig")
                is_pruned = original != name and _is_pruned(module, original)
                attribute = original if is_pruned else name
                found[prefix + attribute] = Weight(module, attribute, parameter, is_pruned)
    return found


def parametrized(module: nn.Module) -> list[str]:
    """Return the attributes of a module that `torch.nn.utils.parametrize` computes."""
    parts = modules_of(module)
    return list(modules_of(parts["parametrizations"])) if "parametrizations" in parts else []  # type: ignore[arg-type]


def stepped_by(optimizer: Optimizer, weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Return the weights that this optimizer updates, because it holds their parameters."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: weight for name, weight in weights.items() if id(weight.parameter) in held}


def why_silent(weight: Weight) -> str:
    """Return the most likely reason why a weight had no gradient or no update in a step."""
    if not weight.parameter.requires_grad:
        return "the parameter is frozen (requires_grad is False)"
    if weight.grad is None:
        return "the parameter received no gradient in this step"
    return "the parameter is not in any optimizer that stepped"


def _is_pruned(module: nn.Module, attribute: str) -> bool:
    """Return True if `torch.nn.utils.prune` masks the attribute; the old spectral norm has an original but no mask."""
    names = (f"{attribute}_orig", f"{attribute}_mask")
    return all(isinstance(getattr(module, name, None), Tensor) for name in names)
