"""Which differences are more than rounding, and what each comes from."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hookboard.base.messages import listed
from hookboard.comparing.distance import BROKEN, Distance, distance
from hookboard.comparing.recorded import Found, Recorded, facts_of, renamed, tied_in
from hookboard.comparing.running import Part, Spot, weights_in

BEYOND_ROUNDING = 3.0
"""A difference counts from this many times what rounding can cause (a choice)."""

ADDED_UP, ADDED_UP_SHARE = 3.0, 0.125
"""What another order of addition may change, in rounding steps of the type in which it is done (float32 for coarser
ones): the first or, with weights, the second times the root of how many numbers are added, if more (choices)."""


@dataclass(frozen=True)
class Difference:
    """A tensor that differs by more than rounding, although everything it is computed from is equal.

    Args:
        spot: the tensor: its module, call, part and path.
        found: how far apart the two are.
        expected: the relative difference that rounding can cause.
        cause: what differs, or where to look.
    """

    spot: Spot
    found: Distance
    expected: float
    cause: str

    @property
    def module(self) -> str:
        """The module's name in the left model."""
        return self.spot.module

    def __str__(self) -> str:
        said = [str(self.spot)]
        if self.found != BROKEN:
            said.append(
                f"relative difference {self.found.relative:.2g} (rounding causes less than {self.expected:.1g})"
            )
        return f"{', '.join(said)}: {self.cause}"


class Faults:
    """Tells which tensors, gradients and buffers of the right model differ by more than `rounding` gave, and why."""

    def __init__(
        self,
        recorded: Recorded,
        right: nn.Module,
        names: Mapping[str, str],  # the name of a module in it -> in the left model
        rounding: Mapping[Spot | str, float],  # as from `rounding_of`
        step: float,  # of rounding, in the coarser precision
    ) -> None:
        self._index, self._rounding, self._step = recorded.index, rounding, step
        self._sums: dict[str, int] = {}  # how many products a module adds up for one number of its output, at most
        for name, weight in self._index.weights.items():
            if len(weight.shape) > 1:
                module = name.rpartition(".")[0]
                self._sums[module] = max(self._sums.get(module, 1), math.prod(weight.shape[1:]), weight.shape[0])
        self._guilty: set[str] = set()  # modules whose own code, weights or mode differ
        there = {names[own]: facts for own, facts in facts_of(right).items() if own in names}
        self._facts = {name: (facts, there[name]) for name, facts in self._index.modules.items() if name in there}
        known = {renamed(own, names): tensor.detach() for own, tensor in weights_in(right).items()}
        self._weights = dict(self._weights_apart(recorded, known))  # name to how it differs, as the end of a clause
        tied = {renamed(own, names): renamed(first, names) for own, first in tied_in(right).items()}
        here = self._index.tied
        self._tied = [(name, first, "left", "right") for name, first in here.items() if name in known.keys() - tied]
        own = self._index.weights.keys() - here
        self._tied += [(name, first, "right", "left") for name, first in tied.items() if name in own]

    def _weights_apart(self, recorded: Recorded, known: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
        here = self._index.weights
        for name, tensor in known.items():
            entry = here.get(name)
            if entry is None:
                continue
            if entry.shape != tuple(tensor.shape):
                yield name, f"has shape {entry.shape} vs. {tuple(tensor.shape)}"
                continue
            relative = distance(recorded.tensor(entry), tensor).relative
            if relative > self._step:
                yield name, f"differs (relative {relative:.2g})"
        for names, others, side in ((here, known, "right"), (known, here, "left")):
            for name in names:
                if name not in others and name.rpartition(".")[0] in self._facts:
                    yield name, f"is missing from the {side} model"

    def expected(self, key: Spot | str) -> float:
        """Return the relative difference that rounding can cause."""
        entry = self._index.spots.get(key) if isinstance(key, Spot) else None
        is_whole = entry is not None and not entry.dtype.startswith(("float", "bfloat", "complex"))
        added_in = min(self._step, torch.finfo(torch.float32).eps)
        module = key.module if isinstance(key, Spot) else key.rpartition(".")[0]
        added = max(ADDED_UP, ADDED_UP_SHARE * math.sqrt(self._sums.get(module, 1)))
        measured = self._rounding.get(key, 0.0) * (1 + added * added_in / self._step)
        return max(measured, 0.0 if is_whole else max(self._step, added * added_in))

    def is_fault(self, key: Spot | str, found: Distance) -> bool:
        """Return True if a difference is more than rounding."""
        return found.relative > BEYOND_ROUNDING * self.expected(key)

    def differences(self, found: Found) -> list[Difference]:
        """Return what differs by more than rounding, in the order of execution; gradients if nothing forward does."""
        forward = [spot for spot in self._index.spots if spot.part != "gradient" and self._counts(spot, found)]
        # Of tensors of other shapes only the first: most others have other shapes because it has.
        later = [spot for spot in forward if spot in found.shapes][1:]
        said = [self._forward(spot, found) for spot in forward if spot not in later]
        for name, first, side, other in self._tied:
            cause = f"it is tied to {first} in the {side} model, but a copy in the {other} model"
            said.append(self._of_weight(name, "weight", BROKEN, f"{cause}; training will make them diverge"))
        if not self._guilty:
            said += self._backward(found)
        for name, seen in found.buffers.items():
            module = name.rpartition(".")[0]
            if self.is_fault(name, seen) and name not in self._weights and module not in self._guilty:
                cause = "; ".join(["it differs after the call", *self._own(module)])
                said.append(self._of_weight(name, "weight", seen, cause))
        return said

    def _counts(self, spot: Spot, found: Found) -> bool:
        return spot in found.spots and self.is_fault(spot, found.spots[spot])

    def _forward(self, spot: Spot, found: Found) -> Difference:
        if spot.part == "input":
            cause, guilty = self._before(spot, found)
        else:
            cause, guilty = self._inside(spot, found), spot.module
        self._guilty.add(guilty)
        if spot in found.shapes:
            cause = "shape {} vs. {}; {}".format(*found.shapes[spot], cause)
        return Difference(spot, found.spots[spot], self.expected(spot), cause)

    def _before(self, spot: Spot, found: Found) -> tuple[str, str]:
        """Return why the input of a module differs, as a clause, and the module whose code passes that input."""
        if not spot.module:
            return "the models received different inputs", ""
        parent = self._parent(spot.module)
        spots = list(self._index.spots)
        after = self._last_inside(parent, spots[: spots.index(spot)])
        where = f"between {after} and {spot.module}" if after else f"before {spot.module}"
        code = f"check the code of {parent or 'the whole model'} {where}"
        return "; ".join([*self._skipped(parent, found), *self._own(parent), code]), parent

    def _inside(self, spot: Spot, found: Found) -> str:
        """Return why the output of a module differs, as a clause."""
        known, skipped = self._own(spot.module), self._skipped(spot.module, found)
        if any(difference.startswith("its ") for difference in known):
            return "; ".join([*skipped, *known])
        if known or skipped:
            return "; ".join(["same inputs and weights", *skipped, *known])
        last = self._last_inside(spot.module, self._index.spots)
        advice = f"check the code of its forward{f' after {last}' if last else ''}"
        if spot.module in self._facts and self._facts[spot.module][0].training:
            advice += ", or, if it draws random numbers, compare in evaluation mode"
        return f"same inputs and weights; {advice}"

    def _own(self, module: str) -> list[str]:
        """Return what differs in a module itself, in clauses."""
        split = [(*name.rpartition("."), how) for name, how in self._weights.items()]
        said = [f"its {own} {how}" for parent, _, own, how in split if parent == module]
        if module in self._facts:
            left, right = self._facts[module]
            if left.training != right.training:
                mode = {True: "training", False: "evaluation"}
                said.append(f"{mode[left.training]} mode vs. {mode[right.training]} mode")
            if left.type != right.type:
                said.append(f"{left.type} vs. {right.type}")
            for key, value in left.attributes.items():
                twin = right.attributes.get(key, value)
                if twin != value:
                    said.append(f"{key} {value} vs. {twin}")
        return said

    def _skipped(self, parent: str, found: Found) -> list[str]:
        """Return a clause on the modules inside `parent` that ran in the left model alone."""
        missing = {spot.module for spot in self._index.spots} - {spot.module for spot in found.spots}
        idle = sorted(name for name in missing if self._parent(name) == parent and name != parent)
        return [f"{listed(idle, 3)} did not run in the right model, or cannot be seen there"] if idle else []

    def _parent(self, module: str) -> str:
        parts = module.split(".")
        above = (".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
        return next((name for name in above if name in self._index.modules), "")

    def _last_inside(self, parent: str, spots: Iterable[Spot]) -> str:
        """Return the module inside `parent` that was the last of these to return; "" if none did."""
        ran = [spot.module for spot in spots if spot.part == "output" and spot.module != parent]
        return next((name for name in reversed(ran) if self._parent(name) == parent), "")

    def _backward(self, found: Found) -> Iterator[Difference]:
        """Yield what differs in gradients; if some do not arrive, the first of them, from which other faults follow."""
        gradients = [spot for spot in self._index.spots if spot.part == "gradient"]
        for spot in gradients:
            if spot not in found.spots and replace(spot, part="output") in found.spots:
                where = self._parent(spot.module) or "the model"
                cause = f"no gradient reaches it; look for detach(), no_grad() or frozen weights in {where}"
                yield Difference(spot, BROKEN, self.expected(spot), cause)
                return
        for spot in gradients:
            if self._counts(spot, found):
                cause = "its gradient differs, although the forward pass does not; look for a custom backward pass"
                yield Difference(spot, found.spots[spot], self.expected(spot), f"{cause} in what uses it")
        tied = {name for pair in self._tied for name in pair[:2]}
        for name, seen in found.gradients.items():
            if self.is_fault(name, seen) and name not in tied:
                cause = "its gradient differs, although nothing in the forward pass does"
                yield self._of_weight(name, "gradient", seen, cause)
        ran = {spot.module for spot in found.spots}
        for names, side in ((found.missing, "right"), (found.added, "left")):
            for name in names:
                if name.rpartition(".")[0] in ran:
                    cause = f"no gradient in the {side} model, where it is frozen or cut off"
                    yield self._of_weight(name, "gradient", BROKEN, cause)

    def _of_weight(self, name: str, part: Part, seen: Distance, cause: str) -> Difference:
        module, _, own = name.rpartition(".")
        return Difference(Spot(module, 0, part, own), seen, self.expected(name), cause)

    def notes(self, found: Found) -> list[str]:
        """Return what was not compared, and what differs without an effect."""
        said = []
        called = dict.fromkeys(spot.module for spot in self._index.spots)
        seen = {spot.module for spot in found.spots}
        if missing := [name for name in called if name not in seen]:
            said.append(f"no counterpart ran for {listed(missing, 3)}; not compared")
        idle = [name for name in self._weights if name.rpartition(".")[0] not in self._guilty]
        if idle and not found.shapes:
            said.append(f"differences in {listed(idle, 3)} have no effect")
        if self._guilty and self._index.gradients:
            said.append("gradients are compared once nothing differs in the forward pass")
        return said
