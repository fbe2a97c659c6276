"""What statistics must know of the model beside its tensors, and those that a site does not have."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from hookboard.layers import DefinedDims, ends_of, layers_of
from hookboard.loops import inform
from hookboard.measure import Plan, needs_host
from hookboard.parameters import weights_of
from hookboard.patterns import folded
from hookboard.recording import Reading
from hookboard.selection import named_submodules
from hookboard.sites import Role, Site


def facts_of(model: nn.Module, plan: Plan) -> dict[str, Any]:
    """What a recorder needs for the statistics of a plan: `channels` and `ends`, where they ask for them."""
    facts: dict[str, Callable[..., Any]] = {}
    modules = {"": model, **dict(named_submodules(model))}
    if "channels" in plan.wanted:
        weights = {name: weight for name, weight in weights_of(modules).items() if not weight.is_lazy}
        facts["channels"] = DefinedDims(layers_of(modules, weights))
    if "saturated_fraction" in plan.names:

        def ends(site: Site) -> tuple[float, float] | None:
            return ends_of(modules[site.name]) if site.role == "output" and site.name in modules else None

        facts["ends"] = ends
    return facts


def without_curves(
    names_of: Callable[[Role], Sequence[str]], readings: Sequence[Reading], among: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Each statistic that was asked for and that some readings do not have, with the names of their sites in one line.

    That most modules are no bounded activation is not worth a line, unless none is.

    Args:
        names_of: the statistics that are logged for a role.
        readings: of all sites that were measured.
        among: all names of the model.
    """
    among, lacking = list(among), dict[str, list[Reading]]()
    for reading in readings:
        for name in names_of(reading.site.role):
            if name not in reading.statistics:
                lacking.setdefault(name, []).append(reading)
    for name, without in lacking.items():
        if name != "saturated_fraction" or len(without) == len(readings):
            names = folded(dict.fromkeys(reading.site.name for reading in without), among)
            yield name, names


def say_if_copied(owner: str, device: torch.device) -> None:
    """Say so if what a callback measures is copied to the host.

    Args:
        owner: the callback's name.
        device: of the model.
    """
    if needs_host(device):
        inform(
            f"{owner}: {device.type.upper()} has no float64; what is measured is copied to the host first, which waits "
            "for the device."
        )
