"""The weights that modules compute with, and the parameters behind them (pruned and parametrized ones included)."""

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.torch_private import modules_of, parameters_in, parameters_of, without_autocast
from hookboard.model.state import same_random_state


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight that a module uses.

    Args:
        module: the module.
        attribute: the weight's name in the module, such as `weight`.
        parameters: the parameters behind it: itself; `weight_orig` if it is pruned; the originals of a parametrization.
        is_pruned: whether `torch.nn.utils.prune` masks it.
        is_computed: whether a parametrization computes it; then it has no gradient of its own.
    """

    module: nn.Module
    attribute: str
    parameters: tuple[Parameter, ...]
    is_pruned: bool = False
    is_computed: bool = False

    @functools.cached_property  # it is read for each weight at each due step
    def is_plain(self) -> bool:
        """True if the weight is the parameter itself, of exactly the class `torch.nn.Parameter`."""
        return not (self.is_computed or self.is_pruned) and type(self.parameters[0]) is Parameter

    @property
    def in_use(self) -> Tensor:
        """The weight as the module uses it, computed from the current parameters, detached."""
        if self.is_computed or self.is_pruned:
            return weight_in_use(self.module, self.attribute)
        return self.parameters[0].detach()

    @property
    def grad(self) -> Tensor | None:
        """The gradient of its parameter (0 where it is pruned); None if it has none or is computed."""
        return None if self.is_computed else self.parameters[0].grad

    @property
    def is_lazy(self) -> bool:
        """Whether it has no shape before the first forward pass."""
        return any(is_lazy(parameter) for parameter in self.parameters)

    def is_same(self, other: "Weight | None") -> bool:
        """Return True if both are made of the same parameters; False for None."""
        return other is not None and [*map(id, self.parameters)] == [*map(id, other.parameters)]


def are_unchanged(weights: Mapping[str, Weight], modules: Mapping[str, nn.Module]) -> bool:
    """Return True if the modules still own just these weights, so that `weights_of` need not be called again.

    It takes a fraction of the time of `weights_of`. It may return False although nothing has changed, as with
    parametrizations. It does not notice a mask that was registered or deleted directly, without `torch.nn.utils.prune`.

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
    return now == {id(one.parameters[0]): (id(one.module), name) for one, name in names}


def weight_in_use(module: nn.Module, attribute: str = "weight") -> Tensor:
    """Return the weight that a module computes with, detached.

    A pruned weight is computed as `weight_orig * weight_mask`, because the attribute still has the value of the last
    forward. A weight that a parametrization computes is computed anew, without side effects.
    """
    if _is_pruned(module, attribute):
        original, mask = getattr(module, f"{attribute}_orig"), getattr(module, f"{attribute}_mask")
        return original.detach() * mask.detach()  # type: ignore[no-any-return]  # getattr is untyped
    if attribute in parametrized(module):
        return _computed(module.parametrizations[attribute])  # type: ignore[index]  # a ModuleDict
    return getattr(module, attribute).detach()  # type: ignore[no-any-return]  # getattr is untyped


def _computed(parametrization: Any) -> Tensor:
    """Return the weight that a parametrization computes from its parameters, detached.

    Its code runs on a copy, in evaluation mode and without autocast. The random state is restored afterwards. torch's
    generators are seeded with 0, so that two results differ only if the module does.
    """
    with torch.no_grad(), without_autocast(), same_random_state():
        twin = copy.deepcopy(parametrization).eval()
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():  # otherwise the seed would replace the one that the user has set for its start
            torch.cuda.manual_seed_all(0)
        # Past its hooks and past the cache of `parametrize.cached()`, which the next forward would read.
        return twin.forward().detach()  # type: ignore[no-any-return]  # of the user's class


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
                found[prefix + attribute] = Weight(module, attribute, (parameter,), is_pruned=is_pruned)
        for attribute in parametrized(module):
            originals = tuple(module.parametrizations[attribute].parameters(recurse=False))  # type: ignore[index,union-attr]  # a ModuleDict
            found[prefix + attribute] = Weight(module, attribute, originals, is_computed=True)
    return found


def parametrized(module: nn.Module) -> list[str]:
    """Return the attributes of a module that `torch.nn.utils.parametrize` computes."""
    parts = modules_of(module)
    return list(modules_of(parts["parametrizations"])) if "parametrizations" in parts else []  # type: ignore[arg-type]


def stepped_by(optimizer: Optimizer, weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Return the weights that this optimizer updates, because it holds at least one of their parameters."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: w for name, w in weights.items() if not held.isdisjoint(map(id, w.parameters))}


def why_silent(weight: Weight) -> str:
    """Return the most likely reason why a weight had no gradient or no update in a step."""
    if not any(parameter.requires_grad for parameter in weight.parameters):
        return "the parameter is frozen (requires_grad is False)"
    if all(parameter.grad is None for parameter in weight.parameters):
        return "the parameter received no gradient in this step"
    return "the parameter is empty, or not in any optimizer that stepped"


def _is_pruned(module: nn.Module, attribute: str) -> bool:
    """Return True if `torch.nn.utils.prune` masks the attribute; the old spectral norm has an original but no mask."""
    names = (f"{attribute}_orig", f"{attribute}_mask")
    return all(isinstance(getattr(module, name, None), Tensor) for name in names)
