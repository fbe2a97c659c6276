"""What `HealthMonitor` watches of a model: its layers, and the units of large weights."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hookboard.health import MOST_VALUES, RULES, every_unit
from hookboard.loops import Selection
from hookboard.messages import listed, warn
from hookboard.parameters import Weight
from hookboard.selection import NothingToSelectError, select


def layers_in(
    model: nn.Module,
    modules: str | Sequence[str] | None,
    types: str | type | Sequence[str | type] | None,
) -> Selection:
    """What is watched of a model, see `HealthMonitor`.

    Raises:
        ValueError: the patterns or types match no module.
    """
    try:
        owners = select(model, modules, types, owning="parameters")
    except NothingToSelectError:
        owners = {}
    except ValueError as error:
        raise ValueError(f"{error}{_rule_among(modules)}") from None
    selected = select(model, modules, types)
    if modules is None and types is None:
        selected |= {name: module for name, module in owners.items() if name}
    return Selection(selected, owners)


def _rule_among(modules: object) -> str:
    """A hint, where the name of a rule was given for modules; else ""."""
    given = list(modules) if isinstance(modules, list | tuple) else [modules]
    rule = next((name for name in RULES if name in given), None)
    return f" {rule!r} is a rule: give rules={rule!r}." if rule else ""


def some_units(weight: Tensor) -> Tensor:
    """Of a large weight, or its gradient, every k-th unit, whole; of a small one all.

    >>> some_units(torch.zeros(1000, 200)).shape
    torch.Size([250, 200])
    """
    if weight.numel() <= MOST_VALUES:
        return weight
    every = every_unit(weight.shape)
    # A DTensor would have to ask the other ranks for a slice.
    if every == 1 or weight.dim() < 2 or isinstance(weight, DTensor):
        return weight
    if weight.layout is torch.strided:
        return weight[::every]
    units = torch.arange(0, len(weight), every, device=weight.device)
    return weight.index_select(0, units).to_dense()


def say_split(weights: Mapping[str, Weight]) -> None:
    """Warn of weights that are split over processes: what cannot be seen of them."""
    split = [name for name, weight in weights.items() if any(isinstance(part, DTensor) for part in weight.parameters)]
    if split:
        warn(
            f"HealthMonitor: {len(split)} weights are split over processes ({listed(split, 3)}): their units cannot be "
            "told apart. symmetric_units does not judge them, and dead_units goes by the outputs of activation modules "
            "alone. Where outputs are split too (tensor parallelism), a unit counts as dead only if the same unit of "
            "each part is dead."
        )
