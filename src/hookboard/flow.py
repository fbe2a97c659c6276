"""`Flow`: which layer's output flows into which other layer, in one step."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Flow:
    """What flows into each layer that computed something; empty where no step was read.

    Args:
        above: layer to the layers whose output flows into it, also through others: bit `i` of the number stands for
            the `i`-th layer of this mapping.
    """

    above: Mapping[str, int] = field(default_factory=dict)
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {name: place for place, name in enumerate(self.above)})

    def are_apart(self, one: str, other: str) -> bool:
        """Return True if both layers are known, and the output of neither flows into the other.

        >>> flow = Flow({"stem": 0b000, "left": 0b001, "right": 0b001})
        >>> flow.are_apart("left", "right"), flow.are_apart("stem", "left"), flow.are_apart("left", "unknown")
        (True, False, False)
        """
        if one == other or not {one, other} <= self.above.keys():
            return False
        return not (self.above[one] >> self._places[other] | self.above[other] >> self._places[one]) & 1
