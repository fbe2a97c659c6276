"""The parameters of the selected modules."""

from collections.abc import Mapping

from torch import nn
from torch.nn import Parameter
from torch.optim import Optimizer


def own_parameters(modules: Mapping[str, nn.Module]) -> dict[str, Parameter]:
    """The parameters that these modules own themselves, by dotted name; one that is shared under its first.

    >>> list(own_parameters({"head": nn.Linear(2, 1)}))
    ['head.weight', 'head.bias']
    """
    found: dict[str, Parameter] = {}
    seen: set[int] = set()
    for module_name, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{module_name}.{name}"] = parameter
    return found


def stepped_by(optimizer: Optimizer, parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Those of `parameters` that this optimizer holds."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: parameter for name, parameter in parameters.items() if id(parameter) in held}


def why_silent(parameter: Parameter) -> str:
    """The likeliest cause why a parameter had no gradient or no update in a step."""
    if not parameter.requires_grad:
        return "the parameter is frozen (requires_grad is False)"
    if parameter.grad is None:
        return "the parameter received no gradient in this step"
    return "no optimizer that stepped holds the parameter"
