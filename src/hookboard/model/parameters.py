"""The parameters of modules by dotted name, called weights, and what is asked of them in a step."""

from collections.abc import Mapping

from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer

from hookboard.base.torch_private import parameters_of


def weights_of(modules: Mapping[str, nn.Module]) -> dict[str, Parameter]:
    """Return the parameters that these modules own themselves, by dotted name; a shared one has its first name.

    >>> list(weights_of({"head": nn.Linear(2, 1)}))
    ['head.weight', 'head.bias']
    """
    found: dict[int, tuple[str, Parameter]] = {}
    for module_name, module in modules.items():
        for name, parameter in nn.Module.named_parameters(module, module_name, recurse=False):
            found.setdefault(id(parameter), (name, parameter))
    return dict(found.values())


def are_unchanged(weights: Mapping[str, Parameter], modules: Mapping[str, nn.Module]) -> bool:
    """Return True if the modules still own just these weights, so that `weights_of` need not be called again.

    It takes a fraction of the time of `weights_of`. It may return False although nothing has changed.

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
    own = ((name, id(one)) for each in modules.values() for name, one in parameters_of(each).items() if one is not None)
    return list(dict.fromkeys(own)) == [(name.rpartition(".")[2], id(one)) for name, one in weights.items()]


def stepped_by(optimizer: Optimizer, weights: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the weights that this optimizer updates."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: weight for name, weight in weights.items() if id(weight) in held}


def why_silent(weight: Parameter) -> str:
    """Return the most likely reason why a weight had no gradient or no update in a step."""
    if not weight.requires_grad:
        return "the parameter is frozen (requires_grad is False)"
    if weight.grad is None:
        return "the parameter received no gradient in this step"
    return "the parameter is empty, or not in any optimizer that stepped"
