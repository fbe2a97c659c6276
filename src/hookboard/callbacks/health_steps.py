"""What the optimizers do with each weight in a step, and what holds that back."""

from collections.abc import Mapping

from torch.optim import SGD, AdamW, Optimizer

from hookboard.health import HeldBack, Stepped
from hookboard.parameters import Weight


def what_holds_back(optimizer: Optimizer, weights: Mapping[str, Weight], largest_norm: float) -> Mapping[str, HeldBack]:
    """Return what holds the steps of each weight of an optimizer back, by the weight's name.

    Args:
        optimizer: steps some of the weights.
        weights: of the model.
        largest_norm: the norm to which gradients are clipped.
    """
    of = {}
    for group in optimizer.param_groups:
        is_decoupled = bool(group.get("decoupled_weight_decay", isinstance(optimizer, AdamW)))
        decay = float(group.get("weight_decay", 0.0)) if type(optimizer).__module__.startswith("torch.optim") else 0.0
        of.update(dict.fromkeys(map(id, group["params"]), HeldBack(decay, is_decoupled, largest_norm)))
    return {name: of[id(p)] for name, weight in weights.items() for p in weight.parameters if id(p) in of}


def steps_of(optimizer: Optimizer, weights: Mapping[str, Weight]) -> dict[str, Stepped]:
    """Return what an optimizer does with each weight at its current learning rates, by the weight's name.

    A weight that is frozen now (`requires_grad` is False) is left out: the optimizer holds it and does nothing with it.
    """
    kind, is_adaptive = type(optimizer).__name__, not isinstance(optimizer, SGD)
    stepped = {}
    for group in optimizer.param_groups:
        stepped.update(dict.fromkeys(map(id, group["params"]), Stepped(kind, float(group.get("lr", 0.0)), is_adaptive)))
    return {
        name: stepped[id(parameter)]
        for name, weight in weights.items()
        for parameter in weight.parameters
        if id(parameter) in stepped and parameter.requires_grad
    }
