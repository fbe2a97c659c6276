"""The first tensor in which two captures differ by more than rounding."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from hookboard.capturing import Captured
from hookboard.comparing.comparison import Comparison, Row
from hookboard.comparing.distance import distance, step_of
from hookboard.comparing.faults import BEYOND_ROUNDING, Difference, Faults, Sides
from hookboard.comparing.forced import Found
from hookboard.comparing.matching import first_outputs, matched
from hookboard.comparing.recorded import Index, StoredTensor, facts_of_module
from hookboard.comparing.running import Part, Spot
from hookboard.sites import Role

PARTS: dict[Role, Part] = {
    "input": "input",
    "output": "output",
    "grad_input": "input gradient",
    "grad_output": "gradient",
}

CANCELLED = 40.0
"""How many times more of a gradient than of an output may be rounding: what attention passes back to its queries is a
small difference of large numbers (a choice, somewhat more than in any of the models of `benchmarks.compare`)."""


@dataclass(frozen=True)
class Kept:
    """What a capture holds, as `compare` names it.

    Args:
        index: its modules, tensors and weights; the tensors in the order in which they were seen.
        tensors: the tensors.
        weights: parameters and buffers of its modules, as they are now.
    """

    index: Index
    tensors: Mapping[Spot, Tensor]
    weights: Mapping[str, Tensor]


def of_captures(left: Captured, right: Captured, names: Mapping[str, str] | None) -> Comparison:
    """Find the first tensor that differs by more than rounding.

    No model runs, so what rounding gives is not measured. It is taken to be the rounding step, or the largest
    difference of a tensor before, if that is more: rounding grows little by little, and a mistake is a jump.

    Args:
        left: a capture.
        right: another one.
        names: as for `compare`.
    """
    here, there = _kept(left), _kept(right)
    twins = matched(here.index, list(there.index.modules), first_outputs(there.index), names)
    back = {twin: own for own, twin in twins.items()}
    found = Found()
    for spot, tensor in here.tensors.items():
        other = there.tensors.get(replace(spot, module=back.get(spot.module, spot.module)))
        if other is not None and spot.module in back:
            found.add(spot, tensor, other)
    step = _step((*here.tensors.values(), *there.tensors.values()))
    faults = Faults(here.index, _sides(here, there, back), {}, step)
    rows, differing, largest = list[Row](), list[Row](), 0.0
    for spot, seen in found.spots.items():
        times = CANCELLED if "gradient" in spot.part else 1.0
        row = Row(spot, seen.relative, math.nan, times * max(faults.expected(spot), largest))
        rows.append(row)
        if seen.relative > BEYOND_ROUNDING * row.expected:
            differing.append(row)
        elif not differing:
            largest = max(largest, seen.relative)
    first = [
        Difference(row.spot, found.spots[row.spot], row.expected, _cause(row.spot, found, faults))
        for row in differing[:1]
    ]
    notes = [f"{len(differing) - 1} tensors after the first differ too"] if len(differing) > 1 else []
    if missing := [name for name in here.index.modules if name not in {spot.module for spot in found.spots}]:
        notes.append(faults.not_compared(missing))
    return Comparison(tuple(first), tuple(rows), twins, tuple(notes))


def _step(tensors: Iterable[Tensor]) -> float:
    return step_of({tensor.dtype for tensor in tensors if tensor.is_floating_point()})


def _kept(captured: Captured) -> Kept:
    index, tensors, weights = Index(), dict[Spot, Tensor](), dict[str, Tensor]()
    for name, one in captured.items():
        index.modules[name] = facts_of_module(one.module)
        own = [*one.module.named_parameters(recurse=False), *one.module.named_buffers(recurse=False)]
        weights |= {f"{name}.{key}".lstrip("."): tensor.detach() for key, tensor in own}
    for site, call, tensor in captured.in_order():
        tensors[Spot(site.name, call, PARTS[site.role], site.index)] = tensor
    index.spots = {spot: _described(tensor) for spot, tensor in tensors.items()}
    index.weights = {name: _described(tensor) for name, tensor in weights.items()}
    return Kept(index, tensors, weights)


def _described(tensor: Tensor) -> StoredTensor:
    return StoredTensor(0, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _sides(here: Kept, there: Kept, back: Mapping[str, str]) -> Sides:
    """Compare the modules as they are now.

    Args:
        here: the left capture.
        there: the right one.
        back: name of each left module to the right one.
    """
    facts, weights, shapes = {}, {}, {}
    step = _step((*here.weights.values(), *there.weights.values()))
    for name, twin in back.items():
        if name in here.index.modules and twin in there.index.modules:
            facts[name] = here.index.modules[name], there.index.modules[twin]
    for name, tensor in here.weights.items():
        module, _, own = name.rpartition(".")
        other = there.weights.get(f"{back.get(module, module)}.{own}".lstrip("."))
        if other is not None and other.shape != tensor.shape:
            shapes[name] = tuple(tensor.shape), tuple(other.shape)
        elif other is not None and (seen := distance(tensor, other)).relative > step:
            weights[name] = seen
    return Sides(facts, weights, shapes, {}, list(here.index.modules))


def _cause(spot: Spot, found: Found, faults: Faults) -> str:
    if spot.part == "input":
        return faults.before(spot, found)[0]
    given = [seen for other, seen in found.spots.items() if other == replace(spot, part="input", path=other.path)]
    said = ["same inputs"] if given and spot.part == "output" else []
    if spot in found.shapes:
        said.append("shape {} against {}".format(*found.shapes[spot]))
    if known := faults.own(spot.module):
        return "; ".join([*said, *known])
    return "; ".join([*said, "nothing else of the module differs now: compare the models to find the cause"])
