"""What `compare` returns: the differences, and all that was compared."""

from collections.abc import Mapping
from dataclasses import dataclass

from hookboard.comparing.faults import Difference
from hookboard.comparing.running import Spot


@dataclass(frozen=True)
class Row:
    """One tensor that was compared.

    Args:
        spot: the tensor: its module, call, part and path.
        found: its relative difference if its module gets the left model's inputs.
        expected: the relative difference that rounding can cause.
    """

    spot: Spot
    found: float
    expected: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Args:
        differences: what differs by more than rounding, in the order of execution, backward after forward.
        rows: every tensor that was compared, in the order of execution.
        names: name in the right model -> name in the left model, for each module that was compared.
        notes: what was not compared, and what differs without an effect.
    """

    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first difference; None if all that was compared is equal up to rounding, or nothing was (no `rows`)."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        modules = len({row.spot.module for row in self.rows})
        said = f"{len(self.rows)} tensors of {modules} module{'s' * (modules != 1)} were compared"
        if not self.rows and self.first is None:
            lines = ["Nothing was compared: no tensor of one model has a counterpart in the other."]
        elif self.first is None:
            lines = [f"Equal up to rounding: {said}."]
        else:
            count = len(self.differences)
            lines = [f"{count} difference{'' if count == 1 else 's'}: {said}.", *map(str, self.differences)]
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def __repr__(self) -> str:
        return str(self)
