"""The first tensor in which two captures differ by more than rounding."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from torch import Tensor

from hookboard.capturing import Captured
from hookboard.comparing.comparison import Comparison, Row
from hookboard.comparing.distance import step_of
from hookboard.comparing.faults import BEYOND_ROUNDING, Difference, Faults, sides_of
from hookboard.comparing.forced import Found, measured
from hookboard.comparing.matching import first_outputs, matched
from hookboard.comparing.recorded import Index, Recorded, StoredTensor, dtype_name, facts_of_module
from hookboard.comparing.running import Part, Spot
from hookboard.model.sites import Role

PARTS: dict[Role, Part] = {
    "input": "input",
    "output": "output",
    "grad_input": "input gradient",
    "grad_output": "gradient",
}

CANCELLED = 40.0
"""How many times more of a gradient than of an output may be rounding: what attention passes back to its queries is a
small difference of large numbers (a choice, somewhat more than in any of the models of `benchmarks.compare`)."""


def of_captures(left: Captured, right: Captured, names: Mapping[str, str] | None) -> Comparison:
    """Find the first tensor that differs by more than rounding.

    No model runs, so what rounding gives is not measured. It is taken to be the rounding step, or the largest
    difference of a tensor before, if that is more: rounding grows little by little, and a mistake is a jump.

    Args:
        left: a capture.
        right: another one.
        names: as for `compare`.
    """
    here, there = _recorded(left), _recorded(right)
    twins = matched(here.index, list(there.index.modules), first_outputs(there.index), names)
    step = step_of(here.dtypes | there.dtypes)
    faults = Faults(here.index, sides_of(here, there, twins, step), {}, step)
    found = measured(here, there, twins)
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


def _recorded(captured: Captured) -> Recorded:
    """Return a capture as a recording: tensors in the order in which they were seen, and weights as they are now."""
    index, held = Index(), dict[int, Tensor]()
    numbers = count()

    def put(tensor: Tensor) -> StoredTensor:
        entry = StoredTensor(next(numbers), dtype_name(tensor), tuple(tensor.shape))
        held[entry.number] = tensor
        return entry

    for name, one in captured.items():
        index.modules[name] = facts_of_module(one.module)
        for key, tensor in (*one.module.named_parameters(recurse=False), *one.module.named_buffers(recurse=False)):
            index.weights[f"{name}.{key}".lstrip(".")] = put(tensor.detach())
    for site, call, tensor in captured.in_order():
        index.spots[Spot(site.name, call, PARTS[site.role], site.index)] = put(tensor)
    return Recorded(index, lambda entry: held[entry.number])


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
