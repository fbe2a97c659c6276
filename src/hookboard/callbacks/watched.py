"""What `HealthMonitor` watches: layers, a part of each weight, and how optimizers step them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from hookboard.auditing import RULES
from hookboard.health import HeldBack, Stepped, every_unit
from hookboard.loops import Loop, Selection
from hookboard.parameters import Weight
from hookboard.selection import NothingToSelectError, is_read_by_parent, select


def layers_in(
    model: nn.Module,
    modules: str | Sequence[str] | None,
    types: str | type | Sequence[str | type] | None,
) -> Selection:
    """Select the layers that `HealthMonitor` watches.

    Raises:
        ValueError: the patterns or types match no module, or the model has none.
    """
    try:
        owners = select(model, modules, types, owning="parameters")
    except NothingToSelectError:
        owners = {}
    except ValueError as error:
        raise ValueError(f"{error}{_rule_among(modules)}") from None
    selected = select(model, modules, types)
    if modules is None and types is None:
        selected |= {name: module for name, module in owners.items() if name and not is_read_by_parent(name, owners)}
    return Selection(selected, owners)


def _rule_among(modules: object) -> str:
    """Return a hint if the name of a rule was given as `modules`; otherwise ""."""
    given = list(modules) if isinstance(modules, list | tuple) else [modules]
    rule = next((name for name in RULES if name in given), None)
    return f" {rule!r} is a rule: give rules={rule!r}." if rule else ""


def some_units(weight: Tensor) -> Tensor:
    """Return every k-th unit of a large weight or its gradient, see `every_unit`; a DTensor or a vector as it is.

    >>> some_units(torch.zeros(1000, 200)).shape
    torch.Size([250, 200])
    """
    every = every_unit(weight.shape)
    # A DTensor would have to ask the other ranks for a slice.
    if every == 1 or weight.dim() < 2 or isinstance(weight, DTensor):
        return weight
    if weight.layout is torch.strided:
        return weight[::every]
    units = torch.arange(0, len(weight), every, device=weight.device)
    return weight.index_select(0, units).to_dense()


def steps_of(
    loop: Loop, optimizer: Optimizer, weights: Mapping[str, Weight]
) -> tuple[dict[str, Stepped], dict[str, HeldBack]]:
    """Read the settings of an optimizer for each weight that it holds.

    Args:
        loop: the loop, which may clip gradients.
        optimizer: the optimizer.
        weights: all watched weights by name.

    Returns:
        Weight name to `Stepped`, without weights that are frozen now (`requires_grad` is False); and weight name to
        `HeldBack`.
    """
    kind, is_adaptive = type(optimizer).__name__, not isinstance(optimizer, SGD)
    is_of_torch = type(optimizer).__module__.startswith("torch.optim")
    of: dict[int, tuple[Stepped, HeldBack]] = {}
    for group in optimizer.param_groups:
        decay = float(group.get("weight_decay", 0.0)) if is_of_torch else 0.0
        is_decoupled = bool(group.get("decoupled_weight_decay", isinstance(optimizer, AdamW)))
        both = Stepped(kind, float(group.get("lr", 0.0)), is_adaptive), HeldBack(decay, is_decoupled, loop.largest_norm)
        of.update(dict.fromkeys(map(id, group["params"]), both))
    stepped: dict[str, Stepped] = {}
    held_back: dict[str, HeldBack] = {}
    for name, weight in weights.items():
        for parameter in weight.parameters:
            if id(parameter) in of:
                step, held_back[name] = of[id(parameter)]
                if parameter.requires_grad:
                    stepped[name] = step
    return stepped, held_back
