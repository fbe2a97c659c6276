"""`Turns`: of the weights of a large model some are copied in each logged step, so that memory stays bounded."""

import math
from collections.abc import Container, Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from hookboard.parameters import Weight

MOST_COPIED_BYTES = 1 << 29
"""The weights that have their turn in one step take no more, unless a single one does (a choice)."""

MOST_MISSED = 8
"""A weight that no optimizer steps keeps its turn for this many logged steps: some step every few batches only."""


class Turns:
    """Which weights have their turn in a step: those that have waited longest, as many as `MOST_COPIED_BYTES` hold.

    Where that is enough for all of them, all have their turn in every step. Every rank comes to the same weights.
    """

    def __init__(self) -> None:
        self.waiting: frozenset[str] = frozenset()
        """The names of the weights that had no turn in the last step."""
        self._missed: dict[str, int] = {}
        """By name, in the order in which they have waited: how many turns in a row no optimizer stepped the weight."""
        self._bytes: dict[str, int] = {}
        self._chosen: set[str] = set()
        self._left = MOST_COPIED_BYTES
        self._first: str | None = None
        self._is_said = False

    def said_once(self) -> str:
        """A line for the user, at the end of the first step in which not all weights had their turn; else ""."""
        if self._is_said or not self.waiting:
            return ""
        self._is_said = True
        needed = sum(self._bytes.values())
        return (
            f"copies of all {len(self._bytes)} parameters before a step would take {needed / 1e9:.1f} GB, so their "
            f"updates are measured by turns, each in about one of {math.ceil(needed / MOST_COPIED_BYTES)} logged steps"
        )

    def parts(self) -> str | None:
        """What a fit that is continued must know: the weight that has waited longest; None before the first step."""
        return next(iter(self._missed), None)

    def go_on(self, parts: str | None) -> None:
        """Begin with that weight."""
        self._first = parts

    def forget(self) -> None:
        """Forget the weights, which have changed, but for the one that has waited longest."""
        self._first = self.parts() or self._first
        self._missed, self._bytes, self._chosen, self._left = {}, {}, set(), MOST_COPIED_BYTES

    def of(self, weights: Mapping[str, Weight]) -> dict[str, Weight]:
        """Those of the weights that an optimizer is about to step which have their turn."""
        for name, weight in weights.items():
            if name not in self._bytes:
                self._bytes[name] = sum(map(bytes_of, weight.parameters))
                self._missed[name] = 0
        self._begin_with_first()
        if len(self._chosen) < len(self._missed):
            self._choose()
        return {name: weight for name, weight in weights.items() if name in self._chosen}

    def _begin_with_first(self) -> None:
        if self._first in self._missed:
            names = list(self._missed)
            at = names.index(self._first)
            self._missed = {name: self._missed[name] for name in names[at:] + names[:at]}
            self._first = None

    def _choose(self) -> None:
        for name in self._missed:
            if name in self._chosen:
                continue
            if self._chosen and self._bytes[name] > self._left:
                break  # those behind it must not overtake it
            self._chosen.add(name)
            self._left -= self._bytes[name]

    def note(self, name: str, copied: Tensor) -> None:
        """Note the size of a computed weight, which its parameters do not tell."""
        self._bytes[name] = bytes_of(copied)

    def end(self, copied: Container[str]) -> None:
        """End the step.

        Args:
            copied: the names of the weights that were stepped.
        """
        chosen, self._chosen, self._left = self._chosen, set(), MOST_COPIED_BYTES
        self.waiting = frozenset(self._missed.keys() - chosen)
        if self.waiting:
            for name in [name for name in self._missed if name in chosen]:
                self._pass_on(name, name in copied)

    def _pass_on(self, name: str, was_stepped: bool) -> None:
        """Let the weight wait behind all others, unless it was not stepped and may keep its turn."""
        missed = self._missed[name] + 1
        if was_stepped or missed >= MOST_MISSED:
            del self._missed[name]
            missed = 0
        self._missed[name] = missed


def bytes_of(tensor: Tensor) -> int:
    """What a copy takes on this rank; of a split `DTensor` an equal share, which is the same on every rank."""
    if is_lazy(tensor):
        return 0
    split = 1
    if isinstance(tensor, DTensor):
        parts = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
        split = math.prod(size for size, placement in parts if placement.is_shard())
    return tensor.numel() * tensor.element_size() // split
