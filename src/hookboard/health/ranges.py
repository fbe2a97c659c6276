"""The ranges of bounded activations, and from where on a value lies at an end of one."""

from torch import nn

from hookboard.health.layers import kind_of

END = 0.97
"""How far from the middle of its range to the end an output is saturated: tanh beyond 2.1, where it passes 6 % of the
gradient (Karpathy)."""

RANGES = {
    "Tanh": (-1.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "Hardtanh": (-1.0, 1.0),
    "Hardsigmoid": (0.0, 1.0),
    "Softsign": (-1.0, 1.0),
}
"""By the name of the class; a Hardtanh may be given another one."""


def ends_of(module: nn.Module) -> tuple[float, float] | None:
    """From which two values on an output of this module is saturated; None if it is no bounded activation.

    >>> ends_of(nn.Tanh())
    (-0.97, 0.97)
    """
    if kind_of(module) != "bounded":
        return None
    if isinstance(module, nn.Hardtanh):
        low, high = module.min_val, module.max_val
    else:
        low, high = next(RANGES[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in RANGES)
    middle, half = (low + high) / 2, (high - low) / 2
    return middle - END * half, middle + END * half
