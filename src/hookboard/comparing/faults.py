"""Which differences are more than rounding, and what each comes from."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from hookboard.base.messages import listed
from hookboard.comparing.distance import BROKEN, Distance, distance
from hookboard.comparing.forced import Found, renamed
from hookboard.comparing.recorded import Index, ModuleFacts, Recorded, buffers_in, facts_of, parameters_in, tied_in
from hookboard.comparing.running import Part, Spot, watched_modules

BEYOND_ROUNDING = 3.0
"""A difference counts from this many times what rounding can cause (a choice)."""

ADDED_UP, ADDED_UP_SHARE = 3.0, 0.125
"""What adding numbers in another order may change, in rounding steps of the type they are added in (float32, also for
coarser ones): the first, or where a module has weights this share of the root of their number for each output, if that
is more (choices)."""


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

    @property
    def in_numbers(self) -> str:
        """The difference next to what rounding can cause (see `in_words`).

        "" where there is none, as between tensors of different shapes.
        """
        if self.found == BROKEN:
            return ""
        return in_words(self.found.relative, self.expected)

    def __str__(self) -> str:
        return f"{', '.join(filter(None, [str(self.spot), self.in_numbers]))}: {self.cause}"


def in_words(relative: float, expected: float) -> str:
    """Return a difference next to what rounding can cause, as a clause.

    >>> in_words(0.05, 4e-07)
    'relative difference 0.05 (rounding causes less than 4e-07)'
    """
    return f"relative difference {relative:.2g} (rounding causes less than {expected:.1g})"


@dataclass
class Sides:
    """What is known of both models besides the tensors of their calls; names are those of the left one.

    Args:
        facts: name of each module to (left facts, right facts).
        weights: name of each parameter and buffer that differs by more than rounding to how far.
        shapes: name of each one with another shape to (left shape, right shape).
        tied: name of a left parameter that is another one itself, where the right model has two, to that other one.
        tied_there: the same of the right model, where they are two in the left one.
        missing: names of parameters and buffers of compared modules that the right model does not have.
        added: those that it has in addition.
        frozen: names of parameters that get no gradient in the right model.
        hidden: the names of modules whose calls cannot be seen in the right model, as they are compiled or scripted.
    """

    facts: dict[str, tuple[ModuleFacts, ModuleFacts]]
    weights: dict[str, Distance]
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    tied: dict[str, str]
    here: list[str]
    hidden: set[str] = field(default_factory=set)
    tied_there: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)


def sides_of(recorded: Recorded, right: nn.Module, names: Mapping[str, str], step: float) -> Sides:
    """Compare what the models are.

    Args:
        recorded: the left model's call.
        right: the right model.
        names: its name of each module to the left one.
        step: the rounding step of the coarser precision.
    """
    index, there = recorded.index, facts_of(right)
    sides = Sides({}, {}, {}, {}, list(index.modules))
    sides.hidden = {renamed(own, names) for own in there.keys() - watched_modules(right).keys()}
    held_there = parameters_in(right).items()
    sides.frozen = {renamed(own, names) for own, one in held_there if one is not None and not one.requires_grad}
    for own, name in names.items():
        if own in there and name in index.modules:
            sides.facts[name] = index.modules[name], there[own]
    held = (parameters_in(right) | buffers_in(right)).items()
    known = {renamed(own, names): tensor.detach() for own, tensor in held if tensor is not None}
    for name, tensor in known.items():
        if (entry := index.weights.get(name)) is None:
            continue
        if entry.shape != tuple(tensor.shape):
            sides.shapes[name] = entry.shape, tuple(tensor.shape)
        elif (found := distance(recorded.tensor(entry), tensor)).relative > step:
            sides.weights[name] = found
    shared = {renamed(own, names): renamed(first, names) for own, first in tied_in(right).items()}
    sides.tied = {name: first for name, first in index.tied.items() if name in known and name not in shared}
    sides.tied_there = {n: first for n, first in shared.items() if n in index.weights and n not in index.tied}
    compared = set(names.values()) & sides.facts.keys()
    sides.missing, sides.added = (
        {name for name in one if name not in other and name.rpartition(".")[0] in compared}
        for one, other in ((index.weights, known), (known, index.weights))
    )
    return sides


class Faults:
    """Tells which tensors, gradients and buffers of the right model differ by more than `rounding` gave, and why."""

    def __init__(self, index: Index, sides: Sides, rounding: Mapping[Spot | str, float], step: float) -> None:
        self._index, self._sides, self._rounding, self._step = index, sides, rounding, step
        self._sums: dict[str, int] = {}
        for name, weight in index.weights.items():
            if len(weight.shape) > 1:
                module = name.rpartition(".")[0]
                self._sums[module] = max(self._sums.get(module, 1), math.prod(weight.shape[1:]), weight.shape[0])
        self._guilty: set[str] = set()  # modules whose own code, weights or mode differ

    def expected(self, key: Spot | str) -> float:
        """Return the relative difference that rounding can cause."""
        entry = self._index.spots.get(key) if isinstance(key, Spot) else None
        is_whole = entry is not None and not entry.dtype.startswith(("float", "bfloat", "complex"))
        added_in = min(self._step, torch.finfo(torch.float32).eps)
        added = max(ADDED_UP, ADDED_UP_SHARE * math.sqrt(self._largest_sum(key)))
        measured = self._rounding.get(key, 0.0) * (1 + added * added_in / self._step)
        return max(measured, 0.0 if is_whole else max(self._step, added * added_in))

    def _largest_sum(self, key: Spot | str) -> int:
        """Return how many products the module adds up for one number of its output, at most; 1 if it has no weights."""
        module = key.module if isinstance(key, Spot) else key.rpartition(".")[0]
        return self._sums.get(module, 1)

    def is_fault(self, spot: Spot, found: Distance) -> bool:
        """Return True if a difference is more than rounding."""
        return found.relative > BEYOND_ROUNDING * self.expected(spot)

    def differences(self, found: Found) -> list[Difference]:
        """Return what differs by more than rounding, in the order of execution."""
        forward = [s for s in self._index.spots if s.part != "gradient"]
        told = [self._forward(spot, found) for spot in forward if self._counts(spot, found)]
        for spot in self._index.spots:
            if spot.part == "gradient" and self._is_innocent(replace(spot, part="output"), found):
                told += self._backward(spot, found)
        return [*told, *self._of_weights(found)]

    def _counts(self, spot: Spot, found: Found) -> bool:
        return spot in found.spots and self.is_fault(spot, found.spots[spot])

    def _forward(self, spot: Spot, found: Found) -> Difference:
        if spot.part == "input":
            cause, guilty = self.before(spot, found)
        else:
            cause, guilty = self._inside(spot, found), spot.module
        self._guilty.add(guilty)
        if spot in found.shapes:
            if source := self._source_of_shape(spot, found):
                cause = "; ".join([source, *self.own(guilty)])
            cause = "shape {} vs. {}; {}".format(*found.shapes[spot], cause)
        return Difference(spot, found.spots[spot], self.expected(spot), cause)

    def before(self, spot: Spot, found: Found) -> tuple[str, str]:
        """Return why the input of a module differs, as a clause, and the module whose code passes that input."""
        if not spot.module:
            return "the models received different inputs", ""
        parent = self._parent(spot.module)
        known = self.own(parent)
        skipped = self._skipped(parent, found)
        after = self._ran_before(spot, parent)
        where = f"between {after} and {spot.module}" if after else f"before {spot.module}"
        code = f"check the code of {parent or 'the whole model'} {where}"
        return "; ".join([*skipped, *known, code]), parent

    def _source_of_shape(self, spot: Spot, found: Found) -> str:
        """Return from which other tensor this one has another shape than in the left model, as a clause; "" if none."""
        others = {(other.module, other.part) for other in found.shapes}
        if spot.part == "output" and (spot.module, "input") in others:
            return "its input has a different shape too"
        before = self._ran_last(spot.module)
        if spot.part == "input":
            before = self._ran_before(spot, self._parent(spot.module))
        return f"the output of {before} has a different shape too" if (before, "output") in others and before else ""

    def _inside(self, spot: Spot, found: Found) -> str:
        known = self.own(spot.module)
        inner = [name for name in self._sides.here if self._parent(name) == spot.module and name != spot.module]
        skipped = self._skipped(spot.module, found) if inner else []
        weights = [one for one in known if one.startswith("its ")]
        same = "same inputs" if weights else "same inputs and weights"
        if known or skipped:
            return "; ".join([*([] if weights else [same]), *skipped, *known])
        if self._draws(spot.module):
            advice = "differ between versions, precisions and kinds of device; compare in evaluation mode"
            return f"{same}, but the module draws random numbers, which {advice}"
        after = f" after {last}" if (last := self._ran_last(spot.module)) else ""
        return f"{same}; check the code of its forward{after}"

    def _draws(self, module: str) -> bool:
        """Return True if the module has dropout and is in training mode."""
        left, _ = self._sides.facts.get(module, (None, None))
        if left is None or not left.training:
            return False
        names = [key for key in left.attributes if "drop" in key or (key == "p" and "Drop" in left.type)]
        return any(left.attributes[key] not in ("0", "0.0", "False", "None") for key in names)

    def own(self, module: str) -> list[str]:
        """Return what differs in a module itself, in clauses."""
        said = []
        for name, found in self._sides.weights.items():
            if name.rpartition(".")[0] == module:
                said.append(f"its {name.rpartition('.')[2]} differs (relative {found.relative:.2g})")
        for name, shapes in self._sides.shapes.items():
            if name.rpartition(".")[0] == module:
                said.append(f"its {name.rpartition('.')[2]} has shape {shapes[0]} vs. {shapes[1]}")
        for names, where in ((self._sides.missing, "right"), (self._sides.added, "left")):
            if own := sorted(name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == module):
                said.append(f"its {listed(own, 3)} {'is' if len(own) == 1 else 'are'} missing from the {where} model")
        if module in self._sides.facts:
            left, right = self._sides.facts[module]
            if left.training != right.training:
                mode = {True: "training", False: "evaluation"}
                said.append(f"{mode[left.training]} mode vs. {mode[right.training]} mode")
            if left.type != right.type:
                said.append(f"{left.type} vs. {right.type}")
            both = [key for key in left.attributes if key in right.attributes]
            said += [
                f"{key} {left.attributes[key]} vs. {right.attributes[key]}"
                for key in both
                if left.attributes[key] != right.attributes[key]
            ]
        return said

    def _skipped(self, parent: str, found: Found) -> list[str]:
        """Return a clause on the modules inside `parent` that ran in the left model alone."""
        ran = {spot.module for spot in self._index.spots}
        seen = {spot.module for spot in found.spots}
        missing = {name for name in ran - seen if self._parent(name) == parent and name != parent}
        said = []
        if idle := sorted(missing - self._sides.hidden):
            said.append(f"{listed(idle, 3)} did not run in the right model")
        if hidden := sorted(missing & self._sides.hidden):
            said.append(f"{listed(hidden, 3)} cannot be seen in the right model (compiled or scripted)")
        return said

    def _parent(self, module: str) -> str:
        parts = module.split(".")
        above = (".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
        return next((name for name in above if name in self._sides.here), "")

    def _ran_before(self, spot: Spot, parent: str) -> str:
        """Return the module inside `parent` that returned last before this spot; "" if none did."""
        last = ""
        for other in self._index.spots:
            if other == spot:
                break
            if other.part == "output" and other.module != parent and self._parent(other.module) == parent:
                last = other.module
        return last

    def _ran_last(self, parent: str) -> str:
        inside = [s.module for s in self._index.spots if s.part == "output" and s.module != parent]
        return next((name for name in reversed(inside) if self._parent(name) == parent), "")

    # Backward.

    def _is_innocent(self, key: Spot | str, found: Found) -> bool:
        """Return True if no module that passes this gradient back differs forward, or gets no gradient itself."""
        passing = found.reaches.get(key, set())
        cut = {spot.module for spot in self._cut(found)}
        return not (self._guilty | cut) & passing and not self._guilty & {self._parent(m) for m in passing if m}

    def _cut(self, found: Found) -> list[Spot]:
        """Return the gradients of outputs that came in the left model alone, although the module ran in both."""
        return [
            spot
            for spot in self._index.spots
            if spot.part == "gradient" and spot not in found.spots and replace(spot, part="output") in found.spots
        ]

    def _backward(self, spot: Spot, found: Found) -> list[Difference]:
        """Return the difference of a gradient of an output, if it has one, in a list."""
        if self._counts(spot, found):
            passing = sorted(found.reaches.get(replace(spot, part="output"), ()))
            whose = listed([name or "the code after the last module" for name in passing], 3) or "the loss"
            cause = (
                f"the gradient that {whose} passes back differs, although its forward pass does not; look for a custom "
                "backward pass"
            )
            return [Difference(spot, found.spots[spot], self.expected(spot), cause)]
        if spot in self._cut(found):
            where = f"in {self._parent(spot.module)}" if self._parent(spot.module) else "in the model"
            look = f"look for detach() or no_grad() {where}"
            if frozen := sorted(name for name in self._sides.frozen if name.rpartition(".")[0] == spot.module):
                look = f"{listed(frozen, 3)} {'is' if len(frozen) == 1 else 'are'} frozen in the right model"
            cause = f"no gradient reaches it; {look}"
            return [Difference(spot, BROKEN, self.expected(spot), cause)]
        return []

    def _of_weights(self, found: Found) -> Iterator[Difference]:
        ran = {spot.module for spot in found.spots} - {spot.module for spot in self._cut(found)}
        pairs = self._sides.tied, self._sides.tied_there
        tied = {name for found_tied in pairs for pair in found_tied.items() for name in pair}
        for found_tied, (one, other) in zip(pairs, (("left", "right"), ("right", "left")), strict=True):
            for name, first in found_tied.items():
                cause = (
                    f"it is tied to {first} in the {one} model, but a copy in the {other} model; training will make "
                    "them diverge"
                )
                yield self._of_weight(name, "weight", BROKEN, cause)
        for name, seen in found.gradients.items():
            # Under FSDP2 the graph holds other tensors than the model, and does not tell whose code a weight passes.
            is_innocent = self._is_innocent(name, found) and name.rpartition(".")[0] not in self._guilty
            if self._is_large(name, seen) and name not in tied and is_innocent:
                yield self._of_weight(
                    name, "gradient", seen, ("its gradient differs, although nothing in the forward pass does")
                )
        for name in found.missing:
            if name.rpartition(".")[0] in ran:
                why = "frozen" if name in self._sides.frozen else "cut off"
                yield self._of_weight(name, "gradient", BROKEN, f"no gradient in the right model, where it is {why}")
        for name in found.added:
            if name.rpartition(".")[0] in ran:
                yield self._of_weight(
                    name, "gradient", BROKEN, "no gradient in the left model, where it is frozen or cut off"
                )
        for name, seen in found.buffers.items():
            module = name.rpartition(".")[0]
            if self._is_large(name, seen) and name not in self._sides.weights and module not in self._guilty:
                cause = "; ".join(["it differs after the call", *self.own(module)])
                yield self._of_weight(name, "weight", seen, cause)

    def _is_large(self, name: str, seen: Distance) -> bool:
        return seen.relative > BEYOND_ROUNDING * self.expected(name)

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
        idle = [n for n in (*self._sides.weights, *self._sides.shapes) if n.rpartition(".")[0] not in self._guilty]
        if idle:
            said.append(f"differences in {listed(idle, 3)} have no effect")
        return said
